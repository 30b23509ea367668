"""Comparison of two sides: the figures to compare, their ratios with verdicts, and the rows of a report."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence

from inferometer.evaluators.comparing.rates import compare_rates, noise_of_rates
from inferometer.evaluators.comparing.sides import Side
from inferometer.evaluators.comparing.times import compare, noise
from inferometer.evaluators.comparing.top1 import compare_top1
from inferometer.evaluators.comparing.verdict import (
    FIGURES,
    MAX_QPS,
    THROUGHPUT,
    TOP1,
    Ratio,
    listed,
    percent_of,
)
from inferometer.evaluators.reports.base import Column, Row
from inferometer.manifests.errors import ConfigurationError

_MOST_NOISE = 1.0
_SEED = 0  # the same evaluations have the same intervals, whenever they are compared


def chosen_figures(a: Side, b: Side, wanted: Sequence[str] | None) -> tuple[str, ...]:
    """Returns the figures to compare: the ``wanted`` ones, or all that both sides have.

    Raises:
        ConfigurationError: The sides cannot be compared, or lack a wanted figure.
    """
    a.check_comparable(b)
    there = a.kind.figures((*a.measurements, *b.measurements))
    if not (a.accuracies and b.accuracies and a.same_inputs(b)):
        there = tuple(figure for figure in there if figure != TOP1)
    figures = there if wanted is None else tuple(wanted)
    for figure in figures:
        of_times = figure not in (MAX_QPS, TOP1)
        any_percentile = there[: len(FIGURES)] == FIGURES
        if figure not in there and not (of_times and any_percentile):
            raise ConfigurationError(_missing(figure, a, there))
        if of_times:
            for side in (a, b):
                check_undisturbed(side)
    return figures


def check_undisturbed(side: Side) -> None:
    """Checks that no profiler slowed the runs of a side down.

    Raises:
        ConfigurationError: One did.
    """
    if profiled := next((each for each in side.evaluations if each.profiled), None):
        raise ConfigurationError(
            f"{side.name}: evaluation {profiled.id} ran under a profiler "
            f"({profiled.trace_level.name}), which slows the model down; "
            "evaluate with --trace_level=MODEL_TRACE or less"
        )


def measured_thresholds(runs: Side, figures: Sequence[str]) -> dict[str, float]:
    """Returns the thresholds that repeated runs of one system give, by figure; top-1 has none.

    Runs that differ by more than the figure itself give no threshold: it is infinite.

    Raises:
        ConfigurationError: There are fewer than two runs, or a profiler slowed one down.
    """
    if len(runs.evaluations) < 2:
        raise ConfigurationError(
            f"{runs.name} holds 1 evaluation; give at least two of the same system, or --threshold"
        )
    if MAX_QPS in figures:
        return {MAX_QPS: _usable(noise_of_rates(runs.answers))}
    of_times = [figure for figure in figures if figure != TOP1]
    if not of_times:
        return {}
    check_undisturbed(runs)
    return {figure: _usable(found) for figure, found in noise(runs.run_times(), of_times).items()}


def _usable(threshold: float) -> float:
    return threshold if threshold <= _MOST_NOISE else math.inf


def compare_sides(
    a: Side, b: Side, figures: Sequence[str], thresholds: Mapping[str, float]
) -> tuple[Ratio, ...]:
    """Compares two sides, which ``chosen_figures`` has checked.

    Args:
        a: The baseline.
        b: The judged side.
        figures: The figures, in order.
        thresholds: The fraction by which each figure may differ, by its name.

    Raises:
        ConfigurationError: A run has no times.
    """
    of_times = [figure for figure in figures if figure not in (MAX_QPS, TOP1)]
    found: dict[str, Ratio] = {}
    if of_times:
        runs = a.run_times(), b.run_times()
        ratios = compare(*runs, thresholds=thresholds, seed=_SEED, figures=of_times)
        found = {ratio.figure: ratio for ratio in ratios}
    if MAX_QPS in figures:
        found[MAX_QPS] = compare_rates(a.answers, b.answers, threshold=thresholds[MAX_QPS])
    if TOP1 in figures:
        found[TOP1] = compare_top1(a.accuracies, b.accuracies, threshold=thresholds[TOP1])
    return tuple(found[figure] for figure in figures)


def _missing(figure: str, a: Side, there: Sequence[str]) -> str:
    """Returns the reason why a figure is missing, and the available ones."""
    if there == (MAX_QPS,):
        return f"{figure} is no figure of searches for the highest rate; they have {MAX_QPS} alone"
    if figure == TOP1 and TOP1 in a.kind.figures(a.measurements):
        return f"{figure} takes right answers that both sides counted over the same inputs; leave it out"
    if there == (THROUGHPUT,):
        reason = "all were due at once, so that latencies follow from how many there were"
        return f"{figure} is no figure of these queries: {reason}; they have {THROUGHPUT} alone"
    has = listed((*FIGURES, *(each for each in there if each not in FIGURES), "other percentiles"))
    return f"{figure} is no figure of these evaluations; they have {has}"


COLUMNS = (
    Column("figure", "figure"),
    Column("unit", "unit"),
    Column("a", "A"),
    Column("b", "B"),
    Column("ratio", "B / A", decimals=4),
    Column("ratio_low", "low", decimals=4),
    Column("ratio_high", "high", decimals=4),
    Column("threshold", "threshold", decimals=4, detail=1),
    Column("verdict", "verdict"),
)
"""``a`` and ``b`` are in the row's ``unit``; ``ratio_low`` and ``ratio_high`` are its 95 % interval."""
_NS_PER_MS = 1_000_000
_UNITS = {MAX_QPS: "queries/s", TOP1: "share"}


def rows_of(ratios: Sequence[Ratio], counted: str) -> Iterator[Row]:
    """Yields a row for each figure; a percentile of too few values for an interval is empty.

    Args:
        ratios: The figures.
        counted: The unit that throughput counts, such as ``inputs``.
    """
    for ratio in ratios:
        latency = percent_of(ratio.figure) is not None
        carried = not latency or ratio.low is not None or not math.isfinite(ratio.value)
        scale = _NS_PER_MS if latency else 1
        unit = "ms" if latency else f"{counted}/s" if ratio.figure == THROUGHPUT else _UNITS[ratio.figure]
        yield {
            "figure": ratio.figure,
            "unit": unit,
            "a": ratio.a / scale if carried else None,
            "b": ratio.b / scale if carried else None,
            "ratio": ratio.value if carried else None,
            "ratio_low": ratio.low,
            "ratio_high": ratio.high,
            "threshold": ratio.threshold,
            "verdict": ratio.verdict.value,
        }
