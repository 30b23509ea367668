"""The sides of a comparison: evaluations of one configuration, and the differences between two sides."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
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
from inferometer.evaluators.datasets.base import short_checksum
from inferometer.evaluators.evaluation import Evaluation, Status
from inferometer.evaluators.kinds.batches.measurement import Accuracy
from inferometer.evaluators.kinds.kind import Kind
from inferometer.evaluators.kinds.rate_search.measurement import RateAnswer
from inferometer.evaluators.kinds.registry import kind_of
from inferometer.evaluators.tasks.scores import TaskResult
from inferometer.manifests.errors import ConfigurationError

DIFFERS = "differs: "
"""The prefix of a note that names a condition in which the sides differ."""
_QUESTION = {"load", "concurrency", "percentile", "latency bound"}
"""Conditions that two sides must share: under others, a figure answers another question."""
_SYNTHETIC = "synthetic"
_FILES = "model files"
_SAMPLES = "samples of the dataset"
_EXPLAIN_FILES = {"model", "framework", "weights"}
"""Conditions that explain a difference of the files."""
_PRECISION = "precision"


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
        """Returns whether a condition may differ because each evaluation has another framework."""
        return self.kind.mixes_frameworks and is_of_the_framework(name)

    @property
    def kind(self) -> Kind[Any]:
        """The kind of measurement of its evaluations."""
        return kind_of(self.evaluations[0])

    @property
    def measurements(self) -> Sequence[Any]:
        """The measurements of its evaluations, all of one kind."""
        return [each.measurement for each in self.evaluations]

    @property
    def accuracies(self) -> Sequence[Accuracy]:
        """The accuracies with evaluated inputs."""
        every = map(self.kind.accuracy, self.measurements)
        return [accuracy for accuracy in every if accuracy is not None and accuracy.evaluated]

    @property
    def first_result(self) -> TaskResult | None:
        """The first evaluation's result of a task; None if none has one."""
        return next((each for each in map(self.kind.result, self.measurements) if each is not None), None)

    @property
    def answers(self) -> Sequence[RateAnswer]:
        """The answers of searches."""
        return [answer for answer in map(self.kind.answer, self.measurements) if answer is not None]

    def run_times(self) -> Sequence[RunTimes]:
        """Returns the times of each run: of its full batches, or of its queries without the empty start.

        Raises:
            ConfigurationError: A run has none.
        """
        times = []
        for evaluation in self.evaluations:
            try:
                times.append(self.kind.run_times(evaluation))
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
        if self.kind is not other.kind:
            raise ConfigurationError(
                f"{self.name} is {self.kind.phrase} and {other.name} {other.kind.phrase}; "
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
        """Returns whether both sides cover the same inputs."""
        names = {name for name, *_ in _differences(self.evaluations[0], other.evaluations[0])}
        return not names & {"dataset", _SAMPLES, "inputs"}


def _unfit(evaluation: Evaluation) -> str:
    """Returns the reason why an evaluation cannot be compared; empty for none."""
    if evaluation.status is Status.FAILED:
        return "is failed: all of its inputs are; leave it out"
    if evaluation.status is not Status.COMPLETE:
        return f"is {evaluation.status.value}: its figures cover only a part; leave it out"
    return kind_of(evaluation).unfit(evaluation.measurement)


def _differences(one: Evaluation, other: Evaluation) -> Iterator[tuple[str, str, str]]:
    """Yields the conditions in which two evaluations differ: the name, and both values."""
    left, right = _conditions(one), _conditions(other)
    frameworks = {each.system.manifest.framework.name for each in (one, other)}
    left_out = not_comparable(left, right, same_framework=len(frameworks) == 1)
    if _PRECISION in set(left) ^ set(right):  # a file's own precision is not known
        left_out |= {_PRECISION}
    if (kind := kind_of(one)) is kind_of(other):
        left_out |= set(kind.equal_conditions(one.measurement, other.measurement))
    names = dict.fromkeys(name for name in (*left, *right) if name not in left_out)
    differing = [name for name in names if left.get(name) != right.get(name)]
    for name in differing:
        if name != _FILES or not _EXPLAIN_FILES & set(differing):
            nothing = nothing_told(name)
            yield name, left.get(name, nothing), right.get(name, nothing)


def _conditions(evaluation: Evaluation) -> Mapping[str, str]:
    """Returns the conditions of an evaluation by name: the system, the dataset and the options."""
    system, dataset = evaluation.system, evaluation.dataset
    manifest, device = system.manifest, system.device
    parts = sorted(system.checksums.items())
    files = ", ".join(f"{part} {short_checksum(checksum)}" for part, checksum in parts)
    named = (dataset.name, dataset.version, short_checksum(dataset.checksum or ""))
    if dataset.category == _SYNTHETIC:  # whose name has the seed
        named = (f"{dataset.size} synthetic inputs", None, "")
    gpus = ", ".join(dict.fromkeys(gpu.name for gpu in system.environment.gpus)) if device.is_gpu else ""
    kind = kind_of(evaluation)
    asked = {} if system.precision is None else {_PRECISION: system.precision.value}
    if device.is_gpu and system.cudnn_benchmark is not None:
        asked[CUDNN_BENCHMARK] = str(system.cudnn_benchmark).lower()
    return {
        "kind": kind.phrase,
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
