"""The Python library: what ``import inferometer`` evaluates and finds, by the jobs of the command line."""

from __future__ import annotations

import html
import logging
import os
import threading
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, overload

from inferometer.agent.hardware.device import CPU, Device, DeviceKind
from inferometer.agent.inference.predictor import Weights
from inferometer.agent.inference.session import SessionOptions
from inferometer.client.cli.invocation import Invocation
from inferometer.client.cli.stopping import StopRequest
from inferometer.client.discovery.choosing import choose_agents
from inferometer.client.evaluating.progress import ProgressBar
from inferometer.client.evaluating.running import spooled
from inferometer.client.evaluating.running_now import RunningFile
from inferometer.client.evaluating.summary import full_rows
from inferometer.client.systems import Systems
from inferometer.evaluators.conditions.conditions import Conditions
from inferometer.evaluators.dataset_run import Progress
from inferometer.evaluators.evaluation import Evaluation, Status
from inferometer.evaluators.jobs.defaults import BATCH_SIZE, MODEL
from inferometer.evaluators.jobs.evaluate import evaluate as evaluate_job
from inferometer.evaluators.jobs.requests import DatasetChoice, EvaluationRequest, SystemRequest
from inferometer.evaluators.jobs.resources import JobCallbacks, JobStart
from inferometer.evaluators.measurements.batches import BatchMeasurement, BatchOptions, LatencySummary
from inferometer.evaluators.reports.base import Row
from inferometer.evaluators.reports.overview import OverviewReport
from inferometer.evaluators.store.evaluation_store import EvaluationFilter
from inferometer.manifests.errors import ConfigurationError, StoreError

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from inferometer.evaluators.precision.intervals import Interval

_log = logging.getLogger(__name__)
_NS_PER_MS = 1_000_000


@dataclass(frozen=True, slots=True)
class Latency:
    """The time of a full batch in milliseconds, as ``LatencySummary`` has it; None for what is not known.

    Attributes:
        batches: The full batches.
        mean_ms: The arithmetic mean.
        p50_ms: The median.
        p90_ms: The 90th percentile.
        p99_ms: The 99th percentile.
        interval_ms: The ends of the 95 % interval of p50.
        mean_interval_ms: Those of the mean.
    """

    batches: int
    mean_ms: float | None
    p50_ms: float | None
    p90_ms: float | None
    p99_ms: float | None
    interval_ms: tuple[float, float] | None
    mean_interval_ms: tuple[float, float] | None


@dataclass(frozen=True, slots=True)
class TopAccuracy:
    """Accuracy as shares, 0…1, of the inputs with a label and a prediction.

    Attributes:
        top1: The share whose most probable class is the label.
        top5: The share whose label is among the five most probable classes.
        evaluated: The inputs.
    """

    top1: float
    top5: float
    evaluated: int


class Run:
    """One evaluation; in a notebook it shows as a table.

    Attributes:
        evaluation: All of it, with the raw times and what it ran on.
    """

    def __init__(self, evaluation: Evaluation[BatchMeasurement]) -> None:
        self.evaluation = evaluation

    @property
    def id(self) -> str:
        """The id, as ``agent info evaluation show`` takes it."""
        return self.evaluation.id

    @property
    def complete(self) -> bool:
        """Whether it ran to its end; Ctrl-C ends it with what was measured."""
        return self.evaluation.status is Status.COMPLETE

    @cached_property
    def latency(self) -> Latency:
        """The latency of a batch."""
        found = self._summary
        return Latency(
            batches=found.measured_batches,
            mean_ms=_ms(found.mean_ns),
            p50_ms=_ms(found.p50_ns),
            p90_ms=_ms(found.p90_ns),
            p99_ms=_ms(found.p99_ns),
            interval_ms=_ends_ms(found.p50_interval_ns),
            mean_interval_ms=_ends_ms(found.mean_interval_ns),
        )

    @property
    def throughput_per_s(self) -> float | None:
        """The inputs of the full batches over the sum of their predict times; None without a full batch."""
        return self._summary.throughput_inputs_per_s

    @property
    def accuracy(self) -> TopAccuracy | None:
        """The accuracy; None without labels, and of random weights."""
        found = self.evaluation.measurement.accuracy
        if found is None or found.top1_share is None or found.top5_share is None:
            return None
        return TopAccuracy(found.top1_share, found.top5_share, found.evaluated)

    @property
    def conditions(self) -> Conditions | None:
        """What disturbed the measurement, with the verdict."""
        return self.evaluation.conditions

    @property
    def times_ms(self) -> NDArray[np.float64]:
        """The predict times of the full batches, in order: float64, n, in milliseconds."""
        return self.evaluation.measurement.full_ns / _NS_PER_MS

    @cached_property
    def _summary(self) -> LatencySummary:
        return LatencySummary.of(self.evaluation.measurement)

    def __repr__(self) -> str:
        return "\n".join(f"{name:<12}{value}" for name, value in self._rows())

    def _repr_html_(self) -> str:
        return _html_table([], self._rows())

    def _rows(self) -> Sequence[tuple[str, str]]:
        system = self.evaluation.system
        manifest = system.manifest
        on = f"{manifest.framework.name} {system.framework_version} ({system.device}, {system.agent})"
        return (("model", f"{manifest.name} {manifest.version} on {on}"), *full_rows(self.evaluation))


class Evaluations(Sequence[Row]):
    """Stored evaluations of every kind, the newest first, as the rows of ``agent info evaluations``."""

    def __init__(self, rows: Sequence[Row]) -> None:
        self._rows = tuple(rows)

    def __len__(self) -> int:
        return len(self._rows)

    @overload
    def __getitem__(self, place: int) -> Row: ...

    @overload
    def __getitem__(self, place: slice) -> Sequence[Row]: ...

    def __getitem__(self, place: int | slice) -> Row | Sequence[Row]:
        return self._rows[place]

    def to_dict(self) -> dict[str, list[Any]]:
        """Returns the values of each column by its key."""
        keys = [column.key for column in OverviewReport.columns]
        return {key: [row[key] for row in self._rows] for key in keys}

    def to_pandas(self) -> Any:
        """Returns a ``pandas.DataFrame``.

        Raises:
            ConfigurationError: pandas is not installed.
        """
        try:
            import pandas  # type: ignore[import-untyped,import-not-found,unused-ignore]
        except ImportError as error:
            raise ConfigurationError("pandas is not installed; pip install pandas, or use to_dict") from error
        return pandas.DataFrame(self.to_dict())

    def __repr__(self) -> str:
        return f"<{len(self)} evaluations: to_dict, to_pandas>"

    def _repr_html_(self) -> str:
        headings = [column.header for column in OverviewReport.columns]
        keys = [column.key for column in OverviewReport.columns]
        return _html_table(headings, [["" if row[k] is None else str(row[k]) for k in keys] for row in self])


def evaluate(
    model: str = MODEL,
    *,
    version: str | None = None,
    framework: str | None = None,
    weights: str = "pretrained",
    seed: int = 0,
    dataset: str | os.PathLike[str] | None = None,
    batch_size: int = BATCH_SIZE,
    gpu: bool = False,
    threads: int | None = None,
    agent: str | None = None,
    min_duration_s: float = 0.0,
    min_batches: int = 0,
    target_ci_percent: float | None = None,
    time_budget_s: float | None = None,
    publish: bool = True,
) -> Run:
    """Evaluates a model over a dataset, as ``agent predict dataset`` does, and returns what was measured.

    Ctrl-C ends it after the batch, with what was measured until then; a second one raises KeyboardInterrupt.

    Args:
        model: The name in its manifest.
        version: A version or a constraint; None means the highest that has the weights.
        framework: The framework; None means the first installed one that has the model.
        weights: ``pretrained``, or ``random`` for speed only.
        seed: The seed of random weights.
        dataset: A name, or the path of a folder of class folders, of a zip or of an .npz; None means the
            dataset that the model names.
        batch_size: Inputs in a batch.
        gpu: Whether it runs on the GPU.
        threads: CPU threads of an operator; None means the default.
        agent: The address of a served agent; None means this process.
        min_duration_s: How long to measure at the least.
        min_batches: How many full batches to measure at the least.
        target_ci_percent: Half the width of the interval of p50 to measure for; without any of these three,
            5 percent.
        time_budget_s: When repeating the dataset ends although it is not enough.
        publish: Whether it is kept in the database of the configuration.

    Raises:
        InferometerError: The model or the dataset cannot be opened, or a value is invalid.
        EvaluationInterrupted: Ctrl-C before a batch was measured.
        StoreError: The database cannot be reached, or lost the evaluation; the message names the file that
            keeps it.
    """
    invocation = Invocation({})
    device = Device(DeviceKind.GPU, 0) if gpu else CPU
    system = SystemRequest(
        model_name=model,
        model_version=version,
        framework_name=framework,
        session=SessionOptions(device=device, threads=threads, weights=_weights(weights), seed=seed),
    )
    options = BatchOptions(
        batch_size,
        batch_size,
        min_duration_s=min_duration_s,
        min_batches=min_batches,
        target_ci_percent=target_ci_percent,
        time_budget_s=time_budget_s,
    )
    system = replace(system, agents=choose_agents(invocation, agent, system) if agent else ())
    request = EvaluationRequest(system=system, dataset=_dataset(dataset), options=options)
    return Run(_run(invocation, request, publish=publish))


def evaluations(
    *, model: str | None = None, framework: str | None = None, limit: int | None = None
) -> Evaluations:
    """Returns stored evaluations of every kind, the newest first.

    Args:
        model: Only this model.
        framework: Only this framework.
        limit: The newest so many; None means all.

    Raises:
        ConfigurationError: The limit is below 1.
        StoreError: The database cannot be reached.
    """
    if limit is not None and limit < 1:
        raise ConfigurationError(f"limit is {limit}; it must be at least 1, or None for all")
    report = OverviewReport()
    wanted = EvaluationFilter(
        model_name=model,
        framework_name=framework,
        limit=limit,
        kinds=tuple(each.kind for each in report.takes),
    )
    with closing(Invocation({}).open_store()) as store:
        return Evaluations(tuple(report.rows(store.find(wanted))))


def _run(
    invocation: Invocation, request: EvaluationRequest, *, publish: bool
) -> Evaluation[BatchMeasurement]:
    """Evaluates once, with a bar and Ctrl-C; publishes."""
    bar, stop = ProgressBar(request.system.model_name), StopRequest()
    running = RunningFile(invocation.data_directory if publish else None)
    with ExitStack() as stack:
        store = stack.enter_context(closing(invocation.open_store())) if publish else None
        stack.callback(bar.close)
        stack.callback(running.close)
        if threading.current_thread() is threading.main_thread():  # only there can signals be handled
            stack.enter_context(stop)

        def start(what: JobStart) -> None:
            stop.begin("stopping after this batch")
            bar.begin()
            running.begin(what)

        def progress(done: Progress) -> None:
            bar(done)
            running(done)

        callbacks = JobCallbacks(
            on_start=start, on_progress=progress, on_warning=_log.warning, stop_requested=stop
        )
        with closing(evaluate_job(request, Systems(invocation), callbacks)) as found:
            evaluation = next(found)
        try:
            if store is not None:
                store.save(evaluation)
        except StoreError as error:  # what was measured is not lost
            raise StoreError(f"{error}; {spooled(invocation, evaluation)[1]}") from error
        return evaluation


def _weights(name: str) -> Weights:
    try:
        return Weights(name.lower())
    except ValueError as error:
        known = " or ".join(each.value for each in Weights)
        raise ConfigurationError(f'unknown weights "{name}"; give {known}') from error


def _dataset(dataset: str | os.PathLike[str] | None) -> DatasetChoice:
    """A path is what is no string, has a separator or exists; anything else is a name."""
    if dataset is None:
        return DatasetChoice()
    if isinstance(dataset, str) and os.sep not in dataset and not Path(dataset).exists():
        return DatasetChoice(name=dataset)
    return DatasetChoice(path=Path(dataset))


def _ms(duration_ns: float | None) -> float | None:
    return None if duration_ns is None else duration_ns / _NS_PER_MS


def _ends_ms(interval: Interval | None) -> tuple[float, float] | None:
    return None if interval is None else (interval.low / _NS_PER_MS, interval.high / _NS_PER_MS)


def _html_table(headings: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    def line(cells: Sequence[str], tag: str) -> Iterator[str]:
        yield "<tr>"
        yield from (f'<{tag} style="text-align: left">{html.escape(cell)}</{tag}>' for cell in cells)
        yield "</tr>"

    head = "".join(line(headings, "th")) if headings else ""
    return f"<table>{head}{''.join(part for row in rows for part in line(row, 'td'))}</table>"
