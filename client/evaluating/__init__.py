"""Evaluations over batches of inputs: ``predict dataset`` and ``predict urls``."""
