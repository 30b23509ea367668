"""Settings for LoadGen: the queries that its early stopping requires, and its schedule."""

import dataclasses
import math

import numpy as np
import pytest

from inferometer.evaluators.kinds.load.measurement import Scenario
from inferometer.evaluators.kinds.load.mlperf_settings import MlperfSettings, least_queries, server_schedule
from inferometer.manifests.errors import ConfigurationError

SERVER = MlperfSettings(Scenario.SERVER, 500.0, 10_000_000, 99.0, 0.3, 100, seed=7)


@pytest.mark.parametrize(("percentile", "queries"), [(90.0, 64), (99.0, 662), (99.9, 6636)])
def test_early_stopping_needs_as_many_queries_as_loadgen_says(percentile, queries):
    assert least_queries(percentile) == queries


@pytest.mark.parametrize("percentile", [1.0, 50.0, 97.0, 99.99])
def test_one_late_query_in_so_many_is_as_rare_as_one_in_a_hundred(percentile):
    def chance(count):
        late = 1 - percentile / 100
        return sum(math.comb(count, k) * late**k * (1 - late) ** (count - k) for k in (0, 1))

    count = least_queries(percentile)
    assert chance(count) <= 0.01
    assert count == 2 or chance(count - 1) > 0.01


def test_the_schedule_is_the_one_that_loadgen_6_drew():
    """LoadGen 6.0.17 logged 151 queries and 311139498 ns for these settings."""
    schedule, next_ns = server_schedule(SERVER)

    assert len(schedule) == 151
    assert next_ns == 311_139_498
    assert schedule.offsets_ns[:4].tolist() == [0, 515_829, 1_284_133, 8_937_925]
    assert schedule.offsets_ns[-2] < 300_000_000 <= schedule.offsets_ns[-1]
    assert schedule.seed == 7


def test_the_schedule_has_the_least_number_of_queries_whatever_its_duration():
    schedule, next_ns = server_schedule(dataclasses.replace(SERVER, min_queries=9000))

    assert len(schedule) == 9000
    assert next_ns >= schedule.offsets_ns[-1]
    assert np.diff(schedule.offsets_ns).mean() == pytest.approx(2_000_000, rel=0.05)


def test_seeds_are_taken_modulo_those_of_the_generator():
    assert dataclasses.replace(SERVER, seed=2**32 - 1).seeds == (2**32 - 1, 0, 1)
    assert dataclasses.replace(SERVER, seed=-1).seeds == (2**32 - 1, 0, 1)


def test_more_queries_than_memory_has_room_for_are_refused():
    with pytest.raises(ConfigurationError, match="LoadGen would prepare 20000000 queries"):
        dataclasses.replace(SERVER, rate_qps=1e6, min_duration_s=10.0)
