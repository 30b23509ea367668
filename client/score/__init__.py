"""Scoring of predictions that another tool made."""
