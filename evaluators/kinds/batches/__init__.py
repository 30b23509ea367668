"""Evaluation of a model over a dataset, in batches that run one after the other."""
