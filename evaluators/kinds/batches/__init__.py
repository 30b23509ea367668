"""Batches of inputs, one after the other: a model over a dataset."""
