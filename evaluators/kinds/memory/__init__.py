"""Measurement of memory by batch size, and of the largest batch that fits into a limit."""
