"""The figures and reports of single operators, a table like that of MXNet's opperf, and the summary.

The figures of one operator's rows are the times of a run with their interval, rates, and the roofline.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum

import numpy as np
from numpy.typing import NDArray

from inferometer.evaluators.evaluation import Evaluation
from inferometer.evaluators.kinds.operators.measurement import (
    Correctness,
    MachinePeak,
    OperatorMeasurement,
    OperatorRow,
    RowStatus,
)
from inferometer.evaluators.kinds.operators.opperf import OPPERF_FORMATS
from inferometer.evaluators.kinds.operators.options import Mode, OperatorOptions
from inferometer.evaluators.reports.base import (
    EVALUATION_COLUMNS,
    NS_PER_US,
    STABILITY_COLUMN,
    Column,
    Report,
    Row,
    Value,
    in_ms,
    known,
    read,
    row_of,
    us,
)
from inferometer.evaluators.statistics import (
    Interval,
    batches_for_interval,
    carried_percentile,
    interval_over,
    percentile,
    serial_percentile_interval,
)

_NEAR = 3.0
"""The multiple of the floor below which a time is near it: more than a third of it is the harness's."""


class Bound(str, Enum):
    """The limiting resource of an operator, by the roofline."""

    MEMORY = "memory"
    COMPUTE = "compute"


@dataclass(frozen=True, slots=True)
class OperatorSummary:
    """The figures for the rows with one key and form, from one or more processes.

    For several processes, a time is the mean of their times. Times of blocks are divided by the runs in a
    block, so their percentiles are percentiles of block means.

    Attributes:
        p50_ns: The median time of a run.
        mean_ns: The mean time of a run.
        p90_ns: The 90th percentile; None if there are too few times.
        p99_ns: The 99th percentile; None if there are too few times.
        interval: The 95 % interval of p50: for one process, from its consecutive times; for several, from
            their p50 values; None if there are too few.
        runs: The number of measured runs in all processes.
        block: The number of runs in a time; the maximum over the processes.
        floor_ns: The time of a run that does nothing.
        near_floor: Whether p50 is below three times the floor.
        flops_per_s: Floating-point operations per second at p50; None if they are not stated or zero.
        bytes_per_s: Bytes of inputs and outputs per second at p50; None if they are not known. They may
            exceed the machine's peak if the data fits into the caches.
        flops_share: ``flops_per_s`` divided by the machine's peak.
        bytes_share: ``bytes_per_s`` divided by the machine's peak.
        arithmetic_intensity: Floating-point operations per byte moved.
        bound: Whether the intensity is left or right of the ridge of the roofline (Williams, Waterman and
            Patterson, "Roofline: An Insightful Visual Performance Model", 2009); None without a peak.
        peak_memory_bytes: The maximum over the processes.
    """

    p50_ns: float
    mean_ns: float
    p90_ns: float | None
    p99_ns: float | None
    interval: Interval | None
    runs: int
    processes: int
    block: int
    floor_ns: float
    near_floor: bool
    flops_per_s: float | None
    bytes_per_s: float | None
    flops_share: float | None
    bytes_share: float | None
    arithmetic_intensity: float | None
    bound: Bound | None
    peak_memory_bytes: int | None

    @classmethod
    def of(cls, rows: Sequence[OperatorRow], peak: MachinePeak | None = None) -> OperatorSummary | None:
        """Returns the figures; None if no row has times.

        Args:
            rows: The rows of one key and form, one for each process.
            peak: The peak of the machine.
        """
        measured = [row for row in rows if row.status is RowStatus.MEASURED and len(row.times_ns)]
        if not measured:
            return None
        times = [run_times(row) for row in measured]
        p50_ns = float(np.mean([percentile(each, 50) for each in times]))
        floor_ns = float(np.mean([row.floor_ns for row in measured]))
        first, seconds = measured[0], p50_ns / 1e9
        flops_per_s = first.flops / seconds if first.flops and seconds else None
        bytes_per_s = first.moved_bytes / seconds if first.moved_bytes and seconds else None
        intensity = first.flops / first.moved_bytes if first.flops is not None and first.moved_bytes else None
        memory = [row.peak_memory_bytes for row in measured if row.peak_memory_bytes is not None]
        return cls(
            p50_ns=p50_ns,
            mean_ns=float(np.mean([each.mean() for each in times])),
            p90_ns=_over(times, 90),
            p99_ns=_over(times, 99),
            interval=p50_interval(measured),
            runs=sum(len(row.times_ns) * row.block for row in measured),
            processes=len(measured),
            block=max(row.block for row in measured),
            floor_ns=floor_ns,
            near_floor=p50_ns < _NEAR * floor_ns,
            flops_per_s=flops_per_s,
            bytes_per_s=bytes_per_s,
            flops_share=flops_per_s / peak.flops_per_s if flops_per_s and peak else None,
            bytes_share=bytes_per_s / peak.bytes_per_s if bytes_per_s and peak else None,
            arithmetic_intensity=intensity,
            bound=_bound(intensity, peak),
            peak_memory_bytes=max(memory, default=None),
        )


def run_times(row: OperatorRow) -> NDArray[np.float64]:
    """Returns the times in nanoseconds per run, as float64."""
    return row.times_ns / row.block


def p50_interval(rows: Sequence[OperatorRow]) -> Interval | None:
    """Returns the 95 % interval of p50 in nanoseconds per run; see ``OperatorSummary``."""
    if len(rows) > 1:
        return interval_over([percentile(run_times(row), 50) for row in rows])
    (row,) = rows
    if len(row.times_ns) < batches_for_interval(row.times_ns):
        return None
    found = serial_percentile_interval(row.times_ns, 50)
    return None if found is None else Interval(found.low / row.block, found.high / row.block)


def _over(times: Sequence[NDArray[np.float64]], percent: float) -> float | None:
    found = [carried_percentile(each, percent) for each in times]
    known = [each for each in found if each is not None]
    return float(np.mean(known)) if len(known) == len(found) else None


def _bound(intensity: float | None, peak: MachinePeak | None) -> Bound | None:
    if intensity is None or peak is None:
        return None
    return Bound.COMPUTE if intensity * peak.bytes_per_s >= peak.flops_per_s else Bound.MEMORY


_GIGA = 1e9
_WORST_FIRST = (RowStatus.FAILED, RowStatus.WRONG, RowStatus.MISSING, RowStatus.MEASURED)


@dataclass(frozen=True, slots=True, eq=False)
class ReportedOperator:
    """The rows of one operator, case, form and mode in one framework, from all processes, with their figures.

    Attributes:
        rows: The rows, at least one.
        summary: Their figures; None if none was measured.
    """

    rows: tuple[OperatorRow, ...]
    summary: OperatorSummary | None

    @property
    def told(self) -> OperatorRow:
        """The row that represents the outcome: a row that was not measured, if there is one."""
        return min(self.rows, key=lambda row: _WORST_FIRST.index(row.status))

    @property
    def compared(self) -> Correctness:
        """The comparison with the greatest difference; that of ``told`` if there is none."""
        compared = [row.correctness for row in self.rows if row.correctness.max_absolute is not None]
        return max(compared, key=lambda each: each.max_relative or 0.0, default=self.told.correctness)


def reported_operators(measurement: OperatorMeasurement) -> list[ReportedOperator]:
    """Returns the rows of a measurement, combined over the processes, in order."""
    groups: dict[tuple[str, ...], list[OperatorRow]] = {}
    for row in measurement.rows:
        groups.setdefault((*row.key, row.form), []).append(row)
    return [
        ReportedOperator(tuple(rows), OperatorSummary.of(rows, measurement.peak)) for rows in groups.values()
    ]


def _giga(path: str) -> Callable[[object], float | None]:
    """Returns the ``value`` of a column in billions; see ``ms``."""

    def value(source: object) -> float | None:
        rate: float | None = read(source, path)
        return None if rate is None else rate / _GIGA

    return value


_ROW: tuple[Column[ReportedOperator], ...] = (
    Column("form", "form", detail=1, value="rows.0.form"),
    Column("mode", "mode", value="rows.0.mode.value"),
    Column("inputs", "inputs", wraps=True, value="rows.0.inputs_text"),
    Column("parameters", "parameters", detail=1, wraps=True, value="rows.0.parameters_text"),
    Column("p50_us", "p50 (us)", value=us("summary.p50_ns")),
    Column("p50_us_low", "low", detail=1, value=us("summary.interval.low")),
    Column("p50_us_high", "high", detail=1, value=us("summary.interval.high")),
    Column("mean_us", "mean (us)", detail=2, value=us("summary.mean_ns")),
    Column("p90_us", "p90 (us)", detail=2, value=us("summary.p90_ns")),
    Column("p99_us", "p99 (us)", detail=2, value=us("summary.p99_ns")),
    Column("gflops_per_s", "GFLOP/s", decimals=2, value=_giga("summary.flops_per_s")),
    Column("flops_share", "of the peak", decimals=3, detail=2, value="summary.flops_share"),
    Column("gbytes_per_s", "GB/s", decimals=2, value=_giga("summary.bytes_per_s")),
    Column("bytes_share", "of the peak bandwidth", decimals=3, detail=2, value="summary.bytes_share"),
    Column("intensity", "FLOP/byte", decimals=2, detail=2, value="summary.arithmetic_intensity"),
    Column("bound", "bound", detail=1, value="summary.bound.value"),
    Column("moved_bytes", "bytes moved", detail=1, value="rows.0.moved_bytes"),
    Column("flops", "FLOP", detail=2, value="rows.0.flops"),
    Column("block", "block", detail=2, value="summary.block"),
    Column("runs", "runs", detail=2, value="summary.runs"),
    Column("floor_us", "floor (us)", detail=2, value=us("summary.floor_ns")),
    Column("near_floor", "near the floor", detail=1, value="summary.near_floor"),
    Column("peak_memory_bytes", "peak memory (bytes)", detail=1, value="summary.peak_memory_bytes"),
    Column("memory_of", "memory of", detail=2, value=known("told.memory_of")),
    Column("max_difference", "max difference", decimals=9, detail=1, value="compared.max_absolute"),
    Column("relative_difference", "relative", decimals=9, detail=2, value="compared.max_relative"),
    Column("tolerance", "tolerance", decimals=9, detail=2, value="compared.tolerance"),
    Column("compared_with", "compared with", detail=2, value=known("compared.against")),
    Column("fused", "fused", detail=1, value=known("told.fused")),
    Column("status", "status", value="told.status.value"),
    Column("reason", "reason", wraps=True, value=known("told.reason")),
    Column("stop", "stop", detail=2, value="told.stop.value"),
    Column("processes", "processes", detail=2, value="summary.processes"),
    Column("preset", "shapes", detail=1, value="rows.0.preset"),
    Column("category", "category", detail=2, value="rows.0.category"),
    Column("api", "runs", detail=2, value="rows.0.api"),
)
_OPERATOR: Column[ReportedOperator] = Column("operator", "operator", stays=True, value="rows.0.operator")
_KNOWN = {column.key: column for column in EVALUATION_COLUMNS}
_FRAMEWORK = _KNOWN["framework_name"]
_ENVELOPE: tuple[Column[Evaluation[OperatorMeasurement]], ...] = (
    Column("dtype", "type", detail=2, value="measurement.options.dtype"),
    Column("cache", "cache", detail=2, value="measurement.options.cache.value"),
    Column("device", "device", detail=2, value=lambda of: str(of.system.device)),
    *(_KNOWN[key] for key in ("framework_version", "hostname", "threads", "id")),
    STABILITY_COLUMN,
)
"""What all rows of an evaluation have in common, beside the framework."""


class OperatorsReport(Report[OperatorMeasurement]):
    """One row for each operator, case, form and mode of each evaluation, combined over its processes.

    Times are for one run, in microseconds. Rates are at p50; shares are relative to the machine's own peak,
    and shares of bytes may exceed 1 if the inputs fit into the caches. The intensity is in FLOP per byte.
    """

    name = "operators"
    aliases = ("op",)
    summary = (
        "single operators: times in us, FLOP/s and bytes/s, memory, and the difference from the reference"
    )
    takes = (OperatorMeasurement,)
    layouts = OPPERF_FORMATS
    columns = (_OPERATOR, _FRAMEWORK, *_ROW, *_ENVELOPE)

    def rows(self, evaluations: Sequence[Evaluation[OperatorMeasurement]]) -> Iterator[Row]:
        for evaluation in evaluations:
            envelope = row_of((_FRAMEWORK, *_ENVELOPE), evaluation)
            for reported in reported_operators(evaluation.measurement):
                yield {**envelope, **row_of((_OPERATOR, *_ROW), reported)}

    def on_a_page(self) -> Report[OperatorMeasurement]:
        return OpperfReport()


class OpperfReport(Report[OperatorMeasurement]):
    """The rows of ``OperatorsReport`` in opperf's table format: forward and backward side by side.

    The averages are means in milliseconds, and the memory is in bytes. Operators that were not measured in
    any mode are left out. Beside the values of the columns, a row has those of ``OPPERF_FORMATS``.
    """

    name = "opperf"
    summary = "single operators, in opperf's table format"
    takes = (OperatorMeasurement,)
    layouts = OPPERF_FORMATS
    columns = (
        Column("operator", "Operator"),
        Column("forward_ms", "Avg Forward Time (ms)", decimals=4),
        Column("backward_ms", "Avg. Backward Time (ms)", decimals=4),
        Column("memory_bytes", "Max Mem Usage (Storage) (Bytes)"),
        Column("inputs", "Inputs", wraps=True),
        Column("framework", "Framework"),
    )

    def rows(self, evaluations: Sequence[Evaluation[OperatorMeasurement]]) -> Iterator[Row]:
        for evaluation in evaluations:
            cases: dict[tuple[str, ...], dict[Mode, ReportedOperator]] = {}
            for reported in reported_operators(evaluation.measurement):
                row = reported.rows[0]
                if reported.summary is not None:
                    cases.setdefault((*row.key[:-1], row.form), {})[row.mode] = reported
            for modes in cases.values():
                yield _opperf_row(evaluation, modes)


def _opperf_row(
    evaluation: Evaluation[OperatorMeasurement], modes: Mapping[Mode, ReportedOperator]
) -> dict[str, Value]:
    row = next(iter(modes.values())).rows[0]
    means = {mode: each.summary.mean_ns for mode, each in modes.items() if each.summary}
    memory = [each.summary.peak_memory_bytes for each in modes.values() if each.summary]
    most = max((each for each in memory if each is not None), default=None)
    asked, device = {each.mode for each in evaluation.measurement.rows}, evaluation.system.device
    return {
        "operator": row.operator,
        "forward_ms": in_ms(means.get(Mode.FORWARD)),
        "backward_ms": in_ms(means.get(Mode.BACKWARD)),
        "memory_bytes": most,
        "inputs": str(inputs := {**row.shapes, **row.parameters}),
        "inputs_json": json.dumps(inputs),
        "framework": f"{evaluation.system.manifest.framework.name} {row.form}",
        "profiler": "python" if Mode.BOTH in asked and Mode.BACKWARD not in asked else "native",
        "api": row.api.removeprefix("nd."),
        "storage": f"{device.kind.value}/{device.index}",
        "build": evaluation.system.environment.build,
        "memory_kb": None if most is None else most / 1000,
        **_percentiles(modes.get(Mode.BOTH) or modes.get(Mode.FORWARD)),
    }


def _percentiles(reported: ReportedOperator | None) -> dict[str, Value]:
    """Returns the mean and percentiles of all times, of which opperf does not require a number."""
    times = [run_times(row) for row in reported.rows if len(row.times_ns)] if reported else []
    of_each = {f"p{percent}_ms": [percentile(each, percent) for each in times] for percent in (50, 90, 99)}
    of_each["mean_ms"] = [float(each.mean()) for each in times]
    return {name: in_ms(float(np.mean(found))) if found else None for name, found in of_each.items()}


SHOWN_ROWS = 20
"""The number of rows shown for one evaluation; the report contains all rows."""


def operator_lines(evaluation: Evaluation[OperatorMeasurement]) -> Iterator[tuple[str, str]]:
    """Yields the number of rows, how they were measured, and the first rows.

    Each item is a name and a text; a text with an empty name belongs to the item above.
    """
    measured = evaluation.measurement
    rows = reported_operators(measured)
    yield "operators", counts_text([row.told.status for row in rows])
    yield "measured", _how(measured.options)
    yield "peak", "not known" if measured.peak is None else peak_text(measured.peak)
    for place, row in enumerate(rows[:SHOWN_ROWS]):
        yield ("" if place else "rows"), _row_text(row)
    if len(rows) > SHOWN_ROWS:
        yield "", f"and {len(rows) - SHOWN_ROWS} more: agent info evaluation operators --id={evaluation.id}"


def counts_text(statuses: list[RowStatus]) -> str:
    """Returns the number of rows by status: ``3 rows: 2 measured, 1 missing``."""
    counts = Counter(statuses)
    named = ", ".join(f"{counts[status]} {status.value}" for status in RowStatus if counts[status])
    rows = "1 row" if len(statuses) == 1 else f"{len(statuses)} rows"
    return f"{rows}: {named}" if statuses else "no rows"


def peak_text(peak: MachinePeak) -> str:
    """Returns the roofs of a machine."""
    threads = f"{peak.threads} thread{'s' * (peak.threads != 1)}"
    flops, transfer = peak.flops_per_s / _GIGA, peak.bytes_per_s / _GIGA
    return f"{flops:.1f} GFLOP/s, {transfer:.1f} GB/s with {threads}: {peak.how}"


def _how(options: OperatorOptions) -> str:
    if options.runs is not None:
        until = f"{options.runs} runs a row"
    elif options.target_percent is None:
        until = f"for {options.budget_s:g} s a row"
    else:
        until = (
            f"until the 95 % interval of p50 is ±{options.target_percent:g} %, for at most "
            f"{options.budget_s:g} s a row"
        )
    processes = f", in {options.processes} processes" if options.processes > 1 else ""
    values = "" if options.values == "table" else f", inputs of {options.values}"
    return f"{options.dtype}, {options.cache.value} cache, {until}{processes}{values}, seed {options.seed}"


def _row_text(reported: ReportedOperator) -> str:
    row, summary = reported.told, reported.summary
    mode = row.mode.value.replace("_", " + ")
    what = f"{row.operator} {mode}, {row.form or 'no form'}, {row.inputs_text}"
    if summary is None:
        return f"{what}: {row.status.value}: {row.reason}"
    ends = ""
    if summary.interval is not None:
        low, high = (end / NS_PER_US for end in summary.interval)
        ends = f" [{low:.3f}, {high:.3f}]"
    rate = "" if summary.flops_per_s is None else f", {summary.flops_per_s / _GIGA:.2f} GFLOP/s"
    rate += "" if summary.bytes_per_s is None else f", {summary.bytes_per_s / _GIGA:.2f} GB/s"
    floor = ", near the harness's floor" if summary.near_floor else ""
    failed = f"; {row.status.value}: {row.reason}" if row.reason else ""
    return f"{what}: p50 {summary.p50_ns / NS_PER_US:.3f}{ends} us{rate}{floor}{failed}"
