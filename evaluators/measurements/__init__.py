"""Measurements: what an evaluation measured, one module a kind."""
