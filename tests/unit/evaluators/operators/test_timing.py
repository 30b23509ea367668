"""How an operator is timed: exact times by a fake clock, blocks, the floor, and each rule that stops it."""

from __future__ import annotations

import gc
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from itertools import chain, repeat
from typing import Any, cast

import numpy as np
import pytest
from numpy.typing import NDArray

from inferometer.evaluators.kinds.operators.measurement import Stop
from inferometer.evaluators.kinds.operators.options import Mode, OperatorOptions
from inferometer.evaluators.kinds.operators.timing import Timing, clock_resolution, time_operator

MS = 1_000_000


class FakeClock:
    """Each reading takes ``step_ns``; what is told is rounded down to ``tick_ns``."""

    def __init__(self, step_ns: int = 0, tick_ns: int = 1) -> None:
        self.now_ns = 0
        self.step_ns = step_ns
        self.tick_ns = tick_ns

    def __call__(self) -> int:
        self.now_ns += self.step_ns
        return self.now_ns // self.tick_ns * self.tick_ns


class FakeCall:
    """An operator whose forward passes take given times, and whose backward pass takes one."""

    api = fused = ""

    def __init__(self, clock: FakeClock, forward_ns: Iterable[int], backward_ns: int = 0) -> None:
        self.runs = 0
        self._clock = clock
        self._forward_ns = iter(forward_ns)
        self._backward_ns = backward_ns

    def forward(self) -> None:
        self.runs += 1
        self._clock.now_ns += next(self._forward_ns)

    def forward_for_gradient(self) -> None:
        self.forward()

    def backward(self) -> None:
        self._clock.now_ns += self._backward_ns

    def outputs(self) -> tuple[NDArray[Any], ...]:
        return ()

    def gradients(self) -> Mapping[str, NDArray[Any]]:
        return {}


def timed(
    forward_ns: Iterable[int],
    backward_ns: int = 0,
    mode: Mode = Mode.FORWARD,
    clock: FakeClock | None = None,
    before: Callable[[], object] | None = None,
    **options: Any,
) -> Timing:
    clock = clock or FakeClock()
    call = FakeCall(clock, forward_ns, backward_ns)
    return time_operator([call], mode, OperatorOptions(**options), clock=clock, before=before)


def noisy(mean_ns: float, spread: float) -> Iterable[int]:
    random = np.random.RandomState(7)
    while True:
        yield from np.rint(mean_ns * (1 + spread * random.standard_normal(1000))).astype(int).tolist()


def test_an_operator_of_five_milliseconds_takes_five() -> None:
    found = timed(repeat(5 * MS))
    assert np.percentile(found.times_ns, 50) == 5 * MS
    assert (found.block, found.floor_ns) == (1, 0.0)
    assert found.times_ns.dtype == np.int64


def test_each_mode_includes_what_it_says() -> None:
    expected = {Mode.FORWARD: 2 * MS, Mode.BACKWARD: 3 * MS, Mode.BOTH: 5 * MS}
    for mode, time_ns in expected.items():
        assert set(timed(repeat(2 * MS), 3 * MS, mode).times_ns) == {time_ns}


def test_runs_too_short_for_the_clock_are_timed_in_blocks() -> None:
    found = timed(repeat(300), clock=FakeClock(step_ns=40, tick_ns=1000), runs=2000)
    assert found.block * 300 >= 50 * 1000
    assert len(found.times_ns) == -(-2000 // found.block)
    assert np.median(found.times_ns) / found.block == pytest.approx(300, rel=0.05)


def test_short_backward_passes_are_summed_up() -> None:
    clock = FakeClock(step_ns=1)
    found = timed(repeat(5 * MS), 10, Mode.BACKWARD, clock, runs=500)
    assert found.block > 1
    assert set(found.times_ns / found.block) == {11}


def test_a_run_fifty_times_as_long_as_a_tick_is_timed_alone() -> None:
    assert timed(repeat(50_000), clock=FakeClock(step_ns=40, tick_ns=1000)).block == 1


def test_the_resolution_is_the_least_step_of_a_clock() -> None:
    assert clock_resolution(FakeClock(step_ns=7)) == 7
    assert clock_resolution(FakeClock(step_ns=40, tick_ns=1000)) == 1000
    assert clock_resolution(lambda: 5) == 1


def test_the_floor_is_what_the_loop_takes_for_nothing() -> None:
    found = timed(repeat(5 * MS), clock=FakeClock(step_ns=100))
    assert found.floor_ns == 100


def test_equal_times_reach_the_target_within_the_pilot() -> None:
    found = timed(repeat(MS))
    assert (found.stop, len(found.times_ns)) == (Stop.TARGET, 150)


def test_the_length_is_fixed_from_the_pilot() -> None:
    found = timed(noisy(MS, 0.05), target_percent=0.5, budget_s=60.0)
    assert found.stop is Stop.TARGET
    # half the interval of p50 is about 2.26 · 1.25 · 0.05 / √n, with a margin of 1.3
    assert 400 < len(found.times_ns) < 4 * (1.3 * 2.26 * 1.25 * 0.05 / 0.005) ** 2


def wandering(white: float) -> Iterable[int]:
    """A level that drifts, under independent noise."""
    random, level = np.random.RandomState(3), 0.0
    while True:
        level = 0.9999 * level + 0.0005 * random.standard_normal()
        yield int(MS * (1 + level + white * random.standard_normal()))


@pytest.mark.parametrize("white", [0.0, 0.02])
def test_noise_that_stays_ends_the_measurement(white: float) -> None:
    found = timed(wandering(white), target_percent=0.05, budget_s=100.0)
    assert found.stop is Stop.NOISE
    assert found.times_ns.sum() < 80e9


def test_noise_of_the_first_milliseconds_does_not_count() -> None:
    random = np.random.RandomState(5)
    early = (int(MS * (1.5 if place // 200 % 2 else 1.0)) + random.randint(1000) for place in range(1200))
    found = timed(chain(early, noisy(MS, 0.001)), target_percent=0.5, budget_s=60.0)
    assert found.stop is Stop.TARGET


def test_the_budget_includes_the_warm_up() -> None:
    found = timed(repeat(30 * MS), budget_s=0.5)
    assert found.stop is Stop.BUDGET
    assert len(found.times_ns) == 17 - 3


def test_a_run_longer_than_the_budget_runs_once_after_one_warm_up() -> None:
    found = timed(repeat(2_000 * MS), budget_s=0.5, warmup=3)
    assert (found.stop, len(found.times_ns)) == (Stop.BUDGET, 1)


def test_runs_that_were_asked_for_take_as_long_as_they_take() -> None:
    found = timed(repeat(200 * MS), runs=12, warmup=5, budget_s=0.1)
    assert (found.stop, len(found.times_ns)) == (Stop.COUNT, 12)


def test_slow_first_runs_are_warm_up() -> None:
    first = [20 * MS, 9 * MS, 6 * MS, 4 * MS, 3 * MS, 2 * MS, 2 * MS]
    found = timed(chain(first, repeat(MS)), budget_s=5.0)
    assert set(found.times_ns) == {MS}


def test_prepared_calls_take_turns_and_what_comes_before_is_not_timed() -> None:
    clock = FakeClock()
    calls = [FakeCall(clock, repeat(number * MS)) for number in (1, 2, 3)]

    def sweep() -> None:
        clock.now_ns += 50 * MS

    found = time_operator(calls, Mode.FORWARD, OperatorOptions(runs=9, warmup=3), clock=clock, before=sweep)
    assert sorted(found.times_ns.tolist()) == [MS] * 3 + [2 * MS] * 3 + [3 * MS] * 3
    assert max(call.runs for call in calls) - min(call.runs for call in calls) <= 1


def test_a_device_timer_tells_the_time() -> None:
    clock = FakeClock()
    call = FakeCall(clock, repeat(5 * MS))

    def timer(run: Callable[[], object]) -> int:
        run()
        return 4 * MS

    found = time_operator([call], Mode.FORWARD, OperatorOptions(runs=5), clock=clock, device_timer=timer)
    assert set(found.times_ns) == {4 * MS}


def test_the_collector_is_off_while_it_runs_and_on_again_after_a_failure() -> None:
    seen = set()

    class Failing(FakeCall):
        def forward(self) -> None:
            super().forward()
            seen.add(gc.isenabled())
            if self.runs == 20:
                raise RuntimeError("no more")

    clock = FakeClock()
    with pytest.raises(RuntimeError):
        time_operator([Failing(clock, repeat(MS))], Mode.FORWARD, OperatorOptions(), clock=clock)
    assert seen == {False}
    assert gc.isenabled()


@pytest.mark.real_time
def test_five_milliseconds_by_the_clock_are_told_within_a_percent() -> None:
    spent_ns = []  # more than 5 ms where another process had the core

    class Busy(FakeCall):
        def forward(self) -> None:
            begun = now = time.perf_counter_ns()
            while now < begun + 5 * MS:
                now = time.perf_counter_ns()
            spent_ns.append(now - begun)

    found = time_operator([Busy(FakeClock(), [])], Mode.FORWARD, replace(OperatorOptions(), budget_s=1.0))
    spent = np.percentile(spent_ns[-len(found.times_ns) :], 50)
    assert np.percentile(found.times_ns, 50) == pytest.approx(spent, rel=0.01)


class Turning(FakeCall):
    """A call whose runs are right or wrong by their number."""

    def __init__(self, clock: FakeClock, is_wrong: Callable[[int], bool]) -> None:
        super().__init__(clock, repeat(MS))
        self._is_wrong = is_wrong

    @property
    def wrong(self) -> bool:
        return self._is_wrong(self.runs)


def inspected(
    is_wrong: Callable[[int], bool], step_ns: int = 0, **options: Any
) -> tuple[bool, Timing, list[int]]:
    """Whether a wrong run was seen, the timing, and the numbers of the runs that were looked at.

    The resolution of a clock with a step is found after few readings.
    """
    clock, seen = FakeClock(step_ns), list[int]()
    call, wrong = Turning(clock, is_wrong), list[bool]()

    def look(given: Any) -> None:
        clock.now_ns += 500 * MS  # counts in no limit, and in no time
        seen.append(given.runs)
        wrong.append(given.wrong)

    found = time_operator([call], Mode.FORWARD, OperatorOptions(**options), clock=clock, inspect=look)
    return any(wrong), found, seen


def test_the_last_run_is_looked_at_and_random_ones_before_it_outside_of_the_times() -> None:
    _, plain, _ = inspected(lambda _: False, runs=200)
    _, found, seen = inspected(lambda _: False, runs=200, budget_s=0.1)
    assert set(found.times_ns) == {MS}
    assert np.array_equal(found.times_ns, plain.times_ns)
    untimed = len(seen) - 1
    assert seen[-1] == max(seen) == found.times_ns.size + untimed + seen[0] - 1
    assert 1 < untimed < 30


def test_an_operator_that_is_wrong_from_the_third_run_on_is_seen() -> None:
    assert inspected(lambda run: run > 2, runs=100)[0]


def test_one_that_is_wrong_in_half_of_the_runs_is_seen_in_three_of_four_searches() -> None:
    """Two runs at least are looked at, each wrong with a probability of 1/2: 3/4 or more are seen."""
    seen = 0
    for seed in range(200):
        random = np.random.default_rng(seed).random(500)
        is_wrong = cast("Callable[[int], bool]", (random < 0.5).__getitem__)
        seen += inspected(is_wrong, 1, runs=100, seed=seed)[0]
    assert seen >= 150 + 15  # of 200; about six are looked at, and 1 - 0.5^6 is 0.98


def test_each_run_is_as_probable_to_be_the_last_one_that_is_chosen() -> None:
    chosen = []
    for seed in range(400):
        _, found, looks = inspected(lambda _: False, 1, runs=20, seed=seed)
        begun = looks[-1] - len(looks) + 1 - found.times_ns.size
        chosen.append(looks[-2] - begun - len(looks) + 2)
    # 20 runs, of which each is expected 20 times; chi-square with 19 degrees of freedom is below 43.8 in 999
    counts = np.bincount(chosen, minlength=21)[1:21]
    assert counts.sum() == 400
    assert float(((counts - 20) ** 2 / 20).sum()) < 43.8
