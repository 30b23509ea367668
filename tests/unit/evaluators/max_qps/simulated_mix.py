"""A host on which the models of a mix share one server, in virtual time, and the session that loads it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from load_runs import latencies
from numpy.typing import NDArray
from simulated_prober import ended

from inferometer.evaluators.kinds.load.request import MaxQpsRequest
from inferometer.evaluators.load.arrivals import Extent, Schedule
from inferometer.evaluators.load.queries import LoadRun, Outcome, Queries, Stop

Service = tuple[float, bool]
"""The mean time of a query in seconds, and whether times are exponential instead of all equal."""


def load(rate_qps: float, bound_ms: float, percentile: float = 95.0, **options: Any) -> MaxQpsRequest:
    given = {"tolerance": 0.02, "time_budget_s": 600.0, "min_duration_s": 5.0, **options}
    return MaxQpsRequest(initial_qps=rate_qps, latency_bound_ms=bound_ms, percentile=percentile, **given)


@dataclass
class SharedServer:
    """Serves the queries of all models one by one, in the order in which they are sent; a ``MixSession``.

    Attributes:
        services: The service times of each model.
        seed: Of what they draw.
        shared: Whether all models wait in one queue; otherwise, each has a server of its own.
        lags_above: From this sum of rates on, all queries are sent too late by ``lag_s``.
    """

    services: Sequence[Service]
    seed: int = 0
    shared: bool = True
    lags_above: float = np.inf
    lag_s: float = 1.0
    elapsed_s: float = 0.0
    probes: list[tuple[LoadRun, ...]] = field(default_factory=list)
    reconnected: int = 0

    def __post_init__(self) -> None:
        self._random = np.random.RandomState(self.seed)

    def reconnect(self) -> None:
        self.reconnected += 1

    def run(self, schedules: Sequence[Schedule], late: Sequence[tuple[int, int]], name: str) -> Any:
        lagging = sum(each.rate_qps for each in schedules) > self.lags_above
        due = [each.offsets_ns for each in schedules]
        sent = [each + round(self.lag_s * 1e9 * lagging) for each in due]
        done = self.done_ns(sent)
        found = [_queries(*times) for times in zip(due, sent, done, strict=True)]
        ends = [_hopeless_ns(queries, *limit) for queries, limit in zip(found, late, strict=True)]
        last_ns = float(max([times.max() for times in (*done, *due) if len(times)]))
        end_ns = min(*ends, last_ns)
        stop = Stop.HOPELESS if end_ns < last_ns else Stop.COMPLETE
        if stop:
            found = [ended(queries, int(end_ns)) for queries in found]
        self.elapsed_s += end_ns / 1e9
        probe = tuple(
            LoadRun(each.rate_qps, each.source, each.seed, each.checksum, queries, stopped=stop.value)
            for each, queries in zip(schedules, found, strict=True)
        )
        self.probes.append(probe)
        return probe

    def done_ns(self, sent: Sequence[NDArray[np.int64]]) -> list[NDArray[np.int64]]:
        services = [
            self._random.standard_exponential(len(each)) * mean if drawn else np.full(len(each), mean)
            for each, (mean, drawn) in zip(sent, self.services, strict=True)
        ]
        queues = [range(len(sent))] if self.shared else [[place] for place in range(len(sent))]
        done: dict[int, NDArray[np.int64]] = {}
        for queue in queues:
            times, spent = (np.concatenate([each[place] for place in queue]) for each in (sent, services))
            order = np.argsort(times, kind="stable")
            ended_at = np.empty(len(times))
            gaps = np.diff(times[order] / 1e9, prepend=0.0)
            ended_at[order] = times[order] / 1e9 + latencies(gaps, spent[order])
            parts = np.split(ended_at, np.cumsum([len(sent[place]) for place in queue])[:-1])
            done |= {
                place: np.rint(part * 1e9).astype(np.int64) for place, part in zip(queue, parts, strict=True)
            }
        return [done[place] for place in range(len(sent))]


def _queries(due: NDArray[np.int64], sent: NDArray[np.int64], done: NDArray[np.int64]) -> Queries:
    nothing = np.full(len(due), -1, np.int64)
    outcome = np.full(len(due), Outcome.ANSWERED, np.int64)
    return Queries(due, sent, done, outcome, nothing, nothing, np.zeros(len(due), np.int64))


def _hopeless_ns(queries: Queries, bound_ns: int, most: int) -> float:
    late_ns = np.sort(queries.scheduled_ns[queries.latency_ns > bound_ns] + bound_ns)
    return float(late_ns[most]) if len(late_ns) > most else np.inf


def true_factor(
    models: Mapping[str, MaxQpsRequest], services: Sequence[Service], *, shared: bool = True
) -> dict[str, float]:
    """The factor up to which each model keeps its bound beside the others, from long simulated runs."""
    found = {}
    for place, (name, model) in enumerate(models.items()):
        low, high = 0.0, 20.0
        for _ in range(14):
            factor = (low + high) / 2
            share = _late_share(models, services, place, factor, shared)
            low, high = (factor, high) if share <= model.late_fraction else (low, factor)
        found[name] = low
    return found


def _late_share(
    models: Mapping[str, MaxQpsRequest], services: Sequence[Service], place: int, factor: float, shared: bool
) -> float:
    total_qps = sum(each.rate_qps for each in models.values())
    extent = Extent(400_000 / (factor * total_qps))
    due = [
        Schedule.drawn(each.process, factor * each.rate_qps, extent, 7 + n).offsets_ns
        for n, each in enumerate(models.values())
    ]
    done = SharedServer(services, 3, shared).done_ns(due)
    model = list(models.values())[place]
    return float(np.mean(done[place] - due[place] > model.latency_bound_ms * 1e6))
