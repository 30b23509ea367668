"""The table of operators: each file covers one or more categories and defines ``OPERATORS``."""
