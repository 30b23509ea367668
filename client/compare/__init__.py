"""``agent compare``: whether one set of evaluations is worse than another."""
