"""The command-line framework: parsing, completion, output and exit codes."""
