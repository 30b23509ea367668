"""What is taken where the options of load say nothing."""

INITIAL_QPS = 16.0
ARRIVAL = "poisson"
WORKLOAD_MIN_DURATION_S = 10.0
WORKLOAD_MIN_QUERIES = 512
PROBE_MIN_DURATION_S = 2.0
PROBE_MIN_QUERIES = 100
LATENCY_BOUND_MS = 100.0
TOLERANCE = 0.02
TIME_BUDGET_S = 120.0
SPARE_CORES = 1
"""What the threads of a model in this process leave to the thread that sends its queries on time."""
