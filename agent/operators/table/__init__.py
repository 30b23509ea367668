"""The table of operators: a file for each category or a few, each with its ``OPERATORS``."""
