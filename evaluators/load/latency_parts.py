"""The parts of the latency of a run under load: where queries spend their time.

There are two sources. The statistics of a server are totals, so their growth over the steady part of the run
gives the mean of each part, beside the client's mean over the same time. The answers of our agents, and of a
model in this process, tell the times of each query, and so the parts of those around a percentile. In both,
what is neither in the server nor before sending is the network: sending and receiving on either end, and
everything between them. It cannot be told from a wait, so only as much of it as a call for statistics takes
to and fro counts as explained.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from inferometer.evaluators.load.queries import LoadRun, Outcome, Queries
from inferometer.evaluators.load.server_statistics import ServerSeries

LEAST_EXPLAINED = 0.95
"""The share of the latency that the parts explain if nothing is said to be missing."""
PARTS = ("lag", "network", "queue", "input", "compute", "output", "rest")
"""Before sending; between client and server; in the queue; assembling, predicting and splitting the batch;
the rest of the server's time or, without a network, of the query's."""
_PERCENTS = (50.0, 90.0, 95.0, 99.0)
_MOST_HALF_WIDTH = 2.5
_ANSWERS = "answers"
_TOTALS = {"queue": "queue_ns", "input": "input_ns", "compute": "infer_ns", "output": "output_ns"}
"""The counters of the parts in a server; see ``server_statistics.COUNTERS``."""
_OTHERS_SHARE = 0.05


@dataclass(frozen=True, slots=True, eq=False)
class LatencyParts:
    """The mean parts of some queries' latency, in nanoseconds.

    Attributes:
        figure: Which queries: ``mean`` for all of them, ``p99`` for those with the latencies around that
            percentile.
        source: The source of the server's statistics (see ``ServerSeries``), or ``answers``.
        latencies_ns: int64; the latency of each of them.
        parts_ns: The known ones of ``PARTS``.
        round_trip_ns: The median round trip of a call for statistics; None if none was made.
        notes: What else restricts the parts, one line each.
    """

    figure: str
    source: str
    latencies_ns: NDArray[np.int64]
    parts_ns: Mapping[str, float]
    round_trip_ns: float | None
    notes: tuple[str, ...] = ()

    @property
    def latency_ns(self) -> float:
        """The mean latency; the sum of the parts."""
        return float(self.latencies_ns.mean())

    @property
    def explained_share(self) -> float:
        """The share of the latency that the parts explain, 0…1."""
        network_ns = self.parts_ns.get("network", 0.0)
        beyond_ns = max(network_ns - (self.round_trip_ns or 0.0), -network_ns, 0.0)
        unknown_ns = abs(self.parts_ns.get("rest", 0.0)) + beyond_ns
        return max(0.0, 1 - unknown_ns / self.latency_ns) if self.latency_ns > 0 else 1.0

    @property
    def missing(self) -> str:
        """What is not explained, and the notes, in one line; empty if there is nothing to say."""
        said, unknown_ms = self.notes, (1 - self.explained_share) * self.latency_ns / 1e6
        if self.explained_share < LEAST_EXPLAINED:
            where = "on the network, beyond the round trip of a call for statistics: tensors, or waits"
            if self.parts_ns.get("network", 0.0) < 0:
                where = "the server counts more time than passes here"
            elif 2 * abs(self.parts_ns.get("rest", 0.0)) / 1e6 > unknown_ms:
                where = "outside of the queue and the model"
            said = (f"{unknown_ms:.3f} ms are not explained: {where}", *said)
        return "; ".join(said)


def latency_parts(run: LoadRun) -> Iterator[LatencyParts]:
    """Yields the mean by the server's statistics, and the mean and percentiles by the answers, if known."""
    calls = [each for each in run.server if len(each.bound_ns) and not each.source.startswith("metrics")]
    trip_ns = min((float(np.median(2 * each.bound_ns)) for each in calls), default=None)
    counted = run.queries.since(run.cut_ns)
    for series in run.server:
        if (found := _by_statistics(run, series, trip_ns)) is not None:
            yield found
    told = (counted.outcome == Outcome.ANSWERED) & (counted.predict_ns >= 0)
    if not told.any():
        return
    yield _by_answers("mean", counted.chosen(told), trip_ns)
    order = np.argsort(counted.latency_ns, kind="stable")
    for percent in _PERCENTS:
        place = percent / 100 * (len(order) - 1)
        half = max(min(_MOST_HALF_WIDTH, (100 - percent) / 2) / 100 * len(order), 0.5)
        around = order[max(0, int(np.ceil(place - half))) : int(place + half) + 1]
        if told[around].all():
            chosen = np.zeros(len(counted), np.bool_)
            chosen[around] = True
            yield _by_answers(f"p{percent:g}", counted.chosen(chosen), trip_ns)


def _by_answers(figure: str, queries: Queries, trip_ns: float | None) -> LatencyParts:
    """Returns the parts of queries whose answers tell their times."""
    columns = (queries.lag_ns, queries.queue_ns, queries.batch_ns, queries.predict_ns)
    means_ns = (float(np.maximum(column, 0).mean()) for column in columns)
    parts = dict(zip(("lag", "queue", "input", "compute"), means_ns, strict=True))
    parts["rest" if trip_ns is None else "network"] = float(queries.latency_ns.mean()) - sum(parts.values())
    return LatencyParts(figure, _ANSWERS, queries.latency_ns, parts, trip_ns)


def _by_statistics(run: LoadRun, series: ServerSeries, trip_ns: float | None) -> LatencyParts | None:
    """Returns the mean parts over the steady part of a run; None if the source does not tell them.

    Time in which the server was restarted is left out, here and there.
    """
    growth = {name: series.growth(name) for name in ("requests", "success_ns", *_TOTALS.values())}
    kept = np.isfinite(growth["requests"]) & np.isfinite(growth["infer_ns"])
    if (steady := kept & (series.at_ns[:-1] >= run.cut_ns)).any():
        kept = steady
    place = np.searchsorted(series.at_ns, run.queries.done_ns) - 1
    inside = (place >= 0) & (place < len(kept)) & (run.queries.outcome == Outcome.ANSWERED)
    inside[inside] = kept[place[inside]]
    queries, requests = run.queries.chosen(inside), float(growth["requests"][kept].sum())
    if not requests or not len(queries):
        return None
    means_ns = {name: float(growth[name][kept].sum()) / requests for name in growth}
    latency_ns, lag_ns = float(queries.latency_ns.mean()), float(queries.lag_ns.mean())
    parts = {part: means_ns[name] for part, name in _TOTALS.items() if np.isfinite(means_ns[name])}
    within_ns = sum(parts.values())
    tells_whole = bool(np.isfinite(means_ns["success_ns"]))
    server_ns = means_ns["success_ns"] if tells_whole else within_ns
    rest_ns = round(server_ns - within_ns, 3) + 0.0  # not -0
    parts = {"lag": lag_ns, "network": latency_ns - lag_ns - server_ns, **parts, "rest": rest_ns}
    notes = []
    if not tells_whole:
        notes.append("the server does not tell how long requests stay in it: waits there count as network")
    if abs(requests - len(queries)) > max(_OTHERS_SHARE * requests, 2):
        notes.append(
            f"the server answered {requests:.0f} requests meanwhile, {len(queries)} of them from here"
        )
    if series.was_reset.any():
        notes.append("counters of the server began anew; the time around that is left out")
    return LatencyParts("mean", series.source, queries.latency_ns, parts, trip_ns, tuple(notes))
