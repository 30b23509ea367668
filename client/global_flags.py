"""What is kept of the global flags beside their values."""

ON_COMMAND_LINE = "on_command_line"
"""Under what the names of the global flags are kept that were given, and not taken from the environment."""
