"""The reports on single operators: every figure of each, and the table of MXNet's opperf."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from inferometer.agent.operators.operator import ParameterValue, Shape
from inferometer.evaluators.evaluation import Evaluation
from inferometer.evaluators.kinds.operators.figures import OperatorSummary
from inferometer.evaluators.kinds.operators.measurement import (
    Mode,
    OperatorMeasurement,
    OperatorRow,
    RowStatus,
)
from inferometer.evaluators.reports.base import (
    EVALUATION_COLUMNS,
    STABILITY_COLUMN,
    Column,
    Report,
    Row,
    Value,
    describe_names,
    in_ms,
)

_NS_PER_US = 1000
_GIGA = 1e9
_WORST_FIRST = (RowStatus.FAILED, RowStatus.WRONG, RowStatus.MISSING, RowStatus.MEASURED)


@dataclass(frozen=True, slots=True, eq=False)
class ReportedOperator:
    """The rows of one operator, case, form and mode in one framework, of all processes, with their figures.

    Attributes:
        rows: The rows, at least one.
        summary: Their figures; None if none was measured.
    """

    rows: tuple[OperatorRow, ...]
    summary: OperatorSummary | None

    @property
    def told(self) -> OperatorRow:
        """The row that shows how the operator ended: one that was not measured, if there is one."""
        return min(self.rows, key=lambda row: _WORST_FIRST.index(row.status))


def reported_operators(measurement: OperatorMeasurement) -> list[ReportedOperator]:
    """Returns the rows of a measurement without the processes, in their order."""
    groups: dict[tuple[str, ...], list[OperatorRow]] = {}
    for row in measurement.rows:
        groups.setdefault((*row.key, row.form), []).append(row)
    return [
        ReportedOperator(tuple(rows), OperatorSummary.of(rows, measurement.peak)) for rows in groups.values()
    ]


def shapes_text(shapes: Mapping[str, Shape]) -> str:
    """Returns shapes by name as ``lhs=1024x1024 rhs=1024x1024``."""
    return " ".join(f"{name}={'x'.join(map(str, shape)) or 'scalar'}" for name, shape in shapes.items())


def parameters_text(parameters: Mapping[str, ParameterValue]) -> str:
    """Returns parameters by name as ``kernel=3,3 stride=1``."""
    return " ".join(f"{name}={_parameter_text(value)}" for name, value in parameters.items())


def _parameter_text(value: ParameterValue) -> str:
    if isinstance(value, tuple):
        return ",".join(map(str, value))
    return str(value).lower() if isinstance(value, bool) else str(value)


def _columns(*keys: str) -> Iterator[Column]:
    """Yields the columns that other reports have too."""
    known = {column.key: column for column in EVALUATION_COLUMNS}
    return (known[key] for key in keys)


class OperatorsReport(Report[OperatorMeasurement]):
    """One row for each operator, case, form and mode of each evaluation, over its processes.

    Times are those of one run, in microseconds. Rates are at p50; shares are those of the machine's own peak,
    and those of bytes may exceed 1 where the inputs fit into the caches. The intensity is in FLOP per byte.
    """

    name = "operators"
    summary = (
        "single operators: times in us, FLOP/s and bytes/s, memory, and the difference from the reference"
    )
    takes = (OperatorMeasurement,)
    columns = (
        Column("operator", "operator", stays=True),
        *_columns("framework_name"),
        Column("form", "form", detail=1),
        Column("mode", "mode"),
        Column("inputs", "inputs", wraps=True),
        Column("parameters", "parameters", detail=1, wraps=True),
        Column("p50_us", "p50 (us)"),
        Column("p50_us_low", "low", detail=1),
        Column("p50_us_high", "high", detail=1),
        Column("mean_us", "mean (us)", detail=2),
        Column("p90_us", "p90 (us)", detail=2),
        Column("p99_us", "p99 (us)", detail=2),
        Column("gflops_per_s", "GFLOP/s", decimals=2),
        Column("flops_share", "of the peak", decimals=3, detail=2),
        Column("gbytes_per_s", "GB/s", decimals=2),
        Column("bytes_share", "of the peak bandwidth", decimals=3, detail=2),
        Column("intensity", "FLOP/byte", decimals=2, detail=2),
        Column("bound", "bound", detail=1),
        Column("moved_bytes", "bytes moved", detail=1),
        Column("flops", "FLOP", detail=2),
        Column("block", "block", detail=2),
        Column("runs", "runs", detail=2),
        Column("floor_us", "floor (us)", detail=2),
        Column("near_floor", "near the floor", detail=1),
        Column("peak_memory_bytes", "peak memory (bytes)", detail=1),
        Column("memory_of", "memory of", detail=2),
        Column("max_difference", "max difference", decimals=9, detail=1),
        Column("relative_difference", "relative", decimals=9, detail=2),
        Column("tolerance", "tolerance", decimals=9, detail=2),
        Column("compared_with", "compared with", detail=2),
        Column("fused", "fused", detail=1),
        Column("status", "status"),
        Column("reason", "reason", wraps=True),
        Column("stop", "stop", detail=2),
        Column("processes", "processes", detail=2),
        Column("preset", "shapes", detail=1),
        Column("category", "category", detail=2),
        Column("api", "runs", detail=2),
        Column("dtype", "type", detail=2),
        Column("cache", "cache", detail=2),
        Column("device", "device", detail=2),
        *_columns("framework_version", "hostname", "threads", "id"),
        STABILITY_COLUMN,
    )

    def rows(self, evaluations: Sequence[Evaluation[OperatorMeasurement]]) -> Iterator[Row]:
        """Yields the rows of each evaluation, in their order."""
        for evaluation in evaluations:
            envelope = _envelope(evaluation)
            for reported in reported_operators(evaluation.measurement):
                yield {**envelope, **_asked(reported), **_figures(reported.summary), **_outcome(reported)}

    def on_a_page(self) -> Report[OperatorMeasurement]:
        """Returns the table of opperf."""
        return OpperfReport()


def _envelope(evaluation: Evaluation[OperatorMeasurement]) -> dict[str, Value]:
    """Returns what all rows of an evaluation have in common."""
    system, options = evaluation.system, evaluation.measurement.options
    return {
        "id": evaluation.id,
        "framework_name": system.manifest.framework.name,
        "framework_version": system.framework_version,
        "hostname": system.environment.hostname,
        "device": str(system.device),
        "threads": system.threads,
        "dtype": options.dtype,
        "cache": options.cache.value,
        "stability": describe_names(evaluation)["stability"],
    }


def _asked(reported: ReportedOperator) -> dict[str, Value]:
    row = reported.rows[0]
    return {
        "operator": row.operator,
        "category": row.category,
        "preset": row.preset,
        "inputs": shapes_text(row.shapes),
        "parameters": parameters_text(row.parameters),
        "form": row.form,
        "api": row.api,
        "mode": row.mode.value,
        "flops": row.flops,
        "moved_bytes": row.moved_bytes,
    }


_NO_FIGURES: Mapping[str, Value] = dict.fromkeys(
    (
        *("p50_us", "p50_us_low", "p50_us_high", "mean_us", "p90_us", "p99_us", "floor_us"),
        *("gflops_per_s", "flops_share", "gbytes_per_s", "bytes_share", "intensity", "bound"),
        *("block", "runs", "near_floor", "peak_memory_bytes", "processes"),
    )
)


def _figures(summary: OperatorSummary | None) -> Mapping[str, Value]:
    if summary is None:
        return _NO_FIGURES
    low, high = summary.interval or (None, None)
    return {
        "p50_us": _in_us(summary.p50_ns),
        "p50_us_low": _in_us(low),
        "p50_us_high": _in_us(high),
        "mean_us": _in_us(summary.mean_ns),
        "p90_us": _in_us(summary.p90_ns),
        "p99_us": _in_us(summary.p99_ns),
        "gflops_per_s": _in_giga(summary.flops_per_s),
        "flops_share": summary.flops_share,
        "gbytes_per_s": _in_giga(summary.bytes_per_s),
        "bytes_share": summary.bytes_share,
        "intensity": summary.arithmetic_intensity,
        "bound": summary.bound.value if summary.bound else None,
        "block": summary.block,
        "runs": summary.runs,
        "floor_us": _in_us(summary.floor_ns),
        "near_floor": summary.near_floor,
        "peak_memory_bytes": summary.peak_memory_bytes,
        "processes": summary.processes,
    }


def _outcome(reported: ReportedOperator) -> dict[str, Value]:
    told = reported.told
    compared = [row.correctness for row in reported.rows if row.correctness.max_absolute is not None]
    worst = max(compared, key=lambda each: each.max_relative or 0.0, default=told.correctness)
    return {
        "memory_of": told.memory_of or None,
        "max_difference": worst.max_absolute,
        "relative_difference": worst.max_relative,
        "tolerance": worst.tolerance,
        "compared_with": worst.against or None,
        "fused": told.fused or None,
        "status": told.status.value,
        "reason": told.reason or None,
        "stop": told.stop.value if told.stop else None,
    }


def _in_us(duration_ns: float | None) -> float | None:
    return None if duration_ns is None else duration_ns / _NS_PER_US


def _in_giga(rate: float | None) -> float | None:
    return None if rate is None else rate / _GIGA


class OpperfReport(Report[OperatorMeasurement]):
    """The rows of ``OperatorsReport`` as opperf's table has them: forward and backward side by side.

    The averages are means in milliseconds, and the memory is in bytes. Operators that were measured in no
    mode are left out, and those of the mode ``forward_backward`` alone have no times of their own here.
    """

    name = "opperf"
    summary = "single operators, as opperf's table has them"
    takes = (OperatorMeasurement,)
    columns = (
        Column("operator", "Operator"),
        Column("forward_ms", "Avg Forward Time (ms)", decimals=4),
        Column("backward_ms", "Avg. Backward Time (ms)", decimals=4),
        Column("memory_bytes", "Max Mem Usage (Storage) (Bytes)"),
        Column("inputs", "Inputs", wraps=True),
        Column("framework", "Framework"),
    )

    def rows(self, evaluations: Sequence[Evaluation[OperatorMeasurement]]) -> Iterator[Row]:
        """Yields a row for each operator, case and form of each evaluation."""
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
    return {
        "operator": row.operator,
        "forward_ms": in_ms(means.get(Mode.FORWARD)),
        "backward_ms": in_ms(means.get(Mode.BACKWARD)),
        "memory_bytes": max((each for each in memory if each is not None), default=None),
        "inputs": str({**row.shapes, **row.parameters}),
        "framework": f"{evaluation.system.manifest.framework.name} {row.form}",
    }
