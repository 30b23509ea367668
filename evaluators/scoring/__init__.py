"""Scores of predictions that another tool made, without running a model."""
