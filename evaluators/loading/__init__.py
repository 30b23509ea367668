"""Loaders: batches of a dataset, read and preprocessed ahead by workers, in a drawn order, by rank."""
