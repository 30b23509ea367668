"""Arguments of the library that requests declare; make stubs writes them, do not edit."""

from __future__ import annotations

from typing import TypedDict


class DeclaredLoadArguments(TypedDict, total=False):
    """Further arguments of ``workload`` and ``max_qps``, with the defaults of the commands.

    Attributes:
        min_duration_s: Minimum duration of the run; by default 10, and 2 for a probe of a search.
        min_queries: Minimum number of queries; by default 512, and 100 for a probe of a search.
        timeout_ms: Timeout of a query, from the time it was due; by default 10000.
        warm_up_queries: Queries to send before the run without measuring them; by default 16.
        force: Send even more than this machine can send on time.
        max_batch_size: Maximum number of queries per batch, in this process; by default 1.
        max_queue_delay_ms: How long the first query of a batch waits for others.
        include_preprocess: Also preprocess under load; by default inputs are preprocessed before the run.
        trace_sample: Trace this share of the queries; by default 0.01 with a collector, else 0.
    """

    min_duration_s: float | None
    min_queries: int | None
    timeout_ms: float
    warm_up_queries: int
    force: bool
    max_batch_size: int
    max_queue_delay_ms: float
    include_preprocess: bool
    trace_sample: float | None


class DeclaredDataArguments(TypedDict, total=False):
    """Further arguments of ``train`` and ``ingest``, with the defaults of the commands.

    Attributes:
        shuffle: Draw the order anew for each epoch.
        workers: Workers that load the dataset; 0 loads in the thread of the steps; by default 4.
        prefetch: Batches to load ahead; by default 10.
        drop_cache: Drop the dataset from the page cache first.
    """

    shuffle: bool
    workers: int
    prefetch: int
    drop_cache: bool


class DeclaredTrainingArguments(TypedDict, total=False):
    """Further arguments of ``train``, with the defaults of the commands.

    Attributes:
        api: API of MXNet.
        parts_every: Time forward, backward, communication and update in every Nth step; 0 for none; by
            default 10.
        fail_on_error: Stop at the first input that fails.
    """

    api: str | None
    parts_every: int
    fail_on_error: bool


class DeclaredIngestionArguments(TypedDict, total=False):
    """Further arguments of ``ingest``, with the defaults of the commands."""


class DeclaredOperatorArguments(TypedDict, total=False):
    """Further arguments of ``benchmark_operators``, with the defaults of the commands.

    Attributes:
        cache: cold takes other inputs for each run, which together exceed the last-level cache; by default
            hot.
        target_ci: Measure until the half-width of the 95 % interval of p50 is at most this share of it, or
            until it gets no narrower; 0 for the whole budget; by default 0.5.
        time_budget: The most time for a row; by default 0.5.
        runs: Measure so many runs instead.
        warmup: The least runs before, for each row; by default 3.
        seed: Seed of the inputs.
        processes: Fresh processes that measure each row, in turn; by default 1.
        values: What the inputs hold: random values as the table draws them, zeros or ones; by default table.
    """

    cache: str
    target_ci: float
    time_budget: float
    runs: int | None
    warmup: int
    seed: int
    processes: int
    values: str
