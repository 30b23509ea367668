"""Top-1 over the same inputs: equal is same, many fewer is worse, few fewer is undecided."""

from __future__ import annotations

import math

import numpy as np
import pytest

from inferometer.evaluators.comparing.comparison import compare_top1
from inferometer.evaluators.tasks.metric import Accuracy
from inferometer.evaluators.verdict import Verdict


def right(top1: int, evaluated: int = 360) -> Accuracy:
    return Accuracy(top1, evaluated, evaluated)


@pytest.mark.parametrize(
    ("top1", "verdict"),
    [
        (350, Verdict.SAME),
        (349, Verdict.SAME),
        (344, Verdict.UNDECIDED),
        (320, Verdict.WORSE),
        (360, Verdict.BETTER),
    ],
)
def test_the_verdict_follows_from_how_many_are_right(top1: int, verdict: Verdict) -> None:
    ratio = compare_top1([right(350)], [right(top1)], threshold=0.01)

    assert ratio.value == pytest.approx(top1 / 350)
    assert ratio.verdict is verdict


def test_the_same_inputs_again_tell_nothing_more() -> None:
    once = compare_top1([right(350)], [right(344)], threshold=0.01)
    often = compare_top1([right(350)] * 9, [right(344)] * 9, threshold=0.01)

    assert often == once


def test_the_interval_holds_the_ratio_of_other_inputs() -> None:
    random = np.random.default_rng(1)
    held = 0
    for _ in range(1000):
        ratio = compare_top1(
            [right(int(random.binomial(360, 0.95)))], [right(int(random.binomial(360, 0.9)))], threshold=0.0
        )
        assert ratio.low is not None
        assert ratio.high is not None
        held += ratio.low <= 0.9 / 0.95 <= ratio.high
    assert 930 <= held <= 975


def test_nothing_right_is_worse_than_something() -> None:
    assert compare_top1([right(300)], [right(0)], threshold=0.01).verdict is Verdict.WORSE
    won = compare_top1([right(0)], [right(300)], threshold=0.01)
    assert (won.value, won.verdict) == (math.inf, Verdict.BETTER)
    assert compare_top1([right(0)], [right(0)], threshold=0.01).verdict is Verdict.SAME


def test_a_side_without_inputs_is_refused() -> None:
    with pytest.raises(ValueError, match="at least one evaluated input"):
        compare_top1([right(0, 0)], [right(3)], threshold=0.01)
