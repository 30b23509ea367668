"""Benchmarks of single operators: their timing, their processes, and the peak of this machine."""
