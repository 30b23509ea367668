"""The summary of a benchmark of operators, for a person to read."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from inferometer.evaluators.evaluation import Evaluation
from inferometer.evaluators.kinds.operators.measurement import (
    MachinePeak,
    OperatorMeasurement,
    OperatorOptions,
    RowStatus,
)
from inferometer.evaluators.kinds.operators.report import ReportedOperator, reported_operators, shapes_text

SHOWN_ROWS = 20
"""The rows that are shown of one evaluation; the report has all."""
_NS_PER_US = 1000
_GIGA = 1e9


def operator_lines(evaluation: Evaluation[OperatorMeasurement]) -> Iterator[tuple[str, str]]:
    """Yields how many rows there are, how they were measured, and the first of them.

    Each is a name and a text; a text without a name belongs to the one above.
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
    """Returns how many rows ended in which way: ``3 rows: 2 measured, 1 missing``."""
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
    what = f"{row.operator} {mode}, {row.form or 'no form'}, {shapes_text(row.shapes)}"
    if summary is None:
        return f"{what}: {row.status.value}: {row.reason}"
    ends = ""
    if summary.interval is not None:
        low, high = (end / _NS_PER_US for end in summary.interval)
        ends = f" [{low:.3f}, {high:.3f}]"
    rate = "" if summary.flops_per_s is None else f", {summary.flops_per_s / _GIGA:.2f} GFLOP/s"
    rate += "" if summary.bytes_per_s is None else f", {summary.bytes_per_s / _GIGA:.2f} GB/s"
    floor = ", near the harness's floor" if summary.near_floor else ""
    failed = f"; {row.status.value}: {row.reason}" if row.reason else ""
    return f"{what}: p50 {summary.p50_ns / _NS_PER_US:.3f}{ends} us{rate}{floor}{failed}"
