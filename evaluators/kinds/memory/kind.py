"""The kind of measurement for memory, with its report and its picture."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import groupby
from operator import itemgetter
from typing import TYPE_CHECKING, Any, TypeAlias

from inferometer.evaluators.drawing import charts
from inferometer.evaluators.evaluation import Evaluation
from inferometer.evaluators.kinds.kind import Kind, Rows, allocator_words
from inferometer.evaluators.kinds.memory.measurement import MIB, MemoryMeasurement, MemoryRequest, data_bytes
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
    """One row for each process, with those of its instances, by sequence length and batch size, in MiB.

    ``framework`` (imported), ``model`` (loaded) and ``batch`` (the peak of the predictions, with inputs and
    outputs) are resident memory, each above the one before; ``peak`` is their sum. ``anonymous`` and
    ``files`` divide what the whole process has after the predictions. ``data`` is what the limit bounds.
    If ``memory of`` is ``device``, see ``MemoryMeasurement.device_bytes``; ``process peak`` is the host's.
    """

    name = "memory"
    summary = "peak memory by batch size in MiB, and the largest batch that fits into a limit"
    takes = (MemoryMeasurement,)
    columns = (
        *NAME_COLUMNS[:-1],
        Column("batch_size", "batch"),  # of a process, unlike the column that evaluations have in common
        Column("sequence_length", "sequence length", detail=1),
        Column("instances", "instances", detail=1),
        Column("outcome", "outcome"),
        Column("memory_of", "memory of"),
        *(Column(key, f"{name} (MiB)", 1, detail) for key, (name, detail, _) in _FIGURES.items()),
        Column("process_peak_mib", "process peak (MiB)", 1, 1),
        Column("limit_mib", "limit (MiB)", decimals=1),
        Column("estimated_batch", "estimated batch"),
        Column("model_error_percent", "model error (%)", 1, 1),
        Column("largest_batch", "largest batch"),
        Column("error_percent", "error (%)", decimals=2),
        Column("allocator", "allocator", detail=1),
        STATUS_COLUMN,
        Column("failure", "failure", detail=3),
    )

    def rows(self, evaluations: Sequence[MemoryEvaluation]) -> Iterator[Row]:
        for evaluation in evaluations:
            described, measured = describe(evaluation), evaluation.measurement
            for point in sorted(measured.points, key=itemgetter("sequence_length", "limited", "batch_size")):
                readings, failed = point["readings"], bool(point["failure"])
                process = {key: None if failed else of(readings) / MIB for key, (*_, of) in _FIGURES.items()}
                device = measured.device_bytes(readings) if measured.on_device and not failed else {}
                of_device = {**dict.fromkeys(process), **{f"{key}_mib": n / MIB for key, n in device.items()}}
                yield {
                    **{column.key: described[column.key] for column in (*NAME_COLUMNS, STATUS_COLUMN)},
                    "batch_size": point["batch_size"],
                    "sequence_length": point["sequence_length"] or None,
                    "instances": measured.instances,
                    "outcome": (("measured", "failed"), ("fits", "does not fit"))[point["limited"]][failed],
                    "memory_of": "device" if measured.on_device else "process",
                    **(of_device if measured.on_device else process),
                    "process_peak_mib": process["peak_mib"],
                    "limit_mib": measured.limit_bytes / MIB,
                    **measured.capacity(point["sequence_length"]),
                    "allocator": "".join(allocator_words(evaluation.system)).partition("=")[2] or "default",
                    "failure": point["failure"] or None,
                }


class MemoryPlot(charts.Plot[MemoryMeasurement]):
    """A chart for each evaluation: the data or GPU memory by batch size, the line, and the limit."""

    def drawing(self, chosen: charts.Chosen[MemoryMeasurement], notes: Sequence[str]) -> charts.Drawing:
        told = ("Data is private writable memory, which the limit bounds on a CPU.", *notes)
        found, groups = tuple(_chart(*each) for each in chosen), ("measured", "fits", "line")
        return charts.Drawing("Memory by batch size", found, groups, told)


def _chart(evaluation: MemoryEvaluation, rows: Sequence[Row]) -> charts.PointChart:
    series, measured = [], evaluation.measurement
    limit_mib = measured.limit_bytes / MIB
    axis = "GPU memory (MiB)" if measured.on_device else "data (MiB)"
    for length in measured.lengths:
        if line := measured.line(length):
            x, y = (line[0][0], measured.estimated(length) or 0), (line[0][1] / MIB, limit_mib)
            series.append(charts.Series("line", x, y, line=True, size=0))
    drawn_rows = (row for row in rows if row["data_mib"] is not None)
    for (length, outcome), group in groupby(drawn_rows, itemgetter("sequence_length", "outcome")):
        sizes, data = zip(*((row["batch_size"], row["data_mib"]) for row in group), strict=True)
        series.append(charts.Series(outcome, sizes, data, tooltip=outcome, text=f"{length or ''}"))
    label, rules = charts.label_of(evaluation), (charts.Rule(limit_mib, "limit"),)
    return charts.PointChart(label, "batch size", axis, tuple(series), rules)


class MemoryKind(Kind[MemoryMeasurement]):
    """Measure peak memory by batch size, and search for the largest batch that fits into a limit.

    Each batch size runs in a fresh process. A line through the measured sizes estimates the largest batch
    under --memory_limit. That size is tried, and then others, until the largest that fits is known.
    """

    name = "memory"
    title = "memory"
    phrase = "a measurement of memory"
    reports = {MemoryReport: MemoryPlot}
    headlines = ("peak_mib", "data_mib", "estimated_batch", "largest_batch", "error_percent")
    case_columns = ("sequence_length", "outcome")
    of_a_model = False
    request = MemoryRequest
    measurement = MemoryMeasurement

    def job(self, request: MemoryRequest) -> MemoryJob:
        from inferometer.evaluators.kinds.memory.job import memory_job  # which starts processes

        return memory_job(request)

    def measured(self, measurement: MemoryMeasurement) -> str:
        return f"{len(measurement.points)} processes"

    def unanswered(self, measurement: MemoryMeasurement) -> str:
        return next((each["failure"] for each in measurement.points if each["failure"]), "")

    def summary(self, evaluation: MemoryEvaluation) -> Rows:
        measured = evaluation.measurement
        of = "GPU memory" if measured.on_device else "data"
        yield "limit", f"{measured.limit_bytes / MIB:,.0f} MiB of {of}"
        told = any("DeviceProcess" in each["readings"].get("batch", ()) for each in measured.points)
        if measured.on_device and not told:
            yield "framework", "has what others took meanwhile: the driver tells only the whole GPU's memory"
        if measured.instances > 1:
            yield "instances", f"{measured.instances}, of which each predicts a batch at the same time"
        for length in measured.lengths:
            estimated, changed, largest, error = measured.capacity(length).values()
            model = "" if changed is None else f" ({changed:+.1f} % without the largest size)"
            off = "" if error is None else f", {error:+.1f} % off"
            known = ["not known" if each is None else each for each in (largest, estimated)]
            words = f"{known[0]}; estimated {known[1]}{model}{off}"
            yield f"largest batch{f' at {length}' * bool(length)}", words

    def facts(self, evaluation: MemoryEvaluation, timed: MemoryEvaluation) -> Iterator[tuple[str, Any]]:
        yield from self.summary(evaluation)
