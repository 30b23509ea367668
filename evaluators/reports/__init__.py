"""Reports: rows made from evaluations, and the one writer that prints them."""
