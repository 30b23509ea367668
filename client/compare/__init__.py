"""``agent compare``: whether one set of evaluations is worse than another."""

THRESHOLD = 0.05
"""The share by which a figure of time may differ by default."""
ACCURACY_THRESHOLD = 0.01
"""The share by which top-1 may differ by default."""
