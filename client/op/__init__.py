"""Benchmarks of single operators: the commands of ``agent op``."""
