"""A loader alone: batches are read and preprocessed, and nothing is computed."""
