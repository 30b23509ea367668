"""Where evaluations are kept: MongoDB, or one SQLite file with the same collections."""
