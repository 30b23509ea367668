"""Benchmarks of single operators as classes, with the names and inputs of dl-operator-benchmark."""
