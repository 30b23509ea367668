"""The kind of measurement for a loader alone: its measurement, documents, summary, report and plot.

Batches are read and preprocessed, and no model runs.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from inferometer.agent.inference.stages import InputFailure
from inferometer.evaluators.documents import (
    Documents,
    Stored,
    checked,
    column_part,
    columns_of,
    restored,
    storable,
)
from inferometer.evaluators.drawing.charts import (
    Chosen,
    Drawing,
    Plot,
    PointChart,
    Series,
    label_of,
    readable,
    time_unit,
)
from inferometer.evaluators.evaluation import Evaluation
from inferometer.evaluators.kinds.batches.documents import failure_part, failures_from_documents
from inferometer.evaluators.kinds.batches.plot import MOST_POINTS, thinned
from inferometer.evaluators.kinds.kind import Kind, Rows, failure_values, own_values, top_figures
from inferometer.evaluators.kinds.summary import figures_text, interval_rows
from inferometer.evaluators.loading.options import DataOptions
from inferometer.evaluators.reports.base import (
    CONDITIONS_COLUMN,
    EVALUATION_COLUMNS,
    NS_PER_US,
    STATUS_COLUMN,
    Column,
    Report,
    Row,
    Summarized,
    describe,
    end_columns,
    known,
    row_of,
    time_columns,
    us,
)
from inferometer.evaluators.statistics import Interval, TimeFigures, figures_of, rate_interval
from inferometer.evaluators.verdict import RunTimes

_NS_PER_S = 1_000_000_000
_MOST_BUSY = 1.01
"""The maximum share of time that a worker can be busy: 1, plus a margin for clock rounding."""


@dataclass(frozen=True, slots=True, eq=False)
class LoadTimes:
    """The raw times of the measured batches; int64, with one entry per batch.

    Attributes:
        samples: The number of samples that were loaded, without failed ones.
        whole_ns: The time from the end of the previous batch to the end of this one: the wait of a caller
            that does nothing else.
        read_ns: The time to read, summed over the samples and the workers; 0 if the framework's own iterator
            does not report it.
        preprocess_ns: The time to decode and preprocess, summed in the same way.
        read_bytes: The number of bytes in the encoded samples, summed in the same way.
    """

    samples: NDArray[np.int64]
    whole_ns: NDArray[np.int64]
    read_ns: NDArray[np.int64]
    preprocess_ns: NDArray[np.int64]
    read_bytes: NDArray[np.int64]


@dataclass(frozen=True, slots=True, eq=False)
class IngestionMeasurement:
    """One run of a loader.

    Attributes:
        batch_size: The number of samples in a full batch.
        num_warmup_batches: The number of preceding batches, which are not measured.
        data: How batches were loaded.
        times: The raw times of the measured batches.
        elapsed_ns: The duration of the measured batches.
        failures: The samples that failed.
        epochs: The number of passes over the data that were begun.
    """

    kind: ClassVar[str] = "ingestion"

    batch_size: int
    num_warmup_batches: int
    data: DataOptions
    times: LoadTimes
    elapsed_ns: int
    failures: tuple[InputFailure, ...] = ()
    epochs: int = 0

    @property
    def full(self) -> NDArray[np.bool_]:
        """bool, (batches,): whether each batch contained ``batch_size`` samples."""
        full: NDArray[np.bool_] = self.times.samples == self.batch_size
        return full

    @property
    def full_ns(self) -> NDArray[np.int64]:
        """int64; the times of the full batches, in order."""
        times_ns: NDArray[np.int64] = self.times.whole_ns[self.full]
        return times_ns


@dataclass(frozen=True, slots=True, kw_only=True)
class IngestionSummary(TimeFigures):
    """The figures of a loader; None if they are not known.

    The wait is that of a caller that does nothing but wait for the next batch. Its mean, percentiles and
    intervals cover full batches; rates are computed from all batches and the sum of their times.

    Attributes:
        batches: The number of measured batches.
        samples_per_s: Samples per second, without those that failed.
        samples_interval: Its 95 % interval, whose relative width is that of the mean's interval.
        bytes_per_s: Bytes of encoded samples per second; None if the framework's iterator does not report
            them.
        read_ns: The mean time that a thread takes to read a sample; None in the same case.
        preprocess_ns: The mean time that a thread takes to decode and preprocess it; None in the same case.
        cached_before: The share of the dataset's bytes that were in the page cache beforehand, 0…1.
        busy: The share of the workers' time spent on reading and preprocessing, failed samples included; None
            if the framework's iterator does not report it.
    """

    batches: int
    batches_per_s: float | None
    samples_per_s: float | None
    samples_interval: Interval | None
    bytes_per_s: float | None
    read_ns: float | None
    preprocess_ns: float | None
    cached_before: float | None
    busy: float | None = None

    @property
    def contradiction(self) -> str:
        """Why the rate is impossible (more work than the workers had time for); empty if it is possible."""
        if self.busy is None or self.busy <= _MOST_BUSY:
            return ""
        return (
            f"samples took {self.busy:.2f} times the workers' time: some were loaded before the clock started"
        )

    @classmethod
    def of(cls, measurement: IngestionMeasurement) -> IngestionSummary:
        """Computes the figures from the raw times."""
        times, figures = measurement.times, figures_of(measurement.full_ns)
        total_ns, samples = int(times.whole_ns.sum()), int(times.samples.sum())
        samples_per_s = samples * _NS_PER_S / total_ns if total_ns else None
        told, work_ns = bool(times.read_bytes.any()), int((times.read_ns + times.preprocess_ns).sum())
        return cls(
            batches=len(times.whole_ns),
            **figures,
            batches_per_s=len(times.whole_ns) * _NS_PER_S / total_ns if total_ns else None,
            samples_per_s=samples_per_s,
            samples_interval=rate_interval(samples_per_s, figures["mean_ns"], figures["mean_interval_ns"]),
            bytes_per_s=int(times.read_bytes.sum()) * _NS_PER_S / total_ns if told and total_ns else None,
            read_ns=int(times.read_ns.sum()) / samples if told and samples else None,
            preprocess_ns=int(times.preprocess_ns.sum()) / samples if told and samples else None,
            cached_before=measurement.data.cached_before,
            busy=work_ns / (total_ns * max(1, measurement.data.workers)) if told and total_ns else None,
        )


_TIMES = tuple(field.name for field in fields(LoadTimes))
_NUMBERS = ("batch_size", "num_warmup_batches", "epochs")
_BYTES_PER_MB = 1_000_000


def ingestion_rows(evaluation: Evaluation[IngestionMeasurement]) -> tuple[tuple[str, str], ...]:
    """Returns the rows for throughput, wait, work per sample, page cache and failures, by name.

    A row without a name belongs to the row above.
    """
    measured = evaluation.measurement
    summary = IngestionSummary.of(measured)
    return (
        ("data", _data(evaluation)),
        ("throughput", _throughput(measured, summary)),
        *([("CONTRADICTION", summary.contradiction)] if summary.contradiction else []),
        ("wait", _wait(measured, summary)),
        *interval_rows(measured.full_ns, summary.mean_interval_ns, "batches"),
        ("a sample", _sample(measured, summary)),
        ("page cache", _cache(measured.data)),
        ("failures", str(len(measured.failures))),
    )


def _data(evaluation: Evaluation[IngestionMeasurement]) -> str:
    data, dataset = evaluation.measurement.data, evaluation.dataset
    order = f"shuffled by seed {data.seed}" if data.shuffle else "in order"
    reader = "the framework's own iterator, " if data.reader == "framework" else ""
    who = "the calling thread" if not data.workers else str(data)
    return f"{dataset.name} ({data.backend}), {order}, by {reader}{who}"


def _throughput(measured: IngestionMeasurement, summary: IngestionSummary) -> str:
    if summary.samples_per_s is None or summary.batches_per_s is None:
        return "not known"
    interval = summary.samples_interval
    ends = "" if interval is None else f" [{interval.low:.1f}, {interval.high:.1f}]"
    per_s = f"{summary.samples_per_s:.1f}{ends} samples/s  {summary.batches_per_s:.2f} batches/s"
    if summary.bytes_per_s is not None:
        per_s += f"  {summary.bytes_per_s / _BYTES_PER_MB:.2f} MB/s read"
    samples, seconds = int(measured.times.samples.sum()), measured.elapsed_ns / 1e9
    return f"{per_s}, {samples} samples in {seconds:.3f} s"


def _wait(measured: IngestionMeasurement, summary: IngestionSummary) -> str:
    if summary.mean_ns is None:
        return f"not known: no batch held {measured.batch_size} samples"
    count = len(measured.full_ns)
    figures = figures_text(summary, "batches")
    return f"{figures}  ms per batch of {measured.batch_size}, over {count} full batches"


def _sample(measured: IngestionMeasurement, summary: IngestionSummary) -> str:
    if summary.read_ns is None or summary.preprocess_ns is None:
        return (
            "not known: the framework's iterator does not tell" if measured.data.reader != "own" else "none"
        )
    read_us, preprocess_us = (each / NS_PER_US for each in (summary.read_ns, summary.preprocess_ns))
    busy = "" if summary.busy is None else f"; {100 * summary.busy:.1f} % of the workers' time"
    return f"read {read_us:.1f}  preprocess {preprocess_us:.1f}  us, means in the thread that does so{busy}"


def _cache(data: DataOptions) -> str:
    if data.cached_before is None:
        return "not known: the samples are in memory, or this system does not report it"
    dropped = ", from which it was dropped" if data.dropped else ""
    return f"{100 * data.cached_before:.1f} % of the dataset was in it before{dropped}"


_FIGURES = {"mean": 1, "p50": 0, "p90": 1, "p99": 1}
_WITH_INTERVAL = ("mean", "p50")
_OF_A_MODEL = {"framework_name", "framework_version", "using_gpu", "weights", "threads", "precision"}


_INGESTION: tuple[Column[Summarized[IngestionMeasurement, IngestionSummary]], ...] = (
    Column("data_backend", "data", value="measured.data.backend"),
    Column("reader", "reader", detail=1, value="measured.data.reader"),
    Column("workers", "workers", value="measured.data.workers"),
    Column("worker_kind", "kind of workers", detail=1, value=lambda of: _workers(of.measured.data)),
    Column("prefetch", "batches ahead", detail=1, value="measured.data.prefetch"),
    Column("shuffled", "shuffled", detail=2, value="measured.data.shuffle"),
    Column("batches_per_s", "batches/s", decimals=2, detail=1, value="summary.batches_per_s"),
    Column("samples_per_s", "samples/s", decimals=1, value="summary.samples_per_s"),
    *end_columns("samples_per_s", "samples/s", "summary.samples_interval", decimals=1),
    Column("bytes_per_s", "bytes/s", decimals=0, detail=1, value="summary.bytes_per_s"),
    *time_columns("wait_ms", "wait", "summary", _FIGURES, _WITH_INTERVAL),
    Column("read_us", "read a sample (us)", decimals=1, detail=1, value=us("summary.read_ns")),
    Column("preprocess_us", "preprocess a sample (us)", 1, detail=1, value=us("summary.preprocess_ns")),
    Column("busy", "workers busy (share)", decimals=3, detail=1, value="summary.busy"),
    Column("contradiction", "contradiction", detail=1, value=known("summary.contradiction")),
    Column("cached_before", "in the page cache (share)", 4, detail=1, value="measured.data.cached_before"),
    Column("dropped", "dropped from it", detail=2, value="measured.data.dropped"),
    Column("measured_batches", "measured batches", detail=1, value="summary.batches"),
    Column("epochs", "epochs", detail=2, value="measured.epochs"),
    Column("failed_inputs", "failed inputs", detail=1, value=lambda of: len(of.measured.failures)),
    Column("dataset_name", "dataset", detail=1, value="evaluation.dataset.name"),
)


def _workers(data: DataOptions) -> str | None:
    return ("processes" if data.processes else "threads") if data.workers else None


class IngestionReport(Report[IngestionMeasurement]):
    """One row for each run of a loader alone, with the figures of ``IngestionSummary``.

    The model only defines the preprocessing. The wait is that of a caller that does nothing else, in
    milliseconds per full batch; the times to read and to preprocess are for one sample in one worker.
    """

    name = "ingestion"
    summary = "loading alone: batches, samples and bytes in a second, and the wait for a batch in ms"
    takes = (IngestionMeasurement,)
    columns = (
        *(column for column in EVALUATION_COLUMNS if column.key not in _OF_A_MODEL),
        *_INGESTION,
        STATUS_COLUMN,
        CONDITIONS_COLUMN,
    )

    def rows(self, evaluations: Sequence[Evaluation[IngestionMeasurement]]) -> Iterator[Row]:
        for evaluation in evaluations:
            described = {key: of for key, of in describe(evaluation).items() if key not in _OF_A_MODEL}
            summary = IngestionSummary.of(evaluation.measurement)
            yield {**described, **row_of(_INGESTION, Summarized(evaluation, summary))}


_WAIT = "wait for a batch"


class IngestionPlot(Plot[IngestionMeasurement]):
    """A chart for each evaluation, with the waiting time for each batch."""

    def shows(self, row: Row) -> bool:
        return bool(row["measured_batches"])

    def drawing(self, chosen: Chosen[IngestionMeasurement], notes: Sequence[str]) -> Drawing:
        return Drawing(
            title="Loading alone",
            charts=tuple(_chart(evaluation) for evaluation, _ in chosen),
            groups=(_WAIT,),
            notes=("The wait of a caller who does nothing else.", *notes),
        )


def _chart(evaluation: Evaluation[IngestionMeasurement]) -> PointChart:
    waits_us = evaluation.measurement.times.whole_ns / NS_PER_US
    scale, unit = time_unit(float(waits_us.max()))
    values = (waits_us / scale).tolist()
    x, y = zip(*thinned([(float(n), value) for n, value in enumerate(values)], MOST_POINTS), strict=True)
    tooltip = f"{evaluation.id}: {_WAIT}, {readable(sum(values) / len(values))} {unit} on average"
    series = (Series(_WAIT, x, y, line=True, tooltip=tooltip),)
    return PointChart(label_of(evaluation), "measured batch", f"time ({unit})", series)


_HARDLY = 0.01
"""The fraction of a dataset in the page cache that is negligible."""


class IngestionKind(Kind[IngestionMeasurement]):
    """The measurement of a loader alone."""

    name = "ingestion"
    title = "ingestion"
    phrase = "a run of a loader"
    counted = "samples"
    collections = ("loaded_batch", "input_failure")
    reports = {IngestionReport: IngestionPlot}
    comparable = True
    headlines = ("samples_per_s", "bytes_per_s", "wait_ms_p50", "cached_before")

    def to_documents(self, evaluation: Evaluation[IngestionMeasurement], save_id: str) -> Documents:
        measured = evaluation.measurement
        document = {
            **{name: getattr(measured, name) for name in _NUMBERS},
            "data": storable(measured.data.values),
            "batch_count": len(measured.times.whole_ns),
            "failure_count": len(measured.failures),
        }
        return document, {
            "loaded_batch": column_part([({}, {name: getattr(measured.times, name) for name in _TIMES})]),
            "input_failure": failure_part(measured.failures),
        }

    def from_documents(self, head: Stored, parts: Mapping[str, Sequence[Stored]]) -> IngestionMeasurement:
        stored = head["measurement"]
        return IngestionMeasurement(
            **{name: int(stored[name]) for name in _NUMBERS},
            data=checked(DataOptions.of(restored(stored["data"]))),
            times=LoadTimes(**columns_of(parts["loaded_batch"], _TIMES, stored["batch_count"], "batches")),
            elapsed_ns=int(head["elapsed_ns"]),
            failures=failures_from_documents(parts, stored),
        )

    def measured(self, measurement: IngestionMeasurement) -> str:
        return f"{len(measurement.times.samples)} batches"

    def overview(self, measurement: IngestionMeasurement) -> Row:
        loaded = IngestionSummary.of(measurement)
        return top_figures(loaded.p50_ns, loaded.samples_per_s)

    def summary(self, evaluation: Evaluation[IngestionMeasurement]) -> Rows:
        return ingestion_rows(evaluation)

    def document(self, evaluation: Evaluation[IngestionMeasurement], *_: object) -> dict[str, Any]:
        [row], measured = IngestionReport().rows([evaluation]), evaluation.measurement
        figures = {
            "num_warmup_batches": measured.num_warmup_batches,
            "data": measured.data.values,
            **own_values(IngestionReport(), row, "dataset_name"),
            "failures": failure_values(measured.failures),
        }
        return {"ingestion": figures}

    def facts(self, evaluation: Evaluation[IngestionMeasurement], *_: object) -> Iterator[tuple[str, Any]]:
        yield from evaluation.measurement.data.conditions.items()

    def conditions(self, evaluation: Evaluation[IngestionMeasurement]) -> Mapping[str, str]:
        measured, data = evaluation.measurement, evaluation.measurement.data
        return {
            "batch size": str(measured.batch_size),
            "data": data.backend,
            "reader": data.reader,
            "loader": str(data),
            "in the page cache": _cached(data.cached_before),
            **data.conditions,
        }

    def run_times(self, evaluation: Evaluation[IngestionMeasurement]) -> RunTimes:
        measured = evaluation.measurement
        if not len(measured.full_ns):
            raise ValueError("full batch; load with a smaller --batch_size")
        return RunTimes.of_batches(measured.full_ns, measured.times.samples[measured.full])

    def batch_times(self, measurement: IngestionMeasurement) -> tuple[NDArray[np.int64], int]:
        return measurement.times.whole_ns, int(measurement.times.samples.sum())


def _cached(share: float | None) -> str:
    """Returns how much of a dataset was in the page cache, ignoring negligible amounts."""
    if share is None:
        return "not known"
    return "nothing" if share < _HARDLY else "all" if share > 1 - _HARDLY else f"{100 * share:.0f} %"
