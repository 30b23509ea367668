"""Token buckets: how many requests a client may send, on a fake clock."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from inferometer.agent.server import admission as token_bucket
from inferometer.agent.server.admission import TokenBuckets


class Clock:
    def __init__(self) -> None:
        self.now_s = 100.0

    def __call__(self) -> float:
        return self.now_s


@pytest.fixture
def clock() -> Clock:
    return Clock()


def test_burst_is_let_through_and_then_one_at_each_beat(clock: Clock) -> None:
    buckets = TokenBuckets(rate=2, burst=3, clock=clock)
    assert [buckets.take("a") for _ in range(4)] == [0, 0, 0, 0.5]
    clock.now_s += 0.4
    assert buckets.take("a") == pytest.approx(0.1)
    clock.now_s += 0.1
    assert buckets.take("a") == 0
    assert buckets.take("a") == pytest.approx(0.5)


def test_clients_do_not_take_from_each_other(clock: Clock) -> None:
    buckets = TokenBuckets(rate=1, burst=1, clock=clock)
    assert [buckets.take("a"), buckets.take("a") > 0, buckets.take("b")] == [0, True, 0]


def test_time_without_requests_is_saved_up_to_the_burst_only(clock: Clock) -> None:
    buckets = TokenBuckets(rate=1, burst=2, clock=clock)
    buckets.take("a")
    clock.now_s += 1000
    assert [buckets.take("a") == 0 for _ in range(3)] == [True, True, False]


def test_bucket_of_less_than_one_a_second_lets_one_through(clock: Clock) -> None:
    buckets = TokenBuckets(rate=0.1, burst=0.1, clock=clock)
    assert buckets.take("a") == 0
    assert buckets.take("a") == pytest.approx(10)


def test_reserved_tokens_come_one_after_the_other(clock: Clock) -> None:
    buckets = TokenBuckets(rate=2, burst=1, clock=clock)
    assert [buckets.reserve("a") for _ in range(3)] == [0, 0.5, 1.0]


def test_memory_is_bounded_and_the_client_that_was_away_for_longest_is_forgotten(
    clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(token_bucket, "MAX_CLIENTS", 2)
    buckets = TokenBuckets(rate=0.001, burst=1, clock=clock)
    for client in ("a", "b", "a", "c"):
        buckets.take(client)
    assert len(buckets) == 2
    assert buckets.take("a") > 0, "it was seen after b, and is remembered"


@given(
    rate=st.floats(0.1, 1000),
    burst=st.integers(1, 50),
    pauses_s=st.lists(st.floats(0, 2), min_size=1, max_size=200),
)
def test_no_more_are_let_through_than_the_rate_and_the_burst_allow(
    rate: float, burst: int, pauses_s: list[float]
) -> None:
    clock = Clock()
    began_s = clock.now_s
    buckets = TokenBuckets(rate, burst, clock)
    taken = 0
    for pause_s in pauses_s:
        clock.now_s += pause_s
        taken += buckets.take("a") == 0
    assert taken <= burst + rate * (clock.now_s - began_s) + 1e-6
