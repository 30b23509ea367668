"""The databases: MongoDB behind an address, and one SQLite file with the same interface."""
