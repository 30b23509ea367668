"""What follows from a comparison, in words."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

from evaluators.comparing.figures import higher_is_better, listed
from evaluators.comparing.verdict import Ratio, Verdict

_TWICE = 2


def warnings_of(ratios: Sequence[Ratio]) -> Iterator[str]:
    """Yields why figures are undecided, a line each."""
    for ratio in ratios:
        if ratio.verdict is Verdict.UNDECIDED:
            yield f"warning: {ratio.figure} is undecided: {_undecided(ratio)}"


def conclusion(ratios: Sequence[Ratio]) -> str:
    """Returns what follows from all figures together, in one line."""
    found = {verdict: [ratio.figure for ratio in ratios if ratio.verdict is verdict] for verdict in Verdict}
    if found[Verdict.WORSE]:
        told = "; ".join(_told(ratio) for ratio in ratios if ratio.verdict is Verdict.WORSE)
        parts = [f"REGRESSION: B is worse than A: {told}"]
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


def _told(ratio: Ratio) -> str:
    return f"{ratio.figure} is {ratio.value:.4g} times A's{_interval(ratio)}"


def _interval(ratio: Ratio) -> str:
    return "" if ratio.low is None or ratio.high is None else f" [{ratio.low:.4g}, {ratio.high:.4g}]"


def _undecided(ratio: Ratio) -> str:
    """Why, and how much worse B may be."""
    if not math.isfinite(ratio.threshold):
        return "the runs of --noise have no answer at it, so that there is no threshold"
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
    bound = f"{100 * (worst - 1):.3g} %" if worst < _TWICE else f"{worst:.3g} times"
    return f"B may be worse by up to {bound}, where {allowed} is allowed; give more or longer runs"
