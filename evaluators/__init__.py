"""Evaluations: datasets, measurements, jobs, the store that keeps them, and reports."""
