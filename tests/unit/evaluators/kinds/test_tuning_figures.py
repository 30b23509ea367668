"""The fitted rate of a configuration with its resolution, and the probability that another is better."""

from __future__ import annotations

import numpy as np
import pytest

from inferometer.evaluators.kinds.tuning.figures import (
    BLOCKS,
    SEQUENCES,
    Figure,
    Probe,
    fitted,
    probability_better,
)


def _probe(rate_qps: float, logit: float, late: float = 1.0, stopped: bool = False) -> Probe:
    return Probe(rate_qps, np.full(SEQUENCES, late), logit, logit < -4.595, stopped)


@pytest.mark.parametrize(
    ("low", "high", "rate_qps", "resolution"),
    [
        (_probe(97, -5.6), _probe(103, -3.6), 100, 0.015),  # halfway: a quarter of the bracket
        (_probe(97, -4.7), _probe(103, -0.3), 97.1, 0.0007),  # close to a probe, the slope matters little
        (_probe(97, -11, late=0.0), _probe(103, -4.5), 102.9, 0.0005),
        (_probe(97, -11, late=0.0), _probe(103, 7.5), 99.04, 0.015),  # a low end without a late query
        (_probe(97, -5.6), _probe(103, -3.6, stopped=True), 100, 0.015),
        (_probe(97, -4.7), _probe(103, -2.4, stopped=True), 97.3, 0.0014),
    ],
)
def test_the_resolution_is_the_distance_to_the_nearest_probe_whose_odds_are_known(
    low: Probe, high: Probe, rate_qps: float, resolution: float
) -> None:
    found, rough = (fitted(low, high, 0.01, 0.03, trusted=trusted) for trusted in (True, False))

    assert found is not None
    assert rough is not None
    assert np.exp(found.log) == pytest.approx(rate_qps, rel=0.001)
    assert found.resolution == pytest.approx(resolution, abs=0.0003)
    assert rough.resolution == pytest.approx(np.log(103 / 97) / 4)


def _figure(log: float, noise: np.ndarray) -> Figure:
    return Figure(log, noise - noise.mean())


def test_the_probability_rests_on_the_differences_of_the_blocks() -> None:
    noise = np.random.RandomState(0).standard_normal(BLOCKS) / 50
    best, alike = (
        _figure(5.0, noise),
        _figure(4.98, noise + np.random.RandomState(1).standard_normal(BLOCKS) / 900),
    )
    other = _figure(4.98, np.random.RandomState(2).standard_normal(BLOCKS) / 50)

    assert probability_better(best, best) == 0.5
    assert probability_better(alike, best) < 0.01  # on common arrivals, 2 % are a difference
    assert 0.3 < probability_better(other, best) < 0.5
    assert probability_better(best, other) == pytest.approx(1 - probability_better(other, best))


def test_the_error_of_a_paired_difference_is_that_of_its_blocks() -> None:
    """The error of a sum of B independent parts is the root of B times their variance."""
    random = np.random.RandomState(3)
    errors = []
    for _ in range(400):
        parts = random.standard_normal(BLOCKS) / 100
        errors.append(_figure(0.0, parts).log_half / 2.093)

    assert np.sqrt(np.mean(np.square(errors))) == pytest.approx(np.sqrt(BLOCKS) / 100, rel=0.03)
