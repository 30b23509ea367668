"""Measurement of a served language model: how fast its answers begin, continue and end."""
