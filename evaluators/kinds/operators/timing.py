"""The timing of one operator: warm-up, runs or blocks of runs, the harness's own floor, and stop rules.

The stop rules are a narrow interval, persistent noise, or a number of runs.
"""

from __future__ import annotations

import gc
import math
import time
from array import array
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import cycle, islice
from random import Random
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from inferometer.agent.operators.operator import OperatorCall
from inferometer.evaluators.kinds.operators.measurement import Stop
from inferometer.evaluators.kinds.operators.options import Mode, OperatorOptions
from inferometer.evaluators.statistics import AUTOCORRELATION_TIMES, batches_for_interval, half_width

MOST_TIMES = 100_000
"""The maximum number of times that a row keeps."""
_PILOT_MARGIN = 3
_LENGTH_MARGIN = 1.3
_PILOT_SHARE, _MOST_PILOT_S = 0.2, 1.0
_NOISE_SHARE, _MOST_NOISE_S = 0.3, 2.0
_NOISE_LOOK = 4
_NARROWER = 0.8


class StopRules:
    """The rules that decide when to check the times next, or why to stop.

    For a target, the length follows from a pilot, as in ``measurement.LengthPlan``, with checks at a few
    growing lengths: an interval that is checked after every run covers less than its nominal level. The pilot
    collects three times as many times as an interval needs, and ends after 20 % of the budget or one second.

    Whether the interval gets narrower is checked whenever the number of times has quadrupled, which halves
    the interval of independent times: if it is not a fifth narrower, the rest is noise that no further run
    removes (nvbench's second criterion, which keeps it from measuring for hours). The same applies to a
    correlation that is as long as the run, and still is with twice as many times. Neither rule applies before
    30 % of the budget or two seconds, because disturbances in the first milliseconds pass.

    Args:
        options: The requested target, time budget or number of runs.
        block: The number of runs in a time.
    """

    def __init__(self, options: OperatorOptions, block: int) -> None:
        self._target = options.target_percent
        self._wanted = None if options.runs is None else max(1, math.ceil(options.runs / block))
        self._planned: int | None = None
        self._seen: tuple[int, float] | None = None
        self._without = False
        self._pilot_s = min(_PILOT_SHARE * options.budget_s, _MOST_PILOT_S)
        self._noise_s = min(_NOISE_SHARE * options.budget_s, _MOST_NOISE_S)

    @property
    def first_look(self) -> int:
        """The number of times to measure before the first check."""
        if self._wanted is not None:
            return self._wanted
        return MOST_TIMES if self._target is None else _PILOT_MARGIN * AUTOCORRELATION_TIMES

    def look(self, times_ns: NDArray[np.int64], elapsed_s: float) -> Stop | int:
        """Returns the reason to stop, or the number of times to measure before the next check.

        Args:
            times_ns: All times so far, in order.
            elapsed_s: The time since the warm-up began.
        """
        count = len(times_ns)
        if self._wanted is not None or self._target is None or count >= MOST_TIMES:
            return Stop.COUNT
        found = self._for_target(times_ns, elapsed_s, self._target / 100)
        return found if isinstance(found, Stop) else min(found, MOST_TIMES)

    def _for_target(self, times_ns: NDArray[np.int64], elapsed_s: float, target: float) -> Stop | int:
        count = len(times_ns)
        share = half_width(times_ns)
        if self._planned is None:
            pilot = _PILOT_MARGIN * batches_for_interval(times_ns)
            if count < pilot and elapsed_s < self._pilot_s:
                return 2 * count
            if share is None:
                if self._without and elapsed_s >= self._noise_s:
                    return Stop.NOISE
                self._without = True
                return 2 * count
            self._planned = self._length(count, share, target)
            if self._planned <= count:
                return Stop.TARGET
            self._seen = count, share
        elif share is not None and self._seen is not None:
            if count >= self._planned:
                if share <= target:
                    return Stop.TARGET
                self._planned = max(2 * count, self._length(count, share, target))
            if count >= _NOISE_LOOK * self._seen[0]:
                if share > _NARROWER * self._seen[1] and elapsed_s >= self._noise_s:
                    return Stop.NOISE
                self._seen = count, share
        return self._next(count)

    def _next(self, count: int) -> int:
        looks = [] if self._planned is None else [self._planned]
        if self._seen is not None:
            looks.append(_NOISE_LOOK * self._seen[0])
        return min((look for look in looks if look > count), default=2 * count)

    @staticmethod
    def _length(count: int, share: float, target: float) -> int:
        return max(count, math.ceil(count * (_LENGTH_MARGIN * share / target) ** 2))


Clock: TypeAlias = Callable[[], int]
Run: TypeAlias = Callable[[], object]
_RESOLUTIONS = 50
"""The minimum length of a time in steps of the clock: rounding is then at most 2 % of the time."""
_READINGS = 100_000
_STEPS = 20
_LEAST_SETTLING = 8
_SETTLED = 0.02
_WARM_UP_SHARE = 0.1
_MOST_WARM_UP_SHARE = 0.5
_FLOOR_TIMES = 200
_FLOOR_SHARE = 0.02
_MOST_BLOCK = 1 << 20


@dataclass(frozen=True, slots=True, eq=False)
class Timing:
    """The result of timing an operator.

    Attributes:
        times_ns: int64; the time of each run, or of each block of runs.
        block: The number of runs in each time.
        stop: Why the measurement stopped.
        floor_ns: The median time of a run that does nothing, in the same loop.
    """

    times_ns: NDArray[np.int64]
    block: int
    stop: Stop
    floor_ns: float


def time_operator(
    calls: Sequence[OperatorCall],
    mode: Mode,
    options: OperatorOptions,
    *,
    clock: Clock = time.perf_counter_ns,
    before: Run | None = None,
    device_timer: Callable[[Run], int] | None = None,
    inspect: Callable[[OperatorCall], object] | None = None,
) -> Timing:
    """Times an operator until a stop rule applies.

    A time includes one call from Python and its synchronisation. With ``Mode.BACKWARD``, it excludes the
    preceding forward pass. The garbage collector is off during the measurement.

    Args:
        calls: The prepared operator; several calls of equal work take turns.
        mode: The work that a time includes.
        options: When to stop, and the minimum warm-up.
        clock: Returns the time in nanoseconds.
        before: Called before each run and not timed, for instance to empty the caches; None for nothing.
        device_timer: Runs a function and returns the device time in nanoseconds; None to use the clock.
        inspect: Called between times with the operator that ran last: after the last time, and after the n-th
            with a probability of 1/n, so each time is equally likely to be the last one inspected. Its time
            does not count toward any limit, and an untimed run follows it; None for nothing.
    """
    started_ns = clock()
    resolution_ns = clock_resolution(clock)
    loop = _Loop([_timed(call, mode) for call in calls], before, clock, device_timer, inspect)
    nothing = _Loop([_timed(_Nothing(), mode)] * len(calls), before and _nothing, clock, None, None)
    with _no_collector():
        warm_ns = _warm_up(loop, options, started_ns)
        block = 1 if device_timer else _block(loop, warm_ns, _RESOLUTIONS * resolution_ns)
        floor_ns = _floor(nothing, block, options.budget_s)
        times_ns, stop = _measure(loop, block, options, started_ns)
    return Timing(times_ns, block, stop, floor_ns)


def clock_resolution(clock: Clock) -> int:
    """Returns the smallest step between two clock readings in nanoseconds; 1 if the clock does not move."""
    steps: list[int] = []
    last = clock()
    for _ in range(_READINGS):
        now = clock()
        if now > last:
            steps.append(now - last)
            if len(steps) == _STEPS:
                break
        last = now
    return min(steps, default=1)


@dataclass(frozen=True, slots=True)
class _Timed:
    """One run: the timed call, the untimed call before it, and the object that holds its outputs."""

    run: Run
    before: Run | None
    call: OperatorCall


def _timed(call: OperatorCall, mode: Mode) -> _Timed:
    if mode is Mode.FORWARD:
        return _Timed(call.forward, None, call)
    if mode is Mode.BACKWARD:
        return _Timed(call.backward, call.forward_for_gradient, call)

    def both() -> None:
        call.forward_for_gradient()
        call.backward()

    return _Timed(both, None, call)


class _Loop:
    """Runs that take turns, timed one by one or in blocks."""

    def __init__(
        self,
        turns: Sequence[_Timed],
        before: Run | None,
        clock: Clock,
        device_timer: Callable[[Run], int] | None,
        inspect: Callable[[OperatorCall], object] | None,
    ) -> None:
        self.clock = clock
        self._inspect = inspect
        self._ran: OperatorCall | None = None
        self._turns: Iterator[_Timed] = cycle(turns)
        self._before = before
        self._timer = device_timer or self._by_clock
        self._plain = before is None and turns[0].before is None and device_timer is None

    def time(self, block: int) -> int:
        """Returns the nanoseconds that a block of runs takes, excluding the calls before each run."""
        turns = list(islice(self._turns, block))
        self._ran = turns[-1].call
        if self._plain:
            runs, clock = [turn.run for turn in turns], self.clock
            start_ns = clock()
            for run in runs:
                run()
            return clock() - start_ns
        total_ns = 0
        for turn in turns:
            if turn.before is not None:
                turn.before()
            if self._before is not None:
                self._before()
            total_ns += self._timer(turn.run)
        return total_ns

    def inspect(self, *, goes_on: bool) -> int:
        """Inspects the operator that ran last; returns the nanoseconds that this took."""
        if self._inspect is None or self._ran is None:
            return 0
        start_ns = self.clock()
        self._inspect(self._ran)
        if goes_on:
            self.time(1)  # the caches hold what they do after a run
        return self.clock() - start_ns

    def _by_clock(self, run: Run) -> int:
        clock = self.clock
        start_ns = clock()
        run()
        return clock() - start_ns


def _warm_up(loop: _Loop, options: OperatorOptions, started_ns: int) -> int:
    """Runs until times settle or a tenth of the budget is spent; returns the median of the last times.

    If even the minimum warm-up takes half of the budget, it ends there. There is at least one run.
    """
    budget_ns = options.budget_s * 1e9
    found: list[int] = []
    check = max(options.warmup, _LEAST_SETTLING)
    while True:
        found.append(loop.time(1))
        spent_ns, count = loop.clock() - started_ns, len(found)
        if spent_ns >= _MOST_WARM_UP_SHARE * budget_ns and options.runs is None:
            break
        if count < options.warmup:
            continue
        if spent_ns >= _WARM_UP_SHARE * budget_ns:
            break
        if count >= check:
            if _settled(found):
                break
            check *= 2
    return int(np.median(found[-_LEAST_SETTLING // 2 :]))


def _settled(times_ns: Sequence[int]) -> bool:
    """Returns whether the last quarter of the times is not faster than the preceding quarter."""
    quarter = len(times_ns) // 4
    earlier, later = np.median(times_ns[-2 * quarter : -quarter]), np.median(times_ns[-quarter:])
    return bool(later >= (1 - _SETTLED) * earlier)


def _block(loop: _Loop, one_ns: int, least_ns: int) -> int:
    """Returns the number of runs that together last long enough for the clock: 1, or as many as needed."""
    if one_ns >= least_ns:
        return 1
    block = 1
    while block < _MOST_BLOCK:
        took_ns = max(loop.time(block) for _ in range(3))
        if took_ns >= least_ns:
            break
        block = min(max(2 * block, math.ceil(block * least_ns / max(took_ns, 1))), 16 * block)
    return block


def _floor(nothing: _Loop, block: int, budget_s: float) -> float:
    until_ns = nothing.clock() + _FLOOR_SHARE * budget_s * 1e9
    found = []
    for _ in range(_FLOOR_TIMES):
        found.append(nothing.time(block))
        if nothing.clock() >= until_ns:
            break
    return float(np.median(found)) / block


def _measure(
    loop: _Loop, block: int, options: OperatorOptions, started_ns: int
) -> tuple[NDArray[np.int64], Stop]:
    """Times blocks, at least one, until a stop rule applies."""
    rules = StopRules(options, block)
    budget_ns = options.budget_s * 1e9 if options.runs is None else math.inf
    clock, times = loop.clock, array("q")
    look_at, random, inspected_ns = rules.first_look, Random(options.seed), 0  # noqa: S311
    while True:
        times.append(loop.time(block))
        elapsed_ns = clock() - started_ns - inspected_ns
        if elapsed_ns >= budget_ns:
            stop = Stop.BUDGET
            break
        if len(times) >= look_at:
            found = rules.look(np.array(times, np.int64), elapsed_ns / 1e9)
            if isinstance(found, Stop):
                stop = found
                break
            look_at = found
        if random.random() * len(times) < 1:
            inspected_ns += loop.inspect(goes_on=True)
    loop.inspect(goes_on=False)
    return np.array(times, np.int64), stop


@contextmanager
def _no_collector() -> Iterator[None]:
    """Disables Python's garbage collector within the context."""
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()


def _nothing() -> None:
    pass


class _Nothing:
    """An operator that does nothing; see ``OperatorCall``."""

    api = fused = ""

    def forward(self) -> None:
        pass

    def forward_for_gradient(self) -> None:
        pass

    def backward(self) -> None:
        pass

    def outputs(self) -> tuple[NDArray[Any], ...]:
        return ()

    def gradients(self) -> Mapping[str, NDArray[Any]]:
        return {}
