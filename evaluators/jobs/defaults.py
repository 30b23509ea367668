"""Defaults of the requests. The module imports little, because the help of the command line shows them."""

from __future__ import annotations

from enum import Enum


class SharedMemoryUse(Enum):
    """Whether tensors travel to a server on this host through shared memory: where both can, or must."""

    AUTO = "auto"
    OFF = "off"
    ON = "on"


OPEN_TIMEOUT_S = 300.0
"""How long an agent may take to open a model, which it may first have to download."""
ANSWER_TIMEOUT_S = 300.0
"""How long an agent may take to answer one batch."""
MODEL = "DigitsCNN"
BATCH_SIZE = 64
TOP_CLASSES = 5
"""The number of best classes that are kept for each input."""
TARGET_CI_PERCENT = 5.0
"""Half the width of the interval of p50 that an evaluation measures for by default."""
INITIAL_QPS = 16.0
ARRIVAL = "poisson"
PERCENTILE = 99.0
QUERY_TIMEOUT_MS = 10_000.0
WARM_UP_QUERIES = 16
WORKLOAD_MIN_DURATION_S = 10.0
WORKLOAD_MIN_QUERIES = 512
PROBE_MIN_DURATION_S = 2.0
PROBE_MIN_QUERIES = 100
LATENCY_BOUND_MS = 100.0
TOLERANCE = 0.02
TIME_BUDGET_S = 120.0
SPARE_CORES = 1
"""The cores that a model in this process leaves to the thread that sends its queries."""
TRACE_SAMPLE = 0.01
"""The share of the queries under load that are traced where their spans are sent to a collector."""
THRESHOLD = 0.05
"""The share by which a figure of time or a rate may differ in a comparison."""
ACCURACY_THRESHOLD = 0.01
"""The share by which top-1 may differ in a comparison."""
BENCH_BATCH_SIZE = 16
"""DLBS's ``exp.replica_batch``."""
BENCH_BATCHES = 100
BENCH_WORKERS = 4
BENCH_PREFETCH = 10
MXNET, PYTORCH = "mxnet", "pytorch"
"""The frameworks that train, in small letters."""
KV_STORES = ("local", "device", "dist_sync", "dist_device_sync", "dist_async", "nccl", "horovod")
"""The ways in which MXNet sums gradients."""
DIST_BACKENDS = ("gloo", "nccl", "mpi")
"""The ways in which PyTorch sums gradients."""
OPERATOR_DTYPES = ("float32", "float", "float64", "float16", "bfloat16", "int8", "int32", "int64")
OPERATOR_VALUES = ("table", "zeros", "ones")
"""The element types and input values of operators; the first ones are the defaults."""
