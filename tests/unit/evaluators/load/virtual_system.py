"""Virtual time, and a scripted system in it: one server that works in order."""

from __future__ import annotations

import heapq
from collections.abc import Callable, Mapping

from inferometer.evaluators.load.target import Answers

NS_PER_S = 1_000_000_000


class VirtualClock:
    """A clock that is later each time it is read, and when something sleeps.

    Args:
        reading_ns: How much later it is after a reading: what the harness takes for a step.
        oversleep_ns: How much longer a sleep is than was asked for.
    """

    def __init__(self, reading_ns: int = 200, oversleep_ns: int = 60_000) -> None:
        self.now_ns = 0
        self._reading_ns = reading_ns
        self._oversleep_ns = oversleep_ns
        self._due: list[tuple[int, int, Callable[[], None]]] = []
        self._number = 0

    def __call__(self) -> int:
        self._advance(self.now_ns + self._reading_ns)
        return self.now_ns

    def sleep(self, duration_s: float) -> None:
        assert duration_s >= 0
        self._advance(self.now_ns + round(duration_s * NS_PER_S) + self._oversleep_ns)

    def wait(self, timeout_s: float) -> None:
        """Sleeps until the next thing happens, or for a time."""
        end_ns = self.now_ns + round(timeout_s * NS_PER_S)
        self._advance(min(end_ns, self._due[0][0]) if self._due else end_ns)

    def at(self, time_ns: int, what: Callable[[], None]) -> None:
        """Lets something happen."""
        self._number += 1
        heapq.heappush(self._due, (time_ns, self._number, what))

    def _advance(self, time_ns: int) -> None:
        while self._due and self._due[0][0] <= time_ns:
            due_ns, _, what = heapq.heappop(self._due)
            self.now_ns = max(self.now_ns, due_ns)
            what()
        self.now_ns = max(self.now_ns, time_ns)


class VirtualServer:
    """Serves queries one by one, in order; satisfies ``target.QueryTarget``.

    Args:
        clock: Virtual time.
        service_ns: How long a query takes.
        stalls: How long instead, by query.
        fails: Queries that fail.
        hangs: Queries that are never answered, and hold up none.
        twice: Queries that are answered twice.
        submit_ns: How long handing a query over takes.
    """

    def __init__(
        self,
        clock: VirtualClock,
        service_ns: int,
        *,
        stalls: Mapping[int, int] | None = None,
        fails: frozenset[int] = frozenset(),
        hangs: frozenset[int] = frozenset(),
        twice: frozenset[int] = frozenset(),
        submit_ns: int = 0,
    ) -> None:
        self.clock = clock
        self.most_in_flight = 0
        self.in_flight = 0
        self.ended_with: float | None = None
        self._service_ns = service_ns
        self._stalls = stalls or {}
        self._fails, self._hangs, self._twice = fails, hangs, twice
        self._submit_ns = submit_ns
        self._free_ns = 0
        self._answers: Answers | None = None

    def begin(self, answers: Answers) -> None:
        self._answers = answers

    def submit(self, query: int) -> None:
        if self._submit_ns:
            self.clock.sleep(self._submit_ns / NS_PER_S)
        self.in_flight += 1
        self.most_in_flight = max(self.most_in_flight, self.in_flight)
        if query in self._hangs:
            return
        self._free_ns = max(self._free_ns, self.clock.now_ns) + self._stalls.get(query, self._service_ns)
        self.clock.at(self._free_ns, lambda: self._settle(query))

    def end(self, timeout_s: float) -> None:
        self._answers, self.ended_with = None, timeout_s

    def _settle(self, query: int) -> None:
        self.in_flight -= 1
        if self._answers is None:
            return
        now_ns = self.clock.now_ns
        if query in self._fails:
            self._answers.failed(query, now_ns, "it is told to fail")
        for _ in range(0 if query in self._fails else 1 + (query in self._twice)):
            self._answers.answered(query, now_ns)
