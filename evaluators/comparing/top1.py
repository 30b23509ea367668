"""The ratio of top-1 accuracies over the same inputs."""

from __future__ import annotations

import math
from collections.abc import Sequence

from inferometer.evaluators.comparing.verdict import TOP1, Ratio, Verdict
from inferometer.evaluators.kinds.batches.measurement import Accuracy

_Z_95 = 1.959964
_HALF = 0.5


def compare_top1(a: Sequence[Accuracy], b: Sequence[Accuracy], *, threshold: float) -> Ratio:
    """Compares the top-1 accuracy of B with that of A over the same inputs.

    The interval is that of the ratio over other inputs of the kind, by Katz et al. ("Obtaining confidence
    intervals for the risk ratio in cohort studies", Biometrics 34, 1978), with half a wrong and half a right
    answer added to each side. It assumes independent sides; for the same inputs it is wider than necessary.
    Repeated runs of a side have the same inputs, and do not narrow it.

    Over the same inputs the ratio itself has no sampling error: within the threshold it is the same, and
    beyond it it is worse or better if the interval excludes 1, or else undecided.

    Args:
        a: At least one with evaluated inputs.
        b: At least one with evaluated inputs.
        threshold: The fraction by which it may differ; 0.01 is 1 %.

    Raises:
        ValueError: A side has no evaluated input.
    """
    if not all(any(each.evaluated for each in side) for side in (a, b)):
        raise ValueError("each side needs at least one evaluated input")
    shares = [sum(each.top1 for each in side) / sum(each.evaluated for each in side) for side in (a, b)]
    variance, logs = 0.0, []
    for share, side in zip(shares, (a, b), strict=True):
        inputs = min(each.evaluated for each in side if each.evaluated)
        right, every = share * inputs + _HALF, inputs + 2 * _HALF
        variance += 1 / right - 1 / every
        logs.append(math.log(right / every))
    reach = _Z_95 * math.sqrt(variance)
    low, high = (math.exp(logs[1] - logs[0] + way * reach) for way in (-1, 1))
    value = 1.0 if shares[0] == shares[1] else shares[1] / shares[0] if shares[0] else math.inf
    verdict = _verdict(value, low, high, threshold)
    return Ratio(TOP1, shares[0], shares[1], value, low, high, threshold, verdict)


def _verdict(value: float, low: float, high: float, threshold: float) -> Verdict:
    if 1 / (1 + threshold) <= value <= 1 + threshold:
        return Verdict.SAME
    if low > 1:
        return Verdict.BETTER
    return Verdict.WORSE if high < 1 else Verdict.UNDECIDED
