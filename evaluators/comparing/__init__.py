"""Comparison of two sets of evaluations: whether one is worse, by ratios with intervals and verdicts."""
