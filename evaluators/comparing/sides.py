"""The sides of a comparison: evaluations of one configuration, their differences and their picture.

Properties of the machine and the software are conditions of a comparison, each a text that may differ. The
picture shows the times of two evaluations, batch by batch, on one axis.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from inferometer.agent.inference.results import SystemDescription
from inferometer.evaluators.datasets.base import short_checksum
from inferometer.evaluators.drawing.charts import Drawing
from inferometer.evaluators.evaluation import Evaluation, Status, of_kind
from inferometer.evaluators.kinds.batches.measurement import BatchMeasurement
from inferometer.evaluators.kinds.batches.plot import MOST_POINTS, compared_times
from inferometer.evaluators.kinds.kind import Kind
from inferometer.evaluators.kinds.load.measurement import RateAnswer
from inferometer.evaluators.kinds.registry import kind_of
from inferometer.evaluators.tasks.accuracy import Accuracy
from inferometer.evaluators.tasks.metric import TaskResult
from inferometer.evaluators.verdict import RunTimes
from inferometer.manifests.errors import ConfigurationError

CUDNN_BENCHMARK = "cudnn_benchmark"
"""The name of the condition that says whether cuDNN benchmarks its algorithms."""
_VARIABLE, _LIBRARY, _SETTING = "variable ", "library ", "setting "
_OF_THE_FRAMEWORK = (_LIBRARY, _SETTING)
_BUILD, _DETAILS, _DRIVER = "build", "framework details", "GPU driver"
_OF_THE_MACHINE = {"host", "system", "governor", _DRIVER, "Python", "inferometer", _BUILD, _DETAILS}
_UNKNOWN = "not known"


def _machine_conditions(system: SystemDescription) -> Mapping[str, str]:
    """Returns the conditions, besides the requested options, that may affect the speed of a model."""
    machine = system.environment
    conditions = {"inferometer": machine.inferometer_version, _DETAILS: _UNKNOWN}
    if not machine.is_known:
        return {"host": _UNKNOWN, **conditions}
    conditions |= {
        "host": f"{machine.hostname} ({machine.cpu_model}, {machine.usable_cores} cores)",
        "system": f"{machine.operating_system}, kernel {machine.kernel}",
        "governor": machine.governor or _UNKNOWN,
        "Python": machine.python_version,
    }
    if system.device.is_gpu:
        conditions[_DRIVER] = machine.gpu_driver or _UNKNOWN
    conditions |= {f"{_VARIABLE}{name}": value for name, value in machine.variables.items()}
    if machine.build or machine.libraries or machine.settings:
        conditions |= {_DETAILS: "known", _BUILD: machine.build}
        conditions |= {f"{_LIBRARY}{name}": version for name, version in machine.libraries.items()}
        conditions |= {f"{_SETTING}{name}": value for name, value in machine.settings.items()}
    return conditions


def _not_comparable(left: Mapping[str, str], right: Mapping[str, str], *, same_framework: bool) -> set[str]:
    """Returns the names of the conditions in which two evaluations cannot be compared.

    These are the conditions that depend on an unknown machine, or on a framework that reports no details of
    itself. If the frameworks differ, these are the conditions that only one of them has.
    """
    names = {*left, *right}
    if _UNKNOWN in {left["host"], right["host"]}:
        return {name for name in names if name != "host" and (_is_of_the_machine(name) or _is_detail(name))}
    of_one = set(left) ^ set(right)
    left_out = {_DRIVER} & of_one  # the device tells that only one of them is a GPU
    if left[_DETAILS] != right[_DETAILS]:
        return left_out | {name for name in names if _is_detail(name)}
    if same_framework:
        return left_out
    return left_out | {name for name in of_one if name.startswith(_OF_THE_FRAMEWORK)}


def _is_of_the_machine(name: str) -> bool:
    """Returns whether the evaluations of one side may differ in a condition."""
    return name in _OF_THE_MACHINE or name.startswith((_VARIABLE, _LIBRARY))


def _nothing_told(name: str) -> str:
    """Returns the text for a condition that one of two evaluations does not have."""
    if name.startswith(_VARIABLE):
        return "not set"
    if name == CUDNN_BENCHMARK:
        return "the default"
    return "not told" if name.startswith(_OF_THE_FRAMEWORK) else "none"


def _is_detail(name: str) -> bool:
    return name == _BUILD or name.startswith(_OF_THE_FRAMEWORK)


DIFFERS = "differs: "
"""The prefix of a note that names a condition in which the sides differ."""
_QUESTION = {"load", "concurrency", "percentile", "latency bound"}
"""Conditions that two sides must share: if these differ, the figures answer different questions."""
_SYNTHETIC = "synthetic"
_FILES = "model files"
_SAMPLES = "samples of the dataset"
_EXPLAIN_FILES = {"model", "framework", "weights"}
"""Conditions that explain a difference between the files."""
_PRECISION = "precision"


@dataclass(frozen=True, slots=True, eq=False)
class Side:
    """The evaluations of one side: of one kind, and measured under the same conditions.

    Attributes:
        name: The side's name in messages.
        evaluations: At least one evaluation, each complete.

    Raises:
        ConfigurationError: There is no evaluation, one cannot be compared, or their conditions differ.
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
                of_framework = name == "framework" or name.startswith(_OF_THE_FRAMEWORK)
                may_mix = self.kind.mixes_frameworks and of_framework
                if not _is_of_the_machine(name) and not may_mix:
                    raise ConfigurationError(
                        f"{self.name} mixes evaluations with {name} {one} and {another}, such as {first.id} "
                        f"and {other.id}; all evaluations of one side must be alike"
                    )

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
        """The accuracies that have evaluated inputs."""
        every = map(self.kind.accuracy, self.measurements)
        return [accuracy for accuracy in every if accuracy is not None and accuracy.evaluated]

    @property
    def first_result(self) -> TaskResult | None:
        """The first result of a task among its evaluations; None if there is none."""
        return next((each for each in map(self.kind.result, self.measurements) if each is not None), None)

    @property
    def answers(self) -> Sequence[RateAnswer]:
        """The answers of its searches."""
        return [answer for answer in map(self.kind.answer, self.measurements) if answer is not None]

    def run_times(self) -> Sequence[RunTimes]:
        """Returns the times of each run: of its full batches, or of its queries after the empty start.

        Raises:
            ConfigurationError: A run has no times.
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
            ConfigurationError: The figures answer different questions.
        """
        if self.kind is not other.kind:
            raise ConfigurationError(
                f"{self.name} is {self.kind.phrase} and {other.name} {other.kind.phrase}; "
                "compare evaluations of the same kind"
            )
        for name, left, right in self.differing(other):
            if name in _QUESTION:
                raise ConfigurationError(
                    f"{self.name} has {name} {left} and {other.name} {right}, so their figures answer "
                    "different questions; compare evaluations that agree in this"
                )

    def differing(self, other: Side) -> Iterator[tuple[str, str, str]]:
        """Yields the distinct differences from another side: the condition, and its value on each side."""
        pairs = ((one, two) for one in self.evaluations for two in other.evaluations)
        yield from dict.fromkeys(found for one, two in pairs for found in _differences(one, two))

    def same_inputs(self, other: Side) -> bool:
        """Returns whether both sides cover the same inputs."""
        names = {name for name, *_ in _differences(self.evaluations[0], other.evaluations[0])}
        return not names & {"dataset", _SAMPLES, "inputs"}


def _unfit(evaluation: Evaluation) -> str:
    """Returns the reason why an evaluation cannot be compared; empty if it can be."""
    if evaluation.status is Status.FAILED:
        return "has failed: all of its inputs failed; leave it out"
    if evaluation.status is not Status.COMPLETE:
        return f"is {evaluation.status.value}: its figures cover only a part; leave it out"
    return kind_of(evaluation).unfit(evaluation.measurement)


def _differences(one: Evaluation, other: Evaluation) -> Iterator[tuple[str, str, str]]:
    """Yields the name of each condition in which two evaluations differ, and both values."""
    left, right = _conditions(one), _conditions(other)
    frameworks = {each.system.manifest.framework.name for each in (one, other)}
    left_out = _not_comparable(left, right, same_framework=len(frameworks) == 1)
    if _PRECISION in set(left) ^ set(right):  # a file's own precision is not known
        left_out |= {_PRECISION}
    if (kind := kind_of(one)) is kind_of(other):
        left_out |= set(kind.equal_conditions(one.measurement, other.measurement))
    names = dict.fromkeys(name for name in (*left, *right) if name not in left_out)
    differing = [name for name in names if left.get(name) != right.get(name)]
    for name in differing:
        if name != _FILES or not _EXPLAIN_FILES & set(differing):
            nothing = _nothing_told(name)
            yield name, left.get(name, nothing), right.get(name, nothing)


def _conditions(evaluation: Evaluation) -> Mapping[str, str]:
    """Returns the conditions of an evaluation by name: those of the system, the dataset and the options."""
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
        **_machine_conditions(system),
        **kind.conditions(evaluation),
    }


def drawing_of(a: Side, b: Side) -> Drawing | None:
    """Returns the times of two sides as a picture; None unless each is one evaluation with full batches."""
    both = of_kind((*a.evaluations, *b.evaluations), BatchMeasurement)
    if len(both) != 2 or len(a.evaluations) != 1:
        return None
    chart = compared_times(both[0], both[1], MOST_POINTS)
    return Drawing("Predict time of each full batch", (chart,), groups=("A", "B")) if chart else None
