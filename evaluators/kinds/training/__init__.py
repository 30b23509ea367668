"""The training of a model."""
