"""Loaders of batches from a dataset, which workers read and preprocess ahead, in a given order, by rank."""
