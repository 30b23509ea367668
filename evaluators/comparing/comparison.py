"""The comparison of two sides: which figures, by which thresholds, and what follows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from evaluators.comparing.figures import FIGURES, MAX_QPS, THROUGHPUT, TOP1, listed
from evaluators.comparing.rates import compare_rates, noise_of_rates
from evaluators.comparing.sides import Side
from evaluators.comparing.times import compare, noise
from evaluators.comparing.top1 import compare_top1
from evaluators.comparing.verdict import Ratio
from evaluators.loadgen.record import LoadKind
from evaluators.store.base import DATASET
from manifests.errors import ConfigurationError

_SEED = 0  # the same evaluations have the same intervals, whenever they are compared


def chosen_figures(a: Side, b: Side, wanted: Sequence[str] | None) -> tuple[str, ...]:
    """Returns the figures to compare: those that are wanted, or all that both sides have.

    Raises:
        ConfigurationError: The sides are not to be compared, or do not have what is wanted.
    """
    a.check_comparable(b)
    if a.kind == LoadKind.MAX_QPS.value:
        there: tuple[str, ...] = (MAX_QPS,)
    elif _counts_accuracy(a, b):
        there = (*FIGURES, TOP1)
    elif a.due_at_once or b.due_at_once:
        there = (THROUGHPUT,)
    else:
        there = FIGURES
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
    """Makes sure that no profiler slowed the runs of a side down.

    Raises:
        ConfigurationError: One did.
    """
    if (profiled := side.profiled) is not None:
        raise ConfigurationError(
            f"{side.name}: evaluation {profiled.id} ran under a profiler "
            f"({profiled.options.trace_level.name}), which slows the model down; "
            "evaluate with --trace_level=MODEL_TRACE or less"
        )


def measured_thresholds(runs: Side, figures: Sequence[str]) -> dict[str, float]:
    """Returns by how much the figures of like runs differ, by name; top-1 is not among them.

    Raises:
        ConfigurationError: There are fewer than two runs, or a profiler slowed one down.
    """
    if len(runs.evaluations) < 2:
        raise ConfigurationError(
            f"{runs.name} holds 1 evaluation; give at least two of the same system, or --threshold"
        )
    if runs.kind == LoadKind.MAX_QPS.value:
        return {MAX_QPS: noise_of_rates(runs.answers)}
    of_times = [figure for figure in figures if figure != TOP1]
    if not of_times:
        return {}
    check_undisturbed(runs)
    return noise(runs.run_times(), of_times)


def compare_sides(
    a: Side, b: Side, figures: Sequence[str], thresholds: Mapping[str, float]
) -> tuple[Ratio, ...]:
    """Compares two sides, which ``chosen_figures`` has approved of.

    Args:
        a: What B is compared with.
        b: What is judged.
        figures: What is compared, in order.
        thresholds: The share by which each may differ, by its name.

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


def _counts_accuracy(a: Side, b: Side) -> bool:
    return a.kind == DATASET and bool(a.accuracies and b.accuracies) and a.same_inputs(b)


def _missing(figure: str, a: Side, there: Sequence[str]) -> str:
    """Why a figure is not there, and what is."""
    if a.kind == LoadKind.MAX_QPS.value:
        return f"{figure} is no figure of searches for the highest rate; they have {MAX_QPS} alone"
    if figure == TOP1 and a.kind == DATASET:
        return f"{figure} takes right answers that both sides counted over the same inputs; leave it out"
    if there == (THROUGHPUT,):
        reason = "all were due at once, so that latencies follow from how many there were"
        return f"{figure} is no figure of these queries: {reason}; they have {THROUGHPUT} alone"
    has = listed((*FIGURES, *(each for each in there if each not in FIGURES), "other percentiles"))
    return f"{figure} is no figure of these evaluations; they have {has}"
