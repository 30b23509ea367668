"""The sides of a comparison: evaluations of one configuration, and the differences between two sides."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from inferometer.evaluators.comparing.machines import (
    CUDNN_BENCHMARK,
    is_of_the_framework,
    is_of_the_machine,
    machine_conditions,
    not_comparable,
    nothing_told,
)
from inferometer.evaluators.comparing.times import RunTimes
from inferometer.evaluators.evaluation import Evaluation, Status, of_kind
from inferometer.evaluators.max_qps.answer import invalid_reason
from inferometer.evaluators.measurements.batches import Accuracy, BatchMeasurement
from inferometer.evaluators.measurements.ingestion import IngestionMeasurement
from inferometer.evaluators.measurements.load import LoadMeasurement, LoadOptions
from inferometer.evaluators.measurements.measurement import Measurement
from inferometer.evaluators.measurements.operators import OperatorMeasurement
from inferometer.evaluators.measurements.rate_search import RateAnswer, RateSearchMeasurement
from inferometer.evaluators.measurements.training import TrainingMeasurement
from inferometer.evaluators.tasks.scores import TaskResult
from inferometer.manifests.errors import ConfigurationError

DIFFERS = "differs: "
"""How a note begins that names a condition in which the sides differ."""
_QUESTION = {"load", "concurrency", "percentile", "latency bound"}
"""Conditions that two sides must share: under others, a figure answers another question."""
_SYNTHETIC = "synthetic"
_FILES = "model files"
_SAMPLES = "samples of the dataset"
_OF_THE_SCHEDULE = {"load", "duration", "queries"}
"""Conditions that are equal for equal schedules, whatever their source."""
_CHANGES_WITH_TIME = ("ramp", "bursts")
"""Arrival processes whose load depends on the duration."""
_EXPLAIN_FILES = {"model", "framework", "weights"}
"""Conditions that explain a difference of the files."""
_PRECISION = "precision"
_CHECKSUM_DIGITS = 12


@dataclass(frozen=True, slots=True, eq=False)
class Side:
    """The evaluations of one side: of one kind, and measured under the same conditions.

    Attributes:
        name: Its name in messages.
        evaluations: At least one, each complete.

    Raises:
        ConfigurationError: There is none, one cannot be compared, or their conditions differ.
    """

    name: str
    evaluations: tuple[Evaluation, ...]

    def __post_init__(self) -> None:
        if not self.evaluations:
            raise ConfigurationError(f"{self.name} holds no evaluation that can be compared")
        for evaluation in self.evaluations:
            if reason := _unfit(evaluation):
                raise ConfigurationError(f"{self.name}: evaluation {evaluation.id} {reason}")
        first, *others = self.evaluations
        for other in others:
            for name, one, another in _differences(first, other):
                if not is_of_the_machine(name) and not self._may_mix(name):
                    raise ConfigurationError(
                        f"{self.name} mixes evaluations with {name} {one} and {another}, such as {first.id} "
                        f"and {other.id}; those of one side must be alike"
                    )

    def _may_mix(self, name: str) -> bool:
        """Whether a condition may differ because each evaluation of the side is of another framework."""
        return self.kind is OperatorMeasurement and is_of_the_framework(name)

    @property
    def kind(self) -> type[Measurement]:
        """The kind of measurement of its evaluations."""
        return type(self.evaluations[0].measurement)

    @property
    def due_at_once(self) -> bool:
        """Whether it is a workload whose queries were all due at once; see ``Queries.due_at_once``."""
        return any(
            each.measurement.run.queries.due_at_once
            for each in of_kind(self.evaluations[:1], LoadMeasurement)
        )

    @property
    def accuracies(self) -> Sequence[Accuracy]:
        """The accuracies with evaluated inputs."""
        every = [each.measurement.accuracy for each in of_kind(self.evaluations, BatchMeasurement)]
        return [accuracy for accuracy in every if accuracy is not None and accuracy.evaluated]

    @property
    def first_result(self) -> TaskResult | None:
        """The first evaluation's result of a task; None if none has one."""
        every = (each.measurement.task_result for each in of_kind(self.evaluations, BatchMeasurement))
        return next((each for each in every if each is not None), None)

    @property
    def answers(self) -> Sequence[RateAnswer]:
        """The answers of searches."""
        every = [each.measurement.answer for each in of_kind(self.evaluations, RateSearchMeasurement)]
        return [answer for answer in every if answer is not None]

    def run_times(self) -> Sequence[RunTimes]:
        """The times of each run: of its full batches, or of its queries without the empty start.

        Raises:
            ConfigurationError: A run has none.
        """
        times = []
        for evaluation in self.evaluations:
            try:
                times.append(_KINDS[self.kind].run_times(evaluation))
            except ValueError as error:
                raise ConfigurationError(f"{self.name}: evaluation {evaluation.id} has no {error}") from error
        return times

    def differences(self, other: Side) -> Iterator[str]:
        """Yields the differences from another side, each as ``batch size: 16 (A), 64 (B)``."""
        for name, left, right in self.differing(other):
            yield f"{name}: {left} ({self.name}), {right} ({other.name})"

    def check_comparable(self, other: Side) -> None:
        """Checks that the figures of another side answer the same question.

        Raises:
            ConfigurationError: They do not.
        """
        if self.kind != other.kind:
            raise ConfigurationError(
                f"{self.name} is {_KINDS[self.kind].name} and {other.name} {_KINDS[other.kind].name}; "
                "compare evaluations of one kind"
            )
        for name, left, right in self.differing(other):
            if name in _QUESTION:
                raise ConfigurationError(
                    f"{self.name} has {name} {left} and {other.name} {right}, so that their figures answer "
                    "different questions; compare evaluations with the same"
                )

    def differing(self, other: Side) -> Iterator[tuple[str, str, str]]:
        """Yields the distinct differences from another side: the condition, its value here and there."""
        pairs = ((one, two) for one in self.evaluations for two in other.evaluations)
        yield from dict.fromkeys(found for one, two in pairs for found in _differences(one, two))

    def same_inputs(self, other: Side) -> bool:
        """Whether both sides cover the same inputs."""
        names = {name for name, *_ in _differences(self.evaluations[0], other.evaluations[0])}
        return not names & {"dataset", _SAMPLES, "inputs"}


def _unfit(evaluation: Evaluation) -> str:
    """The reason why an evaluation cannot be compared; empty for none."""
    if evaluation.status is Status.FAILED:
        return "is failed: all of its inputs are; leave it out"
    if evaluation.status is not Status.COMPLETE:
        return f"is {evaluation.status.value}: its figures cover only a part; leave it out"
    kind = _KINDS.get(type(evaluation.measurement))
    if kind is None:
        return f"is of kind {evaluation.measurement.kind}, which cannot be compared"
    return kind.unfit(evaluation.measurement)


def _differences(one: Evaluation, other: Evaluation) -> Iterator[tuple[str, str, str]]:
    """The conditions in which two evaluations differ: the name, and both values."""
    left, right = _conditions(one), _conditions(other)
    frameworks = {each.system.manifest.framework.name for each in (one, other)}
    left_out = not_comparable(left, right, same_framework=len(frameworks) == 1)
    if _PRECISION in set(left) ^ set(right):  # a file's own precision is not known
        left_out |= {_PRECISION}
    if _same_schedule(one, other):
        left_out |= _OF_THE_SCHEDULE
    names = dict.fromkeys(name for name in (*left, *right) if name not in left_out)
    differing = [name for name in names if left.get(name) != right.get(name)]
    for name in differing:
        if name != _FILES or not _EXPLAIN_FILES & set(differing):
            nothing = nothing_told(name)
            yield name, left.get(name, nothing), right.get(name, nothing)


def _same_schedule(one: Evaluation, other: Evaluation) -> bool:
    """Whether the queries of two workloads were due at the same times, generated or from a file."""
    checksums = [each.measurement.run.checksum for each in of_kind((one, other), LoadMeasurement)]
    return len(checksums) == 2 and checksums[0] == checksums[1] != ""


def _conditions(evaluation: Evaluation) -> Mapping[str, str]:
    """The conditions of an evaluation by name: the system, the dataset and the options."""
    system, dataset = evaluation.system, evaluation.dataset
    manifest, device = system.manifest, system.device
    files = ", ".join(f"{part} {_short(checksum)}" for part, checksum in sorted(system.checksums.items()))
    named = (dataset.name, dataset.version, _short(dataset.checksum or ""))
    if dataset.category == _SYNTHETIC:  # whose name has the seed
        named = (f"{dataset.size} synthetic inputs", None, "")
    gpus = ", ".join(dict.fromkeys(gpu.name for gpu in system.environment.gpus)) if device.is_gpu else ""
    kind = _KINDS[type(evaluation.measurement)]
    asked = {} if system.precision is None else {_PRECISION: system.precision.value}
    if device.is_gpu and system.cudnn_benchmark is not None:
        asked[CUDNN_BENCHMARK] = str(system.cudnn_benchmark).lower()
    return {
        "kind": kind.name,
        "model": f"{manifest.name} {manifest.version}",
        "framework": f"{manifest.framework.name} {system.framework_version}",
        "weights": system.weights.value,  # random ones take as long whatever their seed
        _FILES: files or "none",
        "dataset": " ".join(filter(None, named)),
        _SAMPLES: dataset.chosen_samples or "all",
        "device": f"{device} ({gpus})" if gpus else str(device),
        "threads": str(system.threads or "not known"),
        "agent": "this process" if system.agent == "local" else "served",
        **asked,
        **machine_conditions(system),
        **kind.conditions(evaluation),
    }


def _batch_times(evaluation: Evaluation[BatchMeasurement]) -> RunTimes:
    measurement = evaluation.measurement
    sizes, batch_size, full_ns = measurement.times.sizes, measurement.batch_size, measurement.full_ns
    if not len(full_ns):
        raise ValueError(
            f"batch that held {batch_size} inputs, and so no latency; evaluate with a smaller --batch_size"
        )
    return RunTimes.of_batches(full_ns, sizes[sizes == batch_size])


def _batch_conditions(evaluation: Evaluation[BatchMeasurement]) -> dict[str, str]:
    measurement, system = evaluation.measurement, evaluation.system
    inputs = measurement.predicted_inputs + len(measurement.failures)
    if measurement.options.repeats:  # how often differs from run to run
        inputs = measurement.options.inputs_of(evaluation.dataset.size)
    return {
        "batch size": str(measurement.batch_size),
        "inputs": str(inputs),
        "trace level": evaluation.trace_level.name,
        "preprocessing": f"{system.preprocess_threads} threads"
        + (" while the model predicts" if system.overlap else ""),
    }


def _training_times(evaluation: Evaluation[TrainingMeasurement]) -> RunTimes:
    measured = evaluation.measurement
    if not len(measured.full_ns):
        raise ValueError("full step; train with a smaller --batch_size")
    return RunTimes.of_batches(measured.full_ns, measured.times.step_samples[measured.full])


def _training_conditions(evaluation: Evaluation[TrainingMeasurement]) -> dict[str, str]:
    options, data = evaluation.measurement.options, evaluation.measurement.data
    return {
        "batch size": str(options.batch_size),
        "devices": f"{options.devices * options.ranks} ({options.communication or 'alone'})",
        "optimizer": f"{options.optimizer}, learning rate {options.learning_rate:g}, momentum "
        f"{options.momentum:g}, weight decay {options.weight_decay:g}",
        "data": f"{data.backend}{f'/{data.place}' if data.place else ''}",
        "loader": str(data),
        "parts timed": f"every {options.parts_every} steps" if options.parts_every else "never",
    }


def _unfit_load(load: LoadMeasurement) -> str:
    if load.run.invalid:
        return f"is INVALID: {load.run.invalid}; its figures are not to be trusted, run it again"
    if load.run.stopped:
        return f"was stopped: {load.run.stopped}; its figures cover only a part, run it again at a lower rate"
    return ""


def _unfit_search(search: RateSearchMeasurement) -> str:
    if search.answer is None:
        return "has no answer; leave it out"
    reason = invalid_reason(search)
    return f"is INVALID: {reason}; its answer is not to be trusted, run it again" if reason else ""


def _load_times(evaluation: Evaluation[LoadMeasurement]) -> RunTimes:
    run = evaluation.measurement.run
    try:
        return RunTimes.of_queries(run.queries.since(run.cut_ns))
    except ValueError as error:
        raise ValueError("query that counts") from error


def _no_times(evaluation: Evaluation) -> RunTimes:
    raise ValueError("times of its own, as it is a search")


def _options_of(options: LoadOptions) -> dict[str, str]:
    conditions = {
        "max batch size": str(options.max_batch_size),
        "max queue delay": f"{options.max_queue_delay_ms:g} ms",
        "preprocessing": "under load" if options.include_preprocess else "before",
        "timeout": f"{options.timeout_ms:g} ms",
    }
    if options.concurrency is not None:
        conditions["concurrency"] = str(options.concurrency)
    return conditions


def _search_conditions(evaluation: Evaluation[RateSearchMeasurement]) -> dict[str, str]:
    options = evaluation.measurement.options
    bound = "none" if options.latency_bound_ms is None else f"{options.latency_bound_ms:g} ms"
    question = {"load": options.arrival, "percentile": f"{options.percentile:g}", "latency bound": bound}
    return _options_of(options) | question


def _load_conditions(evaluation: Evaluation[LoadMeasurement]) -> dict[str, str]:
    """The options, and the queries that a workload sent, for how long, and how many."""
    options, run = evaluation.measurement.options, evaluation.measurement.run
    conditions = _options_of(options)
    if options.concurrency is None and options.scenario is None and run.seed is None:
        # a file, which is identified by its checksum and determines the duration
        return conditions | {"load": f"{run.source} ({_short(run.checksum)}) at {run.rate_qps:g} queries/s"}
    if options.max_duration_s is not None:
        duration, queries = f"{options.max_duration_s:g} s", "as many as are due"
    else:
        duration, queries = f"at least {options.min_duration_s:g} s", f"at least {options.min_queries}"
    length = {"duration": duration, "queries": queries}
    if options.concurrency is not None:
        return conditions | length
    load_text = options.arrival + (f" at {options.rate_qps:g} queries/s" if options.rate_qps else "")
    if options.arrival.partition(":")[0] in _CHANGES_WITH_TIME:
        more = "" if options.max_duration_s is not None else f" and {queries} queries"
        return conditions | {"load": f"{load_text} for {duration}{more}"}
    return conditions | {"load": load_text, **length}


def _short(checksum: str) -> str:
    """The beginning of a checksum, enough to tell two apart."""
    algorithm, _, digits = checksum.partition(":")
    return f"{algorithm}:{digits[:_CHECKSUM_DIGITS]}" if digits else checksum


def _ingestion_times(evaluation: Evaluation[IngestionMeasurement]) -> RunTimes:
    measured = evaluation.measurement
    if not len(measured.full_ns):
        raise ValueError("full batch; load with a smaller --batch_size")
    return RunTimes.of_batches(measured.full_ns, measured.times.samples[measured.full])


def _ingestion_conditions(evaluation: Evaluation[IngestionMeasurement]) -> dict[str, str]:
    measured, data = evaluation.measurement, evaluation.measurement.data
    return {
        "batch size": str(measured.batch_size),
        "data": data.backend,
        "reader": data.reader,
        "loader": str(data),
        "in the page cache": _cached(data.cached_before),
    }


def _operator_conditions(evaluation: Evaluation[OperatorMeasurement]) -> dict[str, str]:
    options = evaluation.measurement.options
    return {
        "dataset": evaluation.dataset.name,  # whose size is the number of rows, which differs by framework
        "element type": options.dtype,
        "cache": options.cache.value,
        "seed": str(options.seed),
    }


def _no_common_times(evaluation: Evaluation) -> RunTimes:
    raise ValueError("times of its own, as each of its rows has them")


def _cached(share: float | None) -> str:
    """How much of a dataset was in the page cache, as far as it makes a difference."""
    if share is None:
        return "not known"
    return "nothing" if share < _HARDLY else "all" if share > 1 - _HARDLY else f"{100 * share:.0f} %"


_HARDLY = 0.01


@dataclass(frozen=True, slots=True)
class _Kind:
    """The comparison of one kind of measurement: its name, why one is unfit, its conditions and its times.

    ``run_times`` raises ``ValueError`` with what the evaluation lacks.
    """

    name: str
    unfit: Callable[[Any], str]
    conditions: Callable[[Evaluation[Any]], Mapping[str, str]]
    run_times: Callable[[Evaluation[Any]], RunTimes]


_KINDS: Mapping[type[Measurement], _Kind] = {
    BatchMeasurement: _Kind("an evaluation batch by batch", lambda _: "", _batch_conditions, _batch_times),
    LoadMeasurement: _Kind("a workload", _unfit_load, _load_conditions, _load_times),
    TrainingMeasurement: _Kind("a training", lambda _: "", _training_conditions, _training_times),
    IngestionMeasurement: _Kind("a run of a loader", lambda _: "", _ingestion_conditions, _ingestion_times),
    OperatorMeasurement: _Kind(
        "a benchmark of operators", lambda _: "", _operator_conditions, _no_common_times
    ),
    RateSearchMeasurement: _Kind(
        "a search for the highest rate",
        _unfit_search,
        _search_conditions,
        _no_times,
    ),
}
"""The kinds of measurement that can be compared."""
