"""Load: the arrival and issue of queries, and the statistics of their latencies."""
