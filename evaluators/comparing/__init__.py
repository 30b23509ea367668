"""Whether one set of evaluations is worse than another: ratios with intervals, and a verdict on each."""
