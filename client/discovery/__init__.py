"""Served agents: those that are known, and the choice among them."""
