"""A search for the highest rate that keeps a latency bound."""
