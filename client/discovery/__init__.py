"""Finds served agents, and chooses among them."""
