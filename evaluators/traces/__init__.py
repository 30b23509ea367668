"""Stored traces in the formats that other programs and people read."""
