"""The command line itself: parsing, configuration, output and exit codes."""
