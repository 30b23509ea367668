"""The command that runs an evaluation again, from what the evaluation keeps."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from inferometer.agent.hardware.device import DeviceKind
from inferometer.agent.inference.predictor import Precision, Weights
from inferometer.agent.inference.results import LOCAL_AGENT
from inferometer.agent.tracing.span import TraceLevel
from inferometer.client.op.repeating import allocator_words, unrepeated_sizes, words_again
from inferometer.evaluators.datasets.urls import CATEGORY as URLS
from inferometer.evaluators.evaluation import Evaluation, measures
from inferometer.evaluators.jobs import defaults
from inferometer.evaluators.measurements.batches import BatchMeasurement, BatchOptions
from inferometer.evaluators.measurements.load import LoadMeasurement, LoadOptions
from inferometer.evaluators.measurements.operators import OperatorMeasurement
from inferometer.evaluators.measurements.rate_search import RateSearchMeasurement
from inferometer.evaluators.measurements.training import TrainingMeasurement

_SYNTHETIC = "synthetic"
_LONGEST_LIST = 1000
"""How many characters of ids are written into the command."""


@dataclass(frozen=True, slots=True)
class Again:
    """How to run an evaluation again.

    Attributes:
        line: The command for a shell; empty where none repeats it.
        notes: What the command does not repeat, or requires, one line each.
    """

    line: str
    notes: tuple[str, ...] = ()


def again(evaluation: Evaluation) -> Again:
    """Returns the command with which an evaluation was run, as far as the evaluation tells.

    It names the model's version, what ran it and every option that differs from its default.
    """
    measurement = evaluation.measurement
    notes = list(_notes(evaluation))
    if measures(evaluation, BatchMeasurement):
        urls = evaluation.dataset.category == URLS
        words = ["urls" if urls else "dataset", *_system(evaluation), *_batches(evaluation, urls=urls)]
    elif isinstance(measurement, LoadMeasurement):
        if reason := _unrepeatable(measurement):
            return Again("", (reason, *notes))
        words = ["workload", *_system(evaluation), *_workload(evaluation, measurement)]
    elif isinstance(measurement, RateSearchMeasurement):
        words = ["max-qps", *_system(evaluation), *_search(evaluation, measurement.options)]
    elif isinstance(measurement, TrainingMeasurement):
        words = ["bench", "training", *_training(evaluation, measurement)]
        return Again(shlex.join(["agent", *words]), (*notes, *_training_notes(measurement)))
    elif measures(evaluation, OperatorMeasurement):
        if unrepeated_sizes(evaluation.measurement):
            notes.append("It had sizes of its own for several cases, which --cases=FILE.yaml gives.")
        return Again(shlex.join(["agent", "op", "run", *words_again(evaluation)]), tuple(notes))
    else:
        return Again(
            "", (f"No command is known that repeats an evaluation of kind {measurement.kind}.", *notes)
        )
    return Again(shlex.join(["agent", "predict", *words]), tuple(notes))


def _training(evaluation: Evaluation, training: TrainingMeasurement) -> Iterator[str]:
    system, options, data = evaluation.system, training.options, training.data
    yield f"--model={system.manifest.name}"
    yield f"--model_version={system.manifest.version}"
    yield f"--framework_name={system.manifest.framework.name}"
    yield from _value("weights", system.weights.value, Weights.RANDOM.value)
    yield f"--batch_size={options.batch_size}"
    yield from _value("num_batches", options.num_batches)
    yield from _value("num_epochs", options.num_epochs)
    yield from _value("num_warmup_batches", options.num_warmup_batches, 1)
    yield from _value("dtype", options.precision, Precision.FLOAT32.value)
    yield from _value("optimizer", options.optimizer, "sgd")
    yield from _value("lr", options.learning_rate, 0.01)
    yield from _value("momentum", options.momentum, 0.9)
    yield from _value("weight_decay", options.weight_decay, 1e-4)
    yield from _value("api", options.api or None)
    yield from _value("parts_every", options.parts_every, 10)
    yield from _value("seed", data.seed, 0)
    yield from allocator_words(system)
    if options.cudnn_benchmark is not None:
        yield f"--cudnn_benchmark={str(options.cudnn_benchmark).lower()}"
    if system.device.kind is DeviceKind.GPU:
        yield f"--num_gpus={options.devices}"
    elif system.device.kind is DeviceKind.CPU:
        yield from _value("threads", system.threads)
    yield from _value("num_ranks", options.ranks, 1)
    if options.communication:
        mxnet = system.manifest.framework.name == "MXNet"
        yield f"--{'kv_store' if mxnet else 'dist_backend'}={options.communication}"
    yield from _value("validation_dataset", training.validation or None)
    if data.backend == _SYNTHETIC:
        yield from _value("data", f"{_SYNTHETIC}/{data.place}", f"{_SYNTHETIC}/host")
        return
    yield f"--data_dir={evaluation.dataset.name}"
    yield f"--data_backend={data.backend}"
    yield f"--num_workers={data.workers}"
    yield from _value("loader", "processes" if data.processes else "threads", "threads")
    yield f"--prefetch={data.prefetch}"
    if data.shuffle:
        yield "--data_shuffle"


def _training_notes(training: TrainingMeasurement) -> Iterator[str]:
    if training.options.ranks > 1:
        yield "It had several ranks; those of a launcher such as torchrun are started by it again."


def _notes(evaluation: Evaluation) -> Iterator[str]:
    system, dataset = evaluation.system, evaluation.dataset
    if evaluation.process is not None:
        yield "It is one process of a group of --repeat; the command measures one more."
    if system.agent != LOCAL_AGENT:
        yield "It ran on a served agent, which may have other models and another load now."
    if dataset.version is None and dataset.category != _SYNTHETIC:
        yield "The dataset has no manifest: its path is the one on the machine that ran the command."
    if dataset.sample_ids is not None and not _are_short(dataset.sample_ids):
        yield (
            f"FILE must have the ids of the {dataset.size} samples, one a line, which "
            f"agent info evaluation show {evaluation.id} -f json gives."
        )


def _value(name: str, value: object, default: object = None) -> list[str]:
    """The option, where it differs from its default."""
    if value is None or value == default:
        return []
    return [f"--{name}={value:g}" if isinstance(value, float) else f"--{name}={value}"]


def _system(evaluation: Evaluation) -> Iterator[str]:
    system = evaluation.system
    manifest = system.manifest
    yield f"--model_name={manifest.name}"
    if system.agent == LOCAL_AGENT or "://" not in system.agent:
        yield f"--model_version={manifest.version}"
        yield f"--framework_name={manifest.framework.name}"
    if system.weights is Weights.RANDOM:
        yield "--weights=random"
    if system.precision not in {None, Precision.FLOAT32}:
        yield from _value("dtype", system.precision.value)
    if system.agent == LOCAL_AGENT:
        yield from allocator_words(system)
    if system.cudnn_benchmark is not None:
        yield f"--cudnn_benchmark={str(system.cudnn_benchmark).lower()}"
    if system.device.kind is DeviceKind.GPU:
        yield "--gpu"
        yield from _value("gpu_device_id", system.device.index, 0)
    elif system.device.kind is DeviceKind.CPU:
        yield from _value("threads", system.threads)
    if system.agent != LOCAL_AGENT:
        yield f"--agent={system.agent}"


def _dataset(evaluation: Evaluation) -> Iterator[str]:
    dataset = evaluation.dataset
    if dataset.category == _SYNTHETIC:
        yield "--synthetic"
    elif dataset.version is not None:
        yield f"--dataset_name={dataset.name}"
    else:
        yield f"--dataset_path={dataset.name}"
    if dataset.sample_ids is not None:
        yield f"--sample_ids={','.join(dataset.sample_ids) if _are_short(dataset.sample_ids) else 'FILE'}"


def _are_short(ids: Sequence[str]) -> bool:
    """Whether a list on the command line can name these samples."""
    listable = all(each == each.strip() and not set(each) & set(",\n\r") for each in ids)
    return listable and sum(map(len, ids)) <= _LONGEST_LIST


def _batches(evaluation: Evaluation[BatchMeasurement], *, urls: bool) -> Iterator[str]:
    options, system = evaluation.measurement.options, evaluation.system
    if urls:
        yield f"--urls_file_path={evaluation.dataset.name}"
    else:
        yield from _dataset(evaluation)
    yield from _value("seed", system.seed, 0)
    yield f"--batch_size={options.batch_size}"
    yield from _value("partition_list_size", options.partition_list_size, options.batch_size)
    yield f"--preprocess_threads={system.preprocess_threads}"
    if system.overlap != (system.device.kind is DeviceKind.GPU):
        yield f"--overlap={str(system.overlap).lower()}"
    yield from _length(options, urls=urls)
    yield from _value(
        "num_warmup_url_parts" if urls else "warmup_num_file_parts", options.warmup_num_file_parts, 1
    )
    if options.fail_on_error:
        yield "--fail_on_error"
    if evaluation.trace_level is not TraceLevel.APPLICATION_TRACE:
        yield f"--trace_level={evaluation.trace_level.name}"


def _length(options: BatchOptions, *, urls: bool) -> Iterator[str]:
    parts = "num_urls_parts" if urls else "num_file_parts"
    if options.num_file_parts > 0 or not options.repeats:
        yield from _value(parts, options.num_file_parts, -1 if urls else None)
    yield from _value("min_duration", options.min_duration_s, 0.0)
    yield from _value("min_batches", options.min_batches, 0)
    yield from _value("target_ci", options.target_ci_percent)
    yield from _value("time_budget", options.time_budget_s)


def _load(evaluation: Evaluation, options: LoadOptions) -> Iterator[str]:
    yield from _dataset(evaluation)
    yield from _value("seed", options.seed, 0)
    yield from _value("percentile", options.percentile, defaults.PERCENTILE)
    yield from _value("timeout_ms", options.timeout_ms, defaults.QUERY_TIMEOUT_MS)
    yield from _value("warmup", options.warm_up_queries, defaults.WARM_UP_QUERIES)
    yield from _value("max_batch_size", options.max_batch_size, 1)
    yield from _value("max_queue_delay_ms", options.max_queue_delay_ms, 0.0)
    if options.include_preprocess:
        yield "--include_preprocess"


def _unrepeatable(load: LoadMeasurement) -> str:
    """Why no command repeats a workload; empty where one does."""
    of_file = load.options.concurrency is None and load.options.scenario is None and load.run.seed is None
    return f"Its schedule came from the file {load.run.source}, which the evaluation does not keep." * of_file


def _workload(evaluation: Evaluation, load: LoadMeasurement) -> Iterator[str]:
    options = load.options
    yield from _load(evaluation, options)
    yield from _value("latency_bound", options.latency_bound_ms)
    if options.scenario is not None:
        yield f"--scenario={options.scenario.value}"
        yield from _value("initial_qps", options.rate_qps or None)
    elif options.concurrency is not None:
        yield f"--concurrency={options.concurrency}"
    else:
        yield from _value("initial_qps", options.rate_qps)
        yield f"--arrival={options.arrival}"
    if options.max_duration_s is not None:
        yield from _value("duration", options.max_duration_s)
    else:
        yield from _value("min_duration", options.min_duration_s)
        yield from _value("min_queries", options.min_queries)


def _search(evaluation: Evaluation, options: LoadOptions) -> Iterator[str]:
    yield from _load(evaluation, options)
    yield from _value("latency_bound", options.latency_bound_ms)
    yield from _value("initial_qps", options.rate_qps)
    yield f"--arrival={options.arrival}"
    yield from _value("min_duration", options.min_duration_s)
    yield from _value("min_queries", options.min_queries)
    yield from _value("tolerance", options.tolerance)
    yield from _value("time_budget", options.time_budget_s)
