"""Trimmed mean and percentiles: known values, the reference's rule, and invariants."""

from __future__ import annotations

import math
import statistics

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from inferometer.evaluators.statistics import percentile, trimmed_mean

VALUES = st.lists(st.integers(0, 10**12), min_size=1, max_size=60)


def reference_trimmed_mean(values: list[float], share: float) -> float:
    """The rule as the original writes it, in plain Python."""
    if len(values) < 3:
        return math.fsum(values) / len(values)
    if len(values) == 3:
        return sorted(values)[1]
    count = len(values)
    start = max(0, math.floor(count * share))
    end = min(count - 1, count - math.floor(count * share))
    kept = sorted(values)[start:end]
    return math.fsum(kept) / len(kept)


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ([7], 7.0),
        ([1, 4], 2.5),
        ([9, 1, 2], 2.0),  # the median
        ([100, 1, 2, 3], 2.0),  # only the highest goes
        ([100, 1, 2, 3, 4], 3.0),  # one at each end
        ([100, 0, 1, 2, 3, 4, 5, 6, 7], 4.0),
        ([100, 200, 0, 0, 1, 2, 3, 4, 5, 6], 3.5),  # two at each end
    ],
)
def test_trimmed_mean_of_known_values(values: list[float], expected: float) -> None:
    assert trimmed_mean(values) == expected


@given(VALUES, st.sampled_from([0.05, 0.2, 0.25, 0.4]))
def test_trimmed_mean_follows_the_reference(values: list[float], share: float) -> None:
    assert trimmed_mean(values, share) == pytest.approx(reference_trimmed_mean(values, share), rel=1e-12)


@given(VALUES, st.randoms())
def test_trimmed_mean_lies_among_the_values_in_whatever_order(values: list[int], random: object) -> None:
    shuffled = list(values)
    random.shuffle(shuffled)

    assert trimmed_mean(shuffled) == trimmed_mean(values)
    assert min(values) <= trimmed_mean(values) * (1 + 1e-12)
    assert trimmed_mean(values) <= max(values) * (1 + 1e-12)


@given(st.lists(st.integers(0, 1000), min_size=5, max_size=30))
def test_one_outlier_does_not_move_the_trimmed_mean(values: list[int]) -> None:
    worst = values.index(max(values))
    spoilt = [*values[:worst], 10**9, *values[worst + 1 :]]

    assert trimmed_mean(spoilt) == trimmed_mean(values)


def test_trimmed_mean_leaves_its_argument_as_it_is() -> None:
    values = np.array([5, 1, 4, 2, 3], np.int64)

    trimmed_mean(values)

    assert values.tolist() == [5, 1, 4, 2, 3]


@pytest.mark.parametrize(
    ("percent", "expected"), [(0, 10.0), (25, 20.0), (50, 30.0), (90, 46.0), (99, 49.6), (100, 50.0)]
)
def test_percentile_interpolates_linearly(percent: float, expected: float) -> None:
    assert percentile([30, 10, 50, 40, 20], percent) == pytest.approx(expected, rel=1e-12)


@given(VALUES, st.floats(0, 100))
def test_percentile_is_type_7_of_hyndman_and_fan(values: list[int], percent: float) -> None:
    ordered = sorted(values)
    place = (len(ordered) - 1) * percent / 100
    low = math.floor(place)
    high = min(low + 1, len(ordered) - 1)
    expected = ordered[low] + (ordered[high] - ordered[low]) * (place - low)

    assert percentile(values, percent) == pytest.approx(expected, rel=1e-9, abs=1e-6)


@given(VALUES, st.floats(0, 100), st.floats(0, 100))
def test_percentiles_rise_from_the_lowest_to_the_highest_value(
    values: list[int], first: float, second: float
) -> None:
    lower, higher = sorted((first, second))

    assert percentile(values, 0) == min(values)
    assert percentile(values, 100) == max(values)
    assert percentile(values, 50) == pytest.approx(statistics.median(values))
    assert percentile(values, lower) <= percentile(values, higher) * (1 + 1e-12)


@pytest.mark.parametrize("values", [[], np.empty(0, np.int64), [[1.0, 2.0]]])
def test_no_values_are_refused(values: object) -> None:
    with pytest.raises(ValueError, match="at least one value"):
        trimmed_mean(values)
    with pytest.raises(ValueError, match="at least one value"):
        percentile(values, 50)


@pytest.mark.parametrize("share", [0, -0.1, 0.5, math.nan])
def test_a_share_that_leaves_nothing_is_refused(share: float) -> None:
    with pytest.raises(ValueError, match="share is"):
        trimmed_mean([1, 2, 3, 4], share)


@pytest.mark.parametrize("percent", [-1, 101])
def test_a_percentile_beyond_the_values_is_refused(percent: float) -> None:
    with pytest.raises(ValueError, match=r"[Pp]ercentiles"):
        percentile([1, 2], percent)
