"""One side of a comparison: evaluations that are alike, and in what two sides differ."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from evaluators.comparing.run_times import RunTimes
from evaluators.evaluation import Accuracy, Evaluation, Status
from evaluators.loadgen.record import LoadKind, LoadRecord, RateAnswer
from evaluators.store.base import DATASET
from manifests.errors import ConfigurationError

_KINDS = {
    DATASET: "an evaluation batch by batch",
    LoadKind.WORKLOAD.value: "a workload",
    LoadKind.MAX_QPS.value: "a search for the highest rate",
}
_QUESTION = {"load", "concurrency", "percentile", "latency bound"}
"""Facts that two sides must share: with another one the figure answers another question."""
_OF_THE_MACHINE = {"host", "inferscope"}
"""Facts in which the evaluations of one side may differ."""
_SYNTHETIC = "synthetic"
_FILES = "model files"
_OF_THE_SCHEDULE = {"load", "duration", "queries"}
"""Facts that are the same where the schedule is, however it came about."""
_CHANGES_WITH_TIME = ("ramp", "bursts")
"""Arrival processes of which a longer part is another load."""
_TELL_OF_FILES = {"model", "framework", "weights"}
"""Facts that say already that the files are others."""
_CHECKSUM_DIGITS = 12


@dataclass(frozen=True, slots=True, eq=False)
class Side:
    """The evaluations of one side: of one kind, and alike in all that is measured.

    Attributes:
        name: What it is called in messages.
        evaluations: At least one, each complete.

    Raises:
        ConfigurationError: There is none, one is not to be compared, or they are not alike.
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
                if name not in _OF_THE_MACHINE:
                    raise ConfigurationError(
                        f"{self.name} mixes evaluations with {name} {one} and {another}, such as {first.id} "
                        f"and {other.id}; those of one side must be alike"
                    )

    @property
    def kind(self) -> str:
        """``dataset``, ``workload`` or ``max_qps``."""
        return _kind(self.evaluations[0])

    @property
    def profiled(self) -> Evaluation | None:
        """An evaluation that ran under a profiler; None if there is none."""
        return next((each for each in self.evaluations if each.profiled), None)

    @property
    def due_at_once(self) -> bool:
        """Whether it is a workload of which all queries were due at once; see ``Queries.due_at_once``."""
        load = self.evaluations[0].load
        return self.kind == LoadKind.WORKLOAD.value and load is not None and load.runs[0].queries.due_at_once

    @property
    def accuracies(self) -> Sequence[Accuracy]:
        """Those that count something."""
        return [e.accuracy for e in self.evaluations if e.accuracy is not None and e.accuracy.evaluated]

    @property
    def answers(self) -> Sequence[RateAnswer]:
        """Those of searches."""
        return [e.load.answer for e in self.evaluations if e.load is not None and e.load.answer is not None]

    def run_times(self) -> Sequence[RunTimes]:
        """The times of each run: of its full batches, or of its queries without the empty start.

        Raises:
            ConfigurationError: A run has none.
        """
        return [_run_times(self.name, evaluation) for evaluation in self.evaluations]

    def differences(self, other: Side) -> Iterator[str]:
        """Yields in what another side differs, each as ``batch size: 16 (A), 64 (B)``."""
        for name, left, right in self._differences(other):
            yield f"{name}: {left} ({self.name}), {right} ({other.name})"

    def check_comparable(self, other: Side) -> None:
        """Makes sure that the figures of another side answer the same question.

        Raises:
            ConfigurationError: They do not.
        """
        if self.kind != other.kind:
            raise ConfigurationError(
                f"{self.name} is {_KINDS[self.kind]} and {other.name} {_KINDS[other.kind]}; "
                "compare evaluations of one kind"
            )
        for name, left, right in self._differences(other):
            if name in _QUESTION:
                raise ConfigurationError(
                    f"{self.name} has {name} {left} and {other.name} {right}, so that their figures answer "
                    "different questions; compare evaluations with the same"
                )

    def _differences(self, other: Side) -> Iterator[tuple[str, str, str]]:
        """The facts in which an evaluation differs from one of another side, each once."""
        pairs = ((one, two) for one in self.evaluations for two in other.evaluations)
        yield from dict.fromkeys(found for one, two in pairs for found in _differences(one, two))

    def same_inputs(self, other: Side) -> bool:
        """Whether both were evaluated over the same inputs."""
        names = {name for name, *_ in _differences(self.evaluations[0], other.evaluations[0])}
        return not names & {"dataset", "inputs"}


def _kind(evaluation: Evaluation) -> str:
    return DATASET if evaluation.load is None else evaluation.load.options.kind.value


def _unfit(evaluation: Evaluation) -> str:
    """Why an evaluation is not to be compared; empty where it may be."""
    if evaluation.status is not Status.COMPLETE:
        return f"is {evaluation.status.value}: its figures are of a part; leave it out"
    load = evaluation.load
    if load is None:
        return ""
    if load.options.kind is LoadKind.MAX_QPS:
        return "" if load.answer is not None else "has no answer; leave it out"
    for run in load.runs:
        if run.invalid:
            return f"is INVALID: {run.invalid}; its figures are not to be trusted, run it again"
        if run.stopped:
            return f"was stopped: {run.stopped}; its figures are of a part, run it again at a lower rate"
    return "" if load.runs else "has no run; leave it out"


def _run_times(side: str, evaluation: Evaluation) -> RunTimes:
    if evaluation.load is None:
        batches, batch_size = evaluation.batches, evaluation.options.batch_size
        full_ns = batches.full(batch_size)
        if not len(full_ns):
            raise ConfigurationError(
                f"{side}: evaluation {evaluation.id} has no batch that held {batch_size} inputs, and so no "
                "latency; evaluate with a smaller --batch_size"
            )
        return RunTimes.of_batches(full_ns, batches.sizes[batches.sizes == batch_size])
    run = evaluation.load.runs[0]
    try:
        return RunTimes.of_queries(run.queries.since(run.cut_ns))
    except ValueError as error:
        raise ConfigurationError(f"{side}: evaluation {evaluation.id} has no query that counts") from error


def _differences(one: Evaluation, other: Evaluation) -> Iterator[tuple[str, str, str]]:
    """The facts in which two evaluations differ: the name, and both."""
    left, right = _facts(one), _facts(other)
    alike = _OF_THE_SCHEDULE if _same_schedule(one, other) else set()
    names = dict.fromkeys(name for name in (*left, *right) if name not in alike)
    differing = [name for name in names if left.get(name) != right.get(name)]
    for name in differing:
        if name != _FILES or not _TELL_OF_FILES & set(differing):
            yield name, left.get(name, "none"), right.get(name, "none")


def _same_schedule(one: Evaluation, other: Evaluation) -> bool:
    """Whether queries of two workloads were due at the same times, drawn or read from a file."""
    left, right = (_checksum(each.load) for each in (one, other))
    return bool(left) and left == right


def _checksum(load: LoadRecord | None) -> str:
    """The checksum of the schedule of a workload; empty where there is none."""
    return load.runs[0].checksum if load and load.options.kind is LoadKind.WORKLOAD and load.runs else ""


def _facts(evaluation: Evaluation) -> Mapping[str, str]:
    """What was measured, on what and how, by name."""
    system, machine, dataset = evaluation.system, evaluation.system.environment, evaluation.dataset
    manifest, device = system.manifest, system.device
    files = ", ".join(f"{part} {_short(checksum)}" for part, checksum in sorted(system.checksums.items()))
    named = (dataset.name, dataset.version, _short(dataset.checksum or ""))
    if dataset.category == _SYNTHETIC:  # whose name has the seed
        named = (f"{dataset.size} synthetic inputs", None, "")
    gpus = ", ".join(dict.fromkeys(gpu.name for gpu in machine.gpus)) if device.is_gpu else ""
    facts = {
        "kind": _KINDS[_kind(evaluation)],
        "model": f"{manifest.name} {manifest.version}",
        "framework": f"{manifest.framework.name} {system.framework_version}",
        "weights": system.weights.value,  # random ones take as long whatever their seed
        _FILES: files or "none",
        "dataset": " ".join(filter(None, named)),
        "device": f"{device} ({gpus})" if gpus else str(device),
        "threads": str(system.threads or "not known"),
        "agent": "this process" if system.agent == "local" else "served",
        "host": f"{machine.hostname} ({machine.cpu_model}, {machine.usable_cores} cores)"
        if machine.is_known
        else "not known",
        "inferscope": machine.inferscope_version,
    }
    return {
        **facts,
        **(_batch_facts(evaluation) if evaluation.load is None else _load_facts(evaluation.load)),
    }


def _batch_facts(evaluation: Evaluation) -> Mapping[str, str]:
    options, system = evaluation.options, evaluation.system
    return {
        "batch size": str(options.batch_size),
        "inputs": str(int(evaluation.batches.sizes.sum()) + len(evaluation.failures)),
        "trace level": options.trace_level.name,
        "preprocessing": f"{system.preprocess_threads} threads"
        + (" while the model predicts" if system.overlap else ""),
    }


def _load_facts(load: LoadRecord) -> Mapping[str, str]:
    options = load.options
    facts = {
        "max batch size": str(options.max_batch_size),
        "max queue delay": f"{options.max_queue_delay_ms:g} ms",
        "preprocessing": "under load" if options.include_preprocess else "before",
        "timeout": f"{options.timeout_ms:g} ms",
    }
    if options.concurrency is not None:
        facts["concurrency"] = str(options.concurrency)
    if options.kind is LoadKind.MAX_QPS:
        bound = "none" if options.latency_bound_ms is None else f"{options.latency_bound_ms:g} ms"
        return facts | {
            "load": options.arrival,
            "percentile": f"{options.percentile:g}",
            "latency bound": bound,
        }
    return facts | _schedule_facts(load)


def _schedule_facts(load: LoadRecord) -> dict[str, str]:
    """Which queries a workload sent, for how long, and how many."""
    options, [run, *_] = load.options, load.runs
    if options.concurrency is None and options.scenario is None and run.seed is None:
        # of a file, whose name says little; how long it is belongs to it
        return {"load": f"{run.source} ({_short(run.checksum)}) at {run.rate_qps:g} queries/s"}
    if options.max_duration_s is not None:
        duration, queries = f"{options.max_duration_s:g} s", "as many as are due"
    else:
        duration, queries = f"at least {options.min_duration_s:g} s", f"at least {options.min_queries}"
    facts = {"duration": duration, "queries": queries}
    if options.concurrency is not None:
        return facts
    load_text = options.arrival + (f" at {options.rate_qps:g} queries/s" if options.rate_qps else "")
    if options.arrival.partition(":")[0] in _CHANGES_WITH_TIME:
        more = "" if options.max_duration_s is not None else f" and {queries} queries"
        return {"load": f"{load_text} for {duration}{more}"}
    return {"load": load_text, **facts}


def _short(checksum: str) -> str:
    """The beginning of a checksum, enough to tell two apart."""
    algorithm, _, digits = checksum.partition(":")
    return f"{algorithm}:{digits[:_CHECKSUM_DIGITS]}" if digits else checksum
