"""Mapping of the layers of a trace to operators of the table, a module per framework."""
