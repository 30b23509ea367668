"""The kind of measurement for memory, with its report and its picture."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeAlias

from inferometer.evaluators.drawing import charts
from inferometer.evaluators.evaluation import Evaluation
from inferometer.evaluators.kinds.kind import Kind, Rows, allocator_words, drawn, own_values
from inferometer.evaluators.kinds.memory.measurement import (
    MIB,
    MemoryMeasurement,
    MemoryRequest,
    Point,
    data_bytes,
)
from inferometer.evaluators.reports.base import NAME_COLUMNS, STATUS_COLUMN, Column, Report, Row, describe

if TYPE_CHECKING:
    from inferometer.evaluators.kinds.memory.job import MemoryJob

MemoryEvaluation: TypeAlias = Evaluation[MemoryMeasurement]
_FIGURES: Mapping[str, tuple[str, int, Callable[[Any], int]]] = {
    "framework_mib": ("framework", 0, lambda of: of["framework"]["VmRSS"] - of["baseline"]["VmRSS"]),
    "model_mib": ("model", 0, lambda of: of["model"]["VmRSS"] - of["framework"]["VmRSS"]),
    "batch_mib": ("batch", 0, lambda of: of["batch"]["VmHWM"] - of["model"]["VmRSS"]),
    "peak_mib": ("peak", 0, lambda of: of["batch"]["VmHWM"] - of["baseline"]["VmRSS"]),
    "load_peak_mib": ("peak of loading", 1, lambda of: of["model"]["VmHWM"] - of["baseline"]["VmRSS"]),
    "anonymous_mib": ("anonymous", 1, lambda of: of["batch"]["RssAnon"]),
    "file_mib": ("files", 1, lambda of: of["batch"]["RssFile"]),
    "data_mib": ("data", 0, lambda of: data_bytes(of["batch"])),
}
"""The figures of a process: the heading, the level of detail, and the bytes from its readings."""


class MemoryReport(Report[MemoryMeasurement]):
    """One row for each batch size and sequence length: memory in MiB, as means over the processes.

    ``framework`` (imported), ``model`` (loaded) and ``batch`` (the peak of the predictions, with inputs and
    outputs) are resident memory, each above the one before; ``peak`` is their sum. ``anonymous`` and
    ``files`` divide what the whole process has after the predictions. ``data`` is what the limit bounds.
    """

    name = "memory"
    summary = "peak memory by batch size in MiB, and the largest batch that fits into a limit"
    takes = (MemoryMeasurement,)
    columns = (
        *NAME_COLUMNS,
        Column("sequence_length", "sequence length", detail=1),
        Column("outcome", "outcome"),
        Column("processes", "processes", detail=1),
        *(Column(key, f"{name} (MiB)", 1, detail) for key, (name, detail, _) in _FIGURES.items()),
        Column("limit_mib", "limit (MiB)", decimals=1),
        Column("foretold_batch", "foretold batch"),
        *(Column(f"foretold_{end}", f"foretold {end}", 1, 3) for end in ("low", "high")),
        Column("largest_batch", "largest batch"),
        Column("error_percent", "error (%)", decimals=2),
        Column("allocator", "allocator", detail=1),
        STATUS_COLUMN,
        Column("failure", "failure", detail=3),
    )

    def rows(self, evaluations: Sequence[MemoryEvaluation]) -> Iterator[Row]:
        """Yields the measured batch sizes of each sequence length, and then those tried under the limit."""
        for evaluation in evaluations:
            described, measured = describe(evaluation), evaluation.measurement
            shared = {
                **{column.key: described[column.key] for column in (*NAME_COLUMNS, STATUS_COLUMN)},
                "limit_mib": measured.limit_bytes / MIB,
                "allocator": "keep" if any(allocator_words(evaluation.system)) else "default",
            }
            groups: dict[tuple[int, bool, int], list[Point]] = {}
            for point in measured.points:
                key = (point["sequence_length"], point["limited"], point["batch_size"])
                groups.setdefault(key, []).append(point)
            for (length, *_), group in sorted(groups.items(), key=lambda each: each[0]):
                yield {**shared, **measured.capacity(length), **_of_group(group)}


def _of_group(points: Sequence[Point]) -> Row:
    """Returns the values of the processes with one batch size; those that failed have no figures."""
    first, done = points[0], [point for point in points if "batch" in point]
    failure = next((point["failure"] for point in points if point["failure"]), None)
    outcomes = ("fits", "does not fit") if first["limited"] else ("measured", "failed")
    return {
        **{
            key: sum(map(read, done)) / len(done) / MIB if done else None
            for key, (*_, read) in _FIGURES.items()
        },
        "batch_size": first["batch_size"],
        "sequence_length": first["sequence_length"] or None,
        "outcome": outcomes[failure is not None],
        "processes": len(points),
        "failure": failure,
    }


_SHOWN = ("measured", "fits")


class MemoryPlot(charts.Plot[MemoryMeasurement]):
    """A chart for each evaluation: the data of each process by batch size, the line, and the limit."""

    def drawing(self, chosen: charts.Chosen[MemoryMeasurement], notes: Sequence[str]) -> charts.Drawing:
        """Returns the charts."""
        return charts.Drawing(
            title="Memory by batch size",
            charts=tuple(_chart(evaluation, rows) for evaluation, rows in chosen),
            groups=(*_SHOWN, "line"),
            notes=("Data is private writable memory, which the limit bounds.", *notes),
        )


def _chart(evaluation: MemoryEvaluation, rows: Sequence[Row]) -> charts.PointChart:
    series, measured = [], evaluation.measurement
    for length in measured.lengths:
        at = [row for row in rows if (row["sequence_length"] or 0) == length and row["data_mib"]]
        if line := measured.line(length):
            ends = (float(min(line.sizes)), max(charts.number(row["batch_size"]) for row in at))
            y = tuple((line.base + line.slope * size) / MIB for size in ends)
            series.append(charts.Series("line", ends, y, line=True, size=0))
        for outcome in _SHOWN:
            found = [row for row in at if row["outcome"] == outcome]
            x, y = (tuple(charts.number(row[key]) for row in found) for key in ("batch_size", "data_mib"))
            if found:
                series.append(charts.Series(outcome, x, y, tooltip=outcome, text=f"{length or ''}"))
    limit = charts.Rule(measured.limit_bytes / MIB, "limit")
    return charts.PointChart(
        charts.label_of(evaluation), "batch size", "data (MiB)", tuple(series), rules=(limit,)
    )


class MemoryKind(Kind[MemoryMeasurement]):
    """Measure peak memory by batch size, and search the largest batch that fits into a limit.

    Each batch size runs in a fresh process. A line through the measured sizes foretells the largest batch
    under --memory_limit, which is then tried, and others until the largest is known.
    """

    name = "memory"
    title = "memory"
    phrase = "a measurement of memory"
    reports = ("memory",)
    headlines = ("peak_mib", "data_mib", "foretold_batch", "largest_batch", "error_percent")
    of_a_model = False
    request = MemoryRequest
    measurement = MemoryMeasurement

    def job(self, request: MemoryRequest) -> MemoryJob:
        """Returns the job of a request."""
        from inferometer.evaluators.kinds.memory.job import memory_job  # which starts processes

        return memory_job(request)

    def unanswered(self, measurement: MemoryMeasurement) -> str:
        return next((each["failure"] for each in measurement.points if each["failure"]), "")

    def summary(self, evaluation: MemoryEvaluation) -> Rows:
        measured = evaluation.measurement
        yield "limit", f"{measured.limit_bytes / MIB:,.0f} MiB of data"
        for length in measured.lengths:
            found, at = measured.capacity(length), f" at {length}" if length else ""
            off = "" if found["error_percent"] is None else f", {found['error_percent']:+.1f} % off"
            largest, foretold = (
                "not known" if found[key] is None else found[key]
                for key in ("largest_batch", "foretold_batch")
            )
            yield f"largest batch{at}", f"{largest}; foretold {foretold}{off}"

    def document(self, evaluation: MemoryEvaluation, *_: object) -> dict[str, Any]:
        report = MemoryReport()
        return {"memory": [own_values(report, row) for row in report.rows([evaluation])]}

    def drawings(self, evaluation: MemoryEvaluation, most_points: int) -> Iterator[charts.Drawing]:
        yield from drawn(MemoryPlot(), MemoryReport(), evaluation)
