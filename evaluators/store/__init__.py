"""The storage of evaluations: MongoDB, or a single SQLite file with the same collections."""
