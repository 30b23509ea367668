"""Counters, gauges and histograms that cost little to count with; a scrape makes Prometheus' metrics of them.

``prometheus_client`` takes a lock for each number of a metric and looks at one bucket after the other: for
the metrics of a request that takes longer than to read its message.
"""

from __future__ import annotations

import threading
import time
from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Generic, TypeVar

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector

_Child = TypeVar("_Child")


class Tally:
    """A number that events change. Thread-safe."""

    __slots__ = ("_lock", "created_s", "value")

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self.created_s = time.time()
        self.value = 0

    def add(self, number: int = 1) -> None:
        """Adds a number."""
        with self._lock:
            self.value += number


class Distribution:
    """How often values were found up to each of some bounds. Thread-safe."""

    __slots__ = ("_bounds", "_counts", "_lock", "_total", "created_s")

    def __init__(self, bounds: Sequence[float]) -> None:
        self._lock = threading.Lock()
        self._bounds = bounds
        self._counts = [0] * (len(bounds) + 1)
        self._total = 0.0
        self.created_s = time.time()

    def add(self, value: float) -> None:
        """Counts a value."""
        place = bisect_left(self._bounds, value)
        with self._lock:
            self._counts[place] += 1
            self._total += value

    def read(self) -> tuple[list[int], float]:
        """Returns the counts between the bounds, the last beyond all of them, and the sum of the values."""
        with self._lock:
            return list(self._counts), self._total


class _Labelled(Collector, Generic[_Child]):
    """A metric whose children have each values of their own for its labels. Thread-safe."""

    def __init__(
        self, name: str, description: str, labels: Sequence[str], make: Callable[[], _Child]
    ) -> None:
        self._name = name
        self._description = description
        self._labels = tuple(labels)
        self._make = make
        self._children: dict[tuple[str, ...], _Child] = {}
        self._lock = threading.Lock()

    def of(self, *values: str) -> _Child:
        """Returns the child of the values of the labels, which the caller may keep."""
        child = self._children.get(values)
        if child is None:
            with self._lock:
                child = self._children.setdefault(values, self._make())
        return child

    def describe(self) -> Iterable[Metric]:
        """The metric's name."""
        return [self._family({})]

    def collect(self) -> Iterator[Metric]:
        """The metric now."""
        with self._lock:
            children = dict(self._children)
        yield self._family(children)

    def _family(self, children: dict[tuple[str, ...], _Child]) -> Metric:
        raise NotImplementedError


class Counts(_Labelled[Tally]):
    """A counter."""

    def __init__(self, name: str, description: str, labels: Sequence[str]) -> None:
        super().__init__(name, description, labels, Tally)

    def _family(self, children: dict[tuple[str, ...], Tally]) -> Metric:
        family = CounterMetricFamily(self._name, self._description, labels=self._labels)
        for values, tally in children.items():
            family.add_metric(values, tally.value, tally.created_s)
        return family


class Levels(_Labelled[Tally]):
    """A gauge."""

    def __init__(self, name: str, description: str, labels: Sequence[str]) -> None:
        super().__init__(name, description, labels, Tally)

    def _family(self, children: dict[tuple[str, ...], Tally]) -> Metric:
        family = GaugeMetricFamily(self._name, self._description, labels=self._labels)
        for values, tally in children.items():
            family.add_metric(values, tally.value)
        return family


class Distributions(_Labelled[Distribution]):
    """A histogram."""

    def __init__(self, name: str, description: str, labels: Sequence[str], bounds: Sequence[float]) -> None:
        self._bounds = tuple(map(float, bounds))
        super().__init__(name, description, labels, lambda: Distribution(self._bounds))

    def _family(self, children: dict[tuple[str, ...], Distribution]) -> Metric:
        family = HistogramMetricFamily(self._name, self._description, labels=self._labels)
        names = [*map(str, self._bounds), "+Inf"]
        for values, distribution in children.items():
            counts, total = distribution.read()
            up_to = [sum(counts[: place + 1]) for place in range(len(counts))]
            family.add_metric(values, list(zip(names, up_to, strict=True)), total)
            labels = dict(zip(self._labels, values, strict=True))
            family.add_sample(f"{self._name}_created", labels, distribution.created_s)
        return family
