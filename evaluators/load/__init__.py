"""Load: when queries arrive, how they are issued, and what is made of their latencies."""
