"""Benchmarks of single operators: how one is timed, where, and what this machine can do at most."""
