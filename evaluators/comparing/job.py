"""The job behind ``compare``: decides whether one side of evaluations is worse than the other."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pkgutil import resolve_name

from inferometer.evaluators.comparing.comparison import (
    COLUMNS,
    DIFFERS,
    Side,
    chosen_figures,
    compare_sides,
    measured_thresholds,
    rows_of,
)
from inferometer.evaluators.jobs import options
from inferometer.evaluators.jobs.options import ACCURACY_THRESHOLD, THRESHOLD
from inferometer.evaluators.reports.base import Column, Row
from inferometer.evaluators.verdict import TOP1, Ratio, Verdict, higher_is_better, listed
from inferometer.manifests.errors import ConfigurationError


@dataclass(frozen=True, slots=True, kw_only=True)
class ComparisonRequest:
    """A comparison of two sides, with the thresholds that a difference may not exceed.

    Attributes:
        a: The baseline.
        b: The judged side.
        noise: Evaluations of one system, whose differences set the figures' thresholds; None if not given.
        threshold: The fraction by which a time or a rate may differ; None means the default.
        accuracy_threshold: The fraction by which top-1 may differ.
        figures: The figures to compare; None means all that both sides have.

    Raises:
        ConfigurationError: A threshold is out of range or given twice, or an evaluation is on both sides.
    """

    a: Side
    b: Side
    noise: Side | None = None
    threshold: float | None = None
    accuracy_threshold: float = ACCURACY_THRESHOLD
    figures: tuple[str, ...] | None = None

    def __post_init__(self) -> None:
        options.check(self, options.COMPARISON)
        check_one_threshold(self.noise is not None, self.threshold)
        if twice := _in_both(self.a, self.b):
            raise ConfigurationError(f"evaluation {twice} is on both sides; compare it with another one")
        if self.noise is not None and (judged := _in_both(self.noise, self.b)):
            raise ConfigurationError(
                f"evaluation {judged} of --noise is one of B, which would be judged by its own runs; "
                "give other runs, such as those of A"
            )


def check_one_threshold(noise: bool, threshold: float | None) -> None:
    """Raises ConfigurationError if both ``noise`` and ``threshold`` are given."""
    if noise and threshold is not None:
        raise ConfigurationError("--noise measures the threshold that --threshold gives; leave out one")


@dataclass(frozen=True, slots=True)
class Comparison:
    """The result of a comparison.

    Attributes:
        rows: A row of ``columns`` for each figure or, if operators are compared, for each of their rows.
        notes: Notes on the rows, one line each; those on differing conditions begin with ``DIFFERS``.
        undecided: The reason for each undecided figure, and how much worse B may be, one line each.
        conclusion: The conclusion from all figures together, in one line.
        worse: Whether B is worse in any figure.
    """

    rows: tuple[Row, ...]
    notes: tuple[str, ...]
    undecided: tuple[str, ...]
    conclusion: str
    worse: bool
    columns: tuple[Column, ...] = COLUMNS


def compare(request: ComparisonRequest) -> Comparison:
    """Compares two sides.

    Raises:
        ConfigurationError: The sides cannot be compared, or lack a wanted figure.
    """
    a, b = request.a, request.b
    if (comparer := a.kind.comparer or b.kind.comparer) is not None:
        compared: Comparison = resolve_name(comparer)(request)
        return compared
    figures = chosen_figures(a, b, request.figures)
    ratios = compare_sides(a, b, figures, _thresholds(request, figures))
    undecided = [ratio for ratio in ratios if ratio.verdict is Verdict.UNDECIDED]
    return Comparison(
        rows=tuple(rows_of(ratios, a.kind.counted)),
        notes=tuple(_notes(request, figures)),
        undecided=tuple(f"{ratio.figure} is undecided: {_undecided(ratio)}" for ratio in undecided),
        conclusion=_conclusion(ratios),
        worse=any(ratio.verdict is Verdict.WORSE for ratio in ratios),
    )


def _conclusion(ratios: Sequence[Ratio]) -> str:
    found = {verdict: [ratio.figure for ratio in ratios if ratio.verdict is verdict] for verdict in Verdict}
    if found[Verdict.WORSE]:
        differing = (ratio for ratio in ratios if ratio.verdict is Verdict.WORSE)
        worse = "; ".join(difference_text(ratio.figure, ratio) for ratio in differing)
        parts = [f"REGRESSION: B is worse than A: {worse}"]
    else:
        parts = ["no regression was shown" if found[Verdict.UNDECIDED] else "no regression"]
    for verdict, words in (
        (Verdict.BETTER, "better in"),
        (Verdict.SAME, "the same in"),
        (Verdict.UNDECIDED, "undecided in"),
    ):
        if found[verdict]:
            parts.append(f"{words} {listed(found[verdict])}")
    return "; ".join(parts)


def difference_text(name: str, ratio: Ratio) -> str:
    """Returns how many times A's figure B's is, with the interval."""
    interval = "" if ratio.low is None or ratio.high is None else f" [{ratio.low:.4g}, {ratio.high:.4g}]"
    return f"{name} is {ratio.value:.4g} times A's{interval}"


def _undecided(ratio: Ratio) -> str:
    """Returns why a figure is undecided, and how much worse B may be."""
    if not math.isfinite(ratio.threshold):
        return (
            "the runs of --noise differ by more than 100 % in this figure, or have no answer for it, so they "
            "give no threshold; give more and longer runs, made on a quiet machine"
        )
    if ratio.low is None or ratio.high is None:
        if math.isnan(ratio.value):
            return "neither side has a right answer there"
        return "too few values for an interval; give more or longer runs, or leave it out of --figures"
    worst = ratio.high
    if higher_is_better(ratio.figure):
        worst = 1 / ratio.low if ratio.low else math.inf
    allowed = f"{100 * ratio.threshold:.3g} %"
    if worst <= 1 + ratio.threshold:
        return f"B is the same, or better by more than {allowed}"
    if math.isinf(worst):
        return "B may be worse by any amount"
    bound = f"{100 * (worst - 1):.3g} %" if worst < 2 else f"{worst:.3g} times"
    return f"B may be worse by up to {bound}, where {allowed} is allowed; give more or longer runs"


def _in_both(one: Side, other: Side) -> str | None:
    """Returns the id of an evaluation that is on both sides; None if there is none."""
    ids = {evaluation.id for evaluation in one.evaluations}
    return next((evaluation.id for evaluation in other.evaluations if evaluation.id in ids), None)


def _thresholds(request: ComparisonRequest, figures: Sequence[str]) -> Mapping[str, float]:
    accuracy = {TOP1: request.accuracy_threshold}
    if request.noise is not None:
        request.noise.check_comparable(request.a)
        return measured_thresholds(request.noise, figures) | accuracy
    threshold = THRESHOLD if request.threshold is None else request.threshold
    return dict.fromkeys(figures, threshold) | accuracy


def conditions_warnings(side: Side) -> Iterator[str]:
    """Yields the unstable conditions of a side as one line; nothing if all are stable."""
    found = {each.id: each.conditions.warning for each in side.evaluations if each.conditions}
    suspect = {evaluation_id: warning for evaluation_id, warning in found.items() if warning}
    if suspect:
        first = next(iter(suspect))
        count = f"{len(suspect)} of {len(side.evaluations)} evaluations not stable, such as "
        which = count * (len(side.evaluations) > 1) + f"{first} {suspect[first]}"
        yield f"{side.name}: {which}; its difference may be that of the conditions"


def _scores(a: Side, b: Side) -> Iterator[str]:
    """Yields the first score of each side in tasks that are not judged, which are all but classification."""
    results = a.first_result, b.first_result
    sides = zip((a, b), results, strict=True)
    told = [f"{side.name} {result.first_text}" for side, result in sides if result]
    if len(told) == len(results) and results[0] and results[0].task != "classification":
        yield f"{results[0].task}: {', '.join(told)}; scores of this task are not judged"


def _notes(request: ComparisonRequest, figures: Sequence[str]) -> Iterator[str]:
    """Yields notes on the rows: the source of the thresholds, the differences, and sides with one run."""
    a, b, noise = request.a, request.b, request.noise
    if noise is not None:
        yield from (f"{DIFFERS}{difference}" for difference in noise.differences(a))
    elif request.threshold is None and set(figures) != {TOP1}:
        default = f"threshold {100 * THRESHOLD:g} %, the default"
        yield f"{default}; --noise measures it, --threshold gives another"
    yield from (f"{DIFFERS}{difference}" for difference in a.differences(b))
    yield from _scores(a, b)
    yield from (f"warning: {line}" for side in (a, b) for line in conditions_warnings(side))
    if noise is None and set(figures) != {TOP1}:
        single = [side.name for side in (a, b) if side.processes == 1]
        how = "predict --repeat=4" if a.kind.request is None else "a process each"
        yield from single_processes(single, f"({how}), or --noise")


def single_processes(names: Sequence[str], remedy: str) -> Iterator[str]:
    """Yields a warning about the sides that are single processes, if there are any."""
    if names:
        which = f"{' and '.join(names)} {'are one process each' if len(names) > 1 else 'is one process'}"
        yield (
            f"warning: {which}, which cannot tell how much the next one would differ; "
            f"give 4 or more a side {remedy}"
        )
