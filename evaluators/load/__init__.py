"""Load: how queries arrive and are issued, and the statistics of their latencies."""
