"""The storage of evaluations: MongoDB, or one SQLite file with the same collections."""
