"""What is taken where the options of a comparison say nothing."""

THRESHOLD = 0.05
ACCURACY_THRESHOLD = 0.01
