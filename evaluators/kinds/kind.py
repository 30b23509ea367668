"""The interface of a kind of measurement, through which the rest of the program uses it.

It also contains what kinds share: the words of commands that repeat a measurement, and the storage of a
measurement whose fields are plain: numbers, strings, sequences of them, and arrays.
"""

from __future__ import annotations

import shlex
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, fields, replace
from itertools import groupby
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, ClassVar, Generic

import numpy as np
from numpy.typing import NDArray

from inferometer.agent.hardware.allocator import SETTING, Allocator
from inferometer.agent.hardware.environment import DeviceKind, Precision, Weights
from inferometer.agent.inference.stages import SystemDescription
from inferometer.evaluators.documents import Documents, Stored, checked, restored, storable
from inferometer.evaluators.evaluation import Evaluation, M, SpanSource, Status
from inferometer.evaluators.jobs.options import needs_system, options_of, words
from inferometer.evaluators.jobs.request import DatasetOptions, SystemOptions
from inferometer.evaluators.reports.base import COMMON_COLUMNS, Report, Row, finite, in_ms
from inferometer.evaluators.verdict import FIGURES
from inferometer.manifests.errors import StoreError

if TYPE_CHECKING:
    from inferometer.agent.inference.stages import InputFailure
    from inferometer.evaluators.drawing.charts import Drawing, Plot
    from inferometer.evaluators.jobs.job import Job
    from inferometer.evaluators.kinds.load.measurement import RateAnswer
    from inferometer.evaluators.tasks.metric import Accuracy, TaskResult
    from inferometer.evaluators.verdict import RunTimes


_LONGEST_LIST = 1000
"""The maximum total length of the sample ids in a command, in characters."""


def words_of(name: str, value: object, default: object = None) -> list[str]:
    """Returns the option as command-line words, if it differs from its default."""
    if value is None or value == default:
        return []
    return [f"--{name}={value:g}" if isinstance(value, float) else f"--{name}={value}"]


def system_words(evaluation: Evaluation) -> Iterator[str]:
    """Yields the command-line options for the model and the system that runs it."""
    system, manifest, device = evaluation.system, evaluation.system.manifest, evaluation.system.device
    here = system.is_local
    yield f"--model_name={manifest.name}"
    if here or "://" not in system.agent:
        yield f"--model_version={manifest.version}"
        yield f"--framework_name={manifest.framework.name}"
    weights = system.weights if system.weights is Weights.RANDOM else None
    precision = None if system.precision is Precision.FLOAT32 else system.precision
    yield from words({"weights": weights, "dtype": precision}, SystemOptions)
    if here:
        yield from allocator_words(system)
        if device.others:
            yield f"--gpus={','.join(map(str, device.indices))}"
    on_gpu, on_cpu = device.kind is DeviceKind.GPU, device.kind is DeviceKind.CPU
    chosen = {
        "cudnn_benchmark": system.cudnn_benchmark,
        "gpu": on_gpu,
        "gpu_device_id": device.index if on_gpu else None,
        "threads": system.threads if on_cpu else None,
        "agent_address": None if here else system.agent,
    }
    yield from words(chosen, SystemOptions)


def dataset_words(evaluation: Evaluation) -> Iterator[str]:
    """Yields the command-line options for the inputs."""
    dataset = evaluation.dataset
    ids = dataset.sample_ids
    named = {"dataset_path" if dataset.version is None else "dataset_name": dataset.name}
    chosen: dict[str, Any] = {"synthetic": True} if dataset.is_synthetic else named
    if ids is not None:
        chosen["sample_ids"] = ",".join(ids) if are_short(ids) else "FILE"
    yield from words(chosen, DatasetOptions)


def notes_on_repeating(evaluation: Evaluation) -> Iterator[str]:
    """Yields notes on what a command that repeats an evaluation requires, or does not repeat."""
    system, dataset = evaluation.system, evaluation.dataset
    if evaluation.process is not None:
        yield "It is one process of a group of --repeat; the command measures one more."
    if not system.is_local:
        yield "It ran on a served agent, which may have other models and another load now."
    if dataset.version is None and not dataset.is_synthetic:
        yield "The dataset has no manifest: its path is the one on the machine that ran the command."
    if dataset.sample_ids is not None and not are_short(dataset.sample_ids):
        yield (
            f"FILE must have the ids of the {dataset.size} samples, one a line, which "
            f"agent info evaluation show {evaluation.id} -f json gives."
        )


def allocator_words(system: SystemDescription) -> Iterator[str]:
    """Yields the option for the memory allocator's policy, if it is not the default."""
    policy = system.environment.settings.get(SETTING, Allocator.DEFAULT.value)
    if policy != Allocator.DEFAULT.value:
        yield f"--allocator={policy}"


def are_short(ids: Sequence[str]) -> bool:
    """Returns whether these sample ids can be listed on the command line."""
    listable = all(each == each.strip() and not set(each) & set(",\n\r") for each in ids)
    return listable and sum(map(len, ids)) <= _LONGEST_LIST


_MOST_VALUES = 1_000_000
"""The maximum number of values in an array; a MongoDB document is limited to 16 MB."""
_KEPT = "biuf"
"""The kinds of dtypes that can be stored: booleans, integers and floating point."""


def _written(name: str, value: Any) -> Any:
    if not isinstance(value, np.ndarray):
        return storable(value)
    if value.ndim != 1 or value.size > _MOST_VALUES or value.dtype.kind not in _KEPT:
        raise StoreError(
            f"{name} is an array of {value.dtype} and shape {value.shape}; plain documents keep one axis "
            f"of at most {_MOST_VALUES:,} numbers; for other arrays, override to_documents and from_documents"
        )
    return {"dtype": str(value.dtype), "values": storable(value.tolist())}


def _read(stored: Any) -> Any:
    if isinstance(stored, Mapping) and set(stored) == {"dtype", "values"}:
        dtype = np.dtype(stored["dtype"])
        if dtype.kind not in _KEPT:
            raise ValueError(f"an array of {dtype}")
        return np.array(restored(stored["values"]), dtype)
    return restored(stored)


Rows = Iterable[tuple[str, str]]
"""Rows, each with a name and a text; a row without a name continues the row above."""


@dataclass(frozen=True, slots=True)
class Again:
    """How to run an evaluation again.

    Attributes:
        words: The words of the command after ``agent``; empty if no command repeats it.
        notes: Notes on what the command requires or does not repeat, one line each.
    """

    words: tuple[str, ...]
    notes: tuple[str, ...] = ()

    @property
    def line(self) -> str:
        """The command as a shell would accept it; empty if no command repeats the evaluation."""
        return shlex.join(["agent", *self.words]) if self.words else ""


class Kind(Generic[M]):
    """One kind of measurement; it has no state.

    A new kind defines the class attributes, and overrides the methods that apply to it.
    """

    name: ClassVar[str]
    """The name in stored documents and filters, equal to ``Measurement.kind``; it must never change."""
    title: ClassVar[str]
    """The name in reports and on the page."""
    phrase: ClassVar[str]
    """The name as used in a sentence, with its article."""
    counted: ClassVar[str] = "queries"
    """The unit that is counted in its throughput."""
    collections: ClassVar[tuple[str, ...]] = ()
    """The collections of its documents, besides that of the evaluation itself."""
    on_demand: ClassVar[tuple[str, ...]] = ()
    """The collections that are read only on demand."""
    reports: ClassVar[Mapping[type[Report[Any]], type[Plot[Any]] | None]] = MappingProxyType({})
    """The reports that contain its figures, each with its picture, if it has one."""
    further_reports: ClassVar[Mapping[type[Report[Any]], type[Plot[Any]] | None]] = MappingProxyType({})
    """Its other reports, which plans do not read."""
    headlines: ClassVar[tuple[str, ...]] = ()
    """The columns of the first report in ``reports`` that the page shows first."""
    case_columns: ClassVar[tuple[str, ...]] = ()
    """The columns that tell the rows of one evaluation apart, besides those that describe the model."""
    of_a_model: ClassVar[bool] = True
    """Whether an evaluation covers one model with one batch size."""
    tabled: ClassVar[tuple[type[Report[Any]], ...]] = ()
    """Further reports that the page shows as tables."""
    comparable: ClassVar[bool] = False
    """Whether every measurement can be compared; see ``unfit``."""
    keeps_interrupted: ClassVar[bool] = True
    """Whether the measurements made before a stop are worth keeping."""
    has_predictions: ClassVar[bool] = False
    """Whether the measurement may contain the prediction for each input."""
    mixes: ClassVar[tuple[str, ...]] = ()
    """How the names of conditions begin in which the evaluations of one side of a comparison may differ."""
    comparer: ClassVar[str | None] = None
    """The function that compares two sides, as ``module:function``; None compares the ``figures``."""
    measurement: ClassVar[type[Any] | None] = None
    """The class of the measurement, with ``elapsed_ns``; needed unless ``to_documents`` is overridden."""
    request: ClassVar[type[Any] | None] = None
    """The request whose options ``agent measure`` offers; None for a kind with its own command."""

    def to_documents(self, evaluation: Evaluation[M], save_id: str) -> Documents:
        """Returns the measurement for the evaluation's own document, and its other parts by collection.

        By default, the fields of ``measurement`` are stored in the evaluation's own document.

        Args:
            evaluation: The evaluation to write.
            save_id: The id of the attempt to save; the first part of a collection has the id ``save_id/0``.

        Raises:
            StoreError: An array cannot be stored in this way.
        """
        measured = evaluation.measurement
        return {name: _written(name, getattr(measured, name)) for name in self._names()}, {}

    def from_documents(self, head: Stored, parts: Mapping[str, Sequence[Stored]]) -> M:
        """Returns the measurement.

        Args:
            head: The evaluation's document; ``head["measurement"]`` is what ``to_documents`` returned.
            parts: The documents, by collection and in order; those that are read on demand may be missing.

        Raises:
            KeyError, TypeError, ValueError: The documents are damaged.
        """
        plain, stored = self._plain_measurement(), head["measurement"]
        values = {name: _read(stored[name]) for name in self._names() if name in stored}
        measurement: M = checked(plain(**values, elapsed_ns=int(head["elapsed_ns"])))
        return measurement

    def _names(self) -> Sequence[str]:
        return [each.name for each in fields(self._plain_measurement()) if each.name != "elapsed_ns"]

    def _plain_measurement(self) -> type[Any]:
        if self.measurement is None:
            raise NotImplementedError(f"kind {self.name} has no documents")
        return self.measurement

    def job(self, request: Any) -> Job[Evaluation[M]]:
        """Returns the job for a ``request``."""
        raise NotImplementedError(f"kind {self.name} has a command of its own")

    def invalid(self, measurement: M) -> str:
        """Returns why the measurement's figures cannot be trusted, in one line; empty if they can.

        By default, it is the ``invalid`` of the measurement or of its ``run``, if it has one.
        """
        return str(getattr(measurement, "invalid", getattr(getattr(measurement, "run", None), "invalid", "")))

    def unanswered(self, measurement: M) -> str:
        """Returns the reason why a failed evaluation has no figures."""
        return "every input failed"

    def failures(self, measurement: M) -> Sequence[InputFailure]:
        """Returns the inputs that failed, by default the measurement's ``failures``."""
        found: Sequence[InputFailure] = getattr(measurement, "failures", ())
        return found

    def measured(self, measurement: M) -> str:
        """Returns how much an interrupted evaluation measured, such as ``12 batches``."""
        return ""

    def with_predictions(self, measurement: M, predictions: Sequence[Any]) -> M:
        """Returns the measurement with its predictions replaced, if the kind has predictions."""
        return measurement

    def overview(self, measurement: M) -> Row:
        """Returns the main figures, keyed by the columns of the report on all kinds."""
        return {}

    def summary(self, evaluation: Evaluation[M]) -> Rows:
        """Returns the figures as rows of text, shown at the end of a command."""
        return ()

    def description(self, evaluation: Evaluation[M]) -> Rows:
        """Returns the inputs and the options as rows of text, for a single evaluation."""
        return ()

    def details(self, evaluation: Evaluation[M], group: Sequence[Evaluation[M]]) -> Rows:
        """Returns a single evaluation's figures as rows of text; ``group`` has its group's evaluations."""
        return self.summary(evaluation)

    def document(self, evaluation: Evaluation[M], timed: Evaluation[M], spans: SpanSource) -> dict[str, Any]:
        """Returns the figures and the options as JSON values; by default, the rows of ``reports``.

        Args:
            evaluation: The evaluation.
            timed: The evaluation from which latency is taken, if possible one without a profiler.
            spans: Yields the spans of an evaluation.
        """
        reports = [report() for report in self.reports]
        return {each.name: [own_values(each, row) for row in each.rows([evaluation])] for each in reports}

    def facts(self, evaluation: Evaluation[M], timed: Evaluation[M]) -> Iterator[tuple[str, Any]]:
        """Yields the facts about the measurement that the page shows next to its options."""
        yield from ()

    def hints(self, timed: Evaluation[M]) -> Iterator[str]:
        """Yields the reasons why figures are missing, one line each."""
        yield from ()

    def drawings(self, evaluation: Evaluation[M], most_points: int) -> Iterator[Drawing]:
        """Yields the drawings of an evaluation, each with one point per value, up to ``most_points``."""
        for report, plot in self.reports.items():
            if plot is not None:
                yield from drawn(plot(), report(), evaluation)

    def group_drawing(self, evaluations: Sequence[Evaluation[M]]) -> Drawing | None:
        """Returns a drawing of a group of evaluations together, which the page shows beside each of them."""
        return None

    def compared_drawing(self, one: Evaluation[M], other: Evaluation[M], most_points: int) -> Drawing | None:
        """Returns a drawing of the values of two evaluations; None if there are no values."""
        return None

    def again(self, evaluation: Evaluation[M]) -> Again:
        """Returns the command that repeats the measurement, as far as the evaluation records it."""
        if self.request is None:
            return Again((), (f"No command is known that repeats an evaluation of kind {self.name}.",))
        given = getattr(evaluation.measurement, "options", {})
        asked = {each.name: given.get(each.name) for each in options_of(self.request)}
        system = system_words(evaluation) if needs_system(self.request) else ()
        return Again(("measure", self.name, *system, *words(asked, self.request)))

    def unfit(self, measurement: M) -> str:
        """Returns why the measurement cannot be compared, as text after "evaluation ID"; empty if it can."""
        return "" if self.comparable else f"is of kind {self.name}, which cannot be compared"

    def conditions(self, evaluation: Evaluation[M]) -> Mapping[str, str]:
        """Returns the conditions specific to evaluations of this kind, by their names in a comparison."""
        return {}

    def equal_conditions(self, one: M, other: M) -> Collection[str]:
        """Returns the names of conditions that are equal although their texts differ."""
        return ()

    def run_times(self, evaluation: Evaluation[M]) -> RunTimes:
        """Returns the times that are compared.

        Raises:
            ValueError: There are no times; the message says what the evaluation lacks.
        """
        raise ValueError("times")

    def named_times(self, evaluation: Evaluation[M], name: str) -> RunTimes:
        """Returns one of several times, such as ``ttft`` for the figure ``ttft_p50``; see ``run_times``."""
        return self.run_times(evaluation)

    def figures(self, a: Sequence[M], b: Sequence[M]) -> tuple[str, ...]:
        """Returns the figures that are compared by default, in order; other percentiles are possible too."""
        return FIGURES

    def accuracy(self, measurement: M) -> Accuracy | None:
        """Returns the counts of correct answers, if there are any."""
        return None

    def result(self, measurement: M) -> TaskResult | None:
        """Returns the scores on the task, if there are any."""
        return None

    def rates(self, measurement: M) -> Mapping[str, RateAnswer]:
        """Returns the figures that are rates with an interval of their own, such as a search's answer."""
        return {}

    def batch_times(self, measurement: M) -> tuple[NDArray[np.int64], int]:
        """Returns the time of each measured batch in nanoseconds, int64, and their total number of samples.

        Raises:
            TypeError: The measurement is not of batches.
        """
        raise TypeError(f"{self.name} is not a benchmark of batches")

    def effective_batch(self, measurement: M, replica_batch: int) -> int:
        """Returns the number of samples in a batch over all devices."""
        return replica_batch


def top_figures(p50_ns: float | None, rate_per_s: float | None, **more: Any) -> Row:
    """Returns the main figures for ``Kind.overview``."""
    return {"latency_ms_p50": in_ms(p50_ns), "rate_per_s": rate_per_s, **more}


def timed_by(evaluation: Evaluation[M], group: Sequence[Evaluation[M]]) -> Evaluation[M]:
    """Returns the evaluation to take times from: in a group, one that no profiler slowed down.

    A complete evaluation is preferred. If all ran under a profiler, it is the evaluation itself.
    """
    name = evaluation.measurement.kind
    alike = [each for each in (evaluation, *group) if each.measurement.kind == name]
    undisturbed = [each for each in alike if not each.profiled]
    if evaluation in undisturbed or not undisturbed:
        return evaluation
    return min(undisturbed, key=lambda each: each.status is not Status.COMPLETE)


def own_values(report: Report[Any], row: Row, *left_out: str) -> dict[str, Any]:
    """Returns a row's values, except for columns common to all reports; infinite values become None."""
    keys = [c.key for c in report.columns if c not in COMMON_COLUMNS and c.key not in left_out]
    return {key: finite(row[key]) for key in keys}


def failure_values(failures: Sequence[InputFailure]) -> list[dict[str, Any]]:
    """Returns failures as JSON values."""
    return [asdict(failure) | {"stage": failure.stage.value} for failure in failures]


def drawn(plot: Plot[Any], report: Report[Any], evaluation: Evaluation[M]) -> Iterator[Drawing]:
    """Yields the drawing of one evaluation, if there is anything to draw."""
    drawing = plot.draw([evaluation], list(report.rows([evaluation])))
    if drawing is not None:
        yield drawing


def apart(drawing: Drawing) -> Iterator[Drawing]:
    """Yields the charts under the first heading, and those under each further one as a drawing of its own."""
    for number, (name, charts) in enumerate(groupby(drawing.charts, lambda chart: chart.heading.name)):
        title, notes = (name, ()) if number else (drawing.title, drawing.notes)
        yield replace(drawing, title=title, charts=tuple(charts), notes=notes)
