"""The arguments of the library that requests declare, written by make stubs; do not edit."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import TypedDict


class SharedArguments(TypedDict, total=False):
    """Further arguments of ``evaluate``, ``sweep``, ``measure``, ``workload`` and ``max_qps``.

    They have the defaults of the commands.

    Attributes:
        version: Version or constraint; by default the highest that has the weights.
        input_shape: Input shape of ``model`` without the batch, such as 3,224,224; by default the file's.
        agent: Run on this served agent: HOST:PORT, or any, or conditions such as gpu=H100,framework=PyTorch
            (also model, host, arch, cpu). Several addresses with commas share a dataset.
            kserve://HOST:PORT[/MODEL] is any server of the Open Inference Protocol, kserve+http:// one over
            HTTP; by default in this process.
        open_timeout_s: Timeout of the agent for opening the model, including downloads; by default 300.
        shared_memory: Pass inputs to a KServe server on this host through shared memory: auto where both
            sides can, off never; on makes it an error if they cannot; by default auto.
        weights: Random weights measure speed only; they require a model that is built in code; by default
            pretrained.
        seed: Seed of random weights and schedules.
        gpu_device_id: Index of the GPU.
        cudnn_benchmark: Let cuDNN time its algorithms and take the fastest; no effect on a CPU; by default
            the framework's.
    """

    version: str | None
    input_shape: Sequence[int] | None
    agent: str | None
    open_timeout_s: float
    shared_memory: str
    weights: str | None
    seed: int
    gpu_device_id: int
    cudnn_benchmark: bool | None


class SweepArguments(SharedArguments, total=False):
    """Further arguments of ``sweep``, beside those of ``SharedArguments``.

    Attributes:
        preprocess_threads: Threads that read and preprocess ahead; 0 for none.
        overlap: Preprocess while the model predicts; by default on a GPU only.
        agent_timeout_s: Timeout of the agent for one batch; by default 300.
        synthetic: Predict random tensors instead of a dataset's inputs, for speed only; so it is where a
            model without a manifest has no inputs.
        sequence_length: Size of dynamic axes in the tensors of ``synthetic``; by default 128; of images,
            max_dimension or 224.
        data_backend: Format of ``dataset``: recordio, caffe_lmdb, image_folder, npz, zip,
            ilsvrc2012_validation, cifar10, mnist, coco or voc; by default detected.
        dataset_category: Category of the dataset; by default any.
        sample_ids: The ids of the samples that count; by default all.
        partition_list_size: Inputs per part of the dataset; by default the batch size.
        num_file_parts: Parts to evaluate, once; -1 for all; by default all, and again for
            ``target_ci_percent``.
        warmup_num_file_parts: Parts to run first without measuring; by default 1.
        fail_on_error: Stop at the first input that fails; so it is for a model without a manifest.
        min_duration_s: Repeat the inputs until S seconds are measured.
        min_batches: Repeat the inputs until N full batches are measured.
        target_ci_percent: Repeat the inputs for a 95 % interval of p50 within ±PERCENT, for a time that a
            pilot sets; by default 5 for a whole dataset, not for URLs or deep traces.
        time_budget_s: End repeating after S seconds; by default 30 for ``target_ci_percent``.
        urls_file_path: File with one URL or path per line; blank lines and # comments are skipped, paths are
            relative to the file.
        duplicate_input: How often to repeat the list; by default 1.
        tracer_address: Collector that spans are sent to.
        trace_url: Where a person finds traces: the URL of a Jaeger, or one with {trace_id}; by default the
            collector's host.
        trace_level: Trace level: NO_TRACE, APPLICATION_TRACE, MODEL_TRACE, FRAMEWORK_TRACE, ML_LIBRARY_TRACE,
            SYSTEM_LIBRARY_TRACE, HARDWARE_TRACE, FULL_TRACE; by default APPLICATION_TRACE.
    """

    preprocess_threads: int | None
    overlap: bool | None
    agent_timeout_s: float
    synthetic: bool
    sequence_length: int | None
    data_backend: str | None
    dataset_category: str | None
    sample_ids: Sequence[str] | None
    partition_list_size: int | None
    num_file_parts: int | None
    warmup_num_file_parts: int
    fail_on_error: bool
    min_duration_s: float
    min_batches: int
    target_ci_percent: float | None
    time_budget_s: float | None
    urls_file_path: str | os.PathLike[str] | None
    duplicate_input: int
    tracer_address: str | None
    trace_url: str | None
    trace_level: str | None


class EvaluateArguments(SweepArguments, total=False):
    """Further arguments of ``evaluate``, beside those of ``SweepArguments``.

    Attributes:
        framework: Framework; by default the first installed one that has the model.
        gpu: Run on the GPU; an error if there is none.
        threads: CPU threads per operator; by default the agent's number, else OMP_NUM_THREADS, else the
            cores.
        precision: Type of the numbers that a model in code computes with; float is float32; by default the
            model's own, float32.
        batch_size: Inputs in a batch; by default 64, fewer for fewer inputs, 1 for a model of images of any
            size, or what a file fixes.
        repeat: Repeat N times, each in a fresh process, as one group; its last line is the interval over the
            processes; by default 1.
        leveled: Evaluate once at each level that a deeper one would disturb: MODEL_TRACE, FRAMEWORK_TRACE, on
            a GPU SYSTEM_LIBRARY_TRACE; ``trace_level`` names another deepest one.
    """

    framework: str | None
    gpu: bool
    threads: int | None
    precision: str | None
    batch_size: int | None
    repeat: int
    leveled: bool


class LoadArguments(SharedArguments, total=False):
    """Further arguments of ``workload`` and ``max_qps``, beside those of ``SharedArguments``.

    Attributes:
        framework: Framework; by default the first installed one that has the model.
        gpu: Run on the GPU; an error if there is none.
        threads: CPU threads per operator; by default the agent's number, else OMP_NUM_THREADS, else the
            cores.
        precision: Type of the numbers that a model in code computes with; float is float32; by default the
            model's own, float32.
        synthetic: Predict random tensors instead of a dataset's inputs, for speed only; so it is where a
            model without a manifest has no inputs.
        sequence_length: Size of dynamic axes in the tensors of ``synthetic``; by default 128; of images,
            max_dimension or 224.
        data_backend: Format of ``dataset``: recordio, caffe_lmdb, image_folder, npz, zip,
            ilsvrc2012_validation, cifar10, mnist, coco or voc; by default detected.
        sample_ids: The ids of the samples that count; by default all.
        tracer_address: Collector that spans are sent to.
        trace_url: Where a person finds traces: the URL of a Jaeger, or one with {trace_id}; by default the
            collector's host.
        initial_qps: Queries per second: the rate, or the start of a search; by default 16.
        arrival: Arrival process: constant, poisson, gamma:cv=2, bursts:on_s=1,off_s=1,
            ramp:from_share=0.1,to_share=1,over_s=60; by default poisson.
        percentile: Latency percentile that the bound applies to; by default 99.
        min_duration_s: Minimum duration of the run; by default 10, and 2 for a probe of a search.
        min_queries: Minimum number of queries; by default 512, and 100 for a probe of a search.
        timeout_ms: Timeout of a query, from the time it was due; by default 10000.
        warm_up_queries: Queries to send before the run without measuring them; by default 16.
        force: Send even more than this machine can send on time.
        max_batch_size: Maximum number of queries per batch, in this process; by default 1.
        max_queue_delay_ms: How long the first query of a batch waits for others.
        instances: Instances of the model, which predict at the same time, in this process; auto: as many as
            the cores allow with ``threads`` or OMP_NUM_THREADS each, or with one thread; on GPUs, one for
            each; by default 1.
        gpus: Run on these GPUs instead, by index, which the instances take in turn, in this process.
        pin: Bind each instance to cores of its own, as many as it has threads, in this process.
        include_preprocess: Also preprocess under load; by default inputs are preprocessed before the run.
        trace_sample: Trace this share of the queries; by default 0.01 with a collector, else 0.
        server_statistics_hz: How often per second to read the server's statistics during the run; 0 reads
            none; by default 2 if the model runs on a server.
        metrics_url: Also read Prometheus metrics of the server at this URL, or at several, with commas.
        repeat: Repeat N times, opening the model anew each time, as one group; by default 1.
    """

    framework: str | None
    gpu: bool
    threads: int | None
    precision: str | None
    synthetic: bool
    sequence_length: int | None
    data_backend: str | None
    sample_ids: Sequence[str] | None
    tracer_address: str | None
    trace_url: str | None
    initial_qps: float | None
    arrival: str | None
    percentile: float
    min_duration_s: float | None
    min_queries: int | None
    timeout_ms: float
    warm_up_queries: int
    force: bool
    max_batch_size: int
    max_queue_delay_ms: float
    instances: int | str
    gpus: str | None
    pin: bool
    include_preprocess: bool
    trace_sample: float | None
    server_statistics_hz: float | None
    metrics_url: str | None
    repeat: int


class WorkloadArguments(LoadArguments, total=False):
    """Further arguments of ``workload``, beside those of ``LoadArguments``.

    Attributes:
        latency_bound_ms: Latency bound for goodput and validity.
        duration_s: Duration of the run.
        schedule: Send queries at the offsets in this file: one per line in seconds, or a csv with offset_ns.
        write_schedule: Also write the schedule to this file, for use with ``schedule``.
        concurrency: Keep N queries in flight instead: each response triggers the next query (closed loop).
        scenario: Let MLPerf's LoadGen send a scenario instead, and compare its figures with ours:
            single_stream, multi_stream, server, offline.
    """

    latency_bound_ms: float | None
    duration_s: float | None
    schedule: str | os.PathLike[str] | None
    write_schedule: str | os.PathLike[str] | None
    concurrency: int | None
    scenario: str | None


class MaxQpsArguments(LoadArguments, total=False):
    """Further arguments of ``max_qps``, beside those of ``LoadArguments``.

    Attributes:
        latency_bound_ms: Bound for the latency percentile; by default 100.
        tolerance: Target for half the width of the answer's interval, by this search alone; by default 0.02.
        time_budget_s: Time limit of the search; by default 120.
    """

    latency_bound_ms: float
    tolerance: float
    time_budget_s: float


class ScoreArguments(TypedDict, total=False):
    """Further arguments of ``score``.

    They have the defaults of the commands.

    Attributes:
        score_border: Pixels at each edge of an enhanced image that do not count; by default 0.
        score_channels: Channels of enhanced images that count: all, or the luma; by default RGB.
        average_precision: Definition of the AP of objects; by default lvis for a dataset of LVIS, else coco.
        label_threshold: Lowest probability at which a class is predicted, for the task
            multilabel_classification; by default 0.5.
    """

    score_border: int | None
    score_channels: str | None
    average_precision: str | None
    label_threshold: float | None


class DeclaredDataArguments(TypedDict, total=False):
    """Further arguments of ``train`` and ``ingest``.

    They have the defaults of the commands.

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
    """Further arguments of ``train``.

    They have the defaults of the commands.

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
    """Further arguments of ``ingest``."""


class DeclaredOperatorArguments(TypedDict, total=False):
    """Further arguments of ``benchmark_operators``.

    They have the defaults of the commands.

    Attributes:
        cache: cold uses other inputs for each run, which together exceed the last-level cache; by default
            hot.
        target_ci: Measure until the half-width of the 95 % interval of p50 is at most this share of it, or
            until it gets no narrower; 0 for the whole budget; by default 0.5.
        time_budget: The maximum time for a row; by default 0.5.
        runs: Measure this many runs instead.
        warmup: The minimum number of warm-up runs, for each row; by default 3.
        seed: Seed of the inputs.
        processes: Fresh processes that measure each row, in turn; by default 1.
        values: Values of the inputs: random values from the table, zeros or ones; by default table.
    """

    cache: str
    target_ci: float
    time_budget: float
    runs: int | None
    warmup: int
    seed: int
    processes: int
    values: str
