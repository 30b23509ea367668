"""Execution of jobs: the resources they receive, fresh processes, and their supervision."""
