"""Measurement of the training of a model."""
