"""The picture of the workload report: how long each query took, by when it was due."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from evaluators.evaluation import Evaluation
from evaluators.loadgen.queries import Outcome, Queries
from evaluators.loadgen.record import LoadOptions, LoadRun
from evaluators.plots.base import Plot, by_evaluation, label_of, number, readable, time_unit
from evaluators.plots.drawing import Band, Drawing, Mark, PointChart, Rule, Series
from evaluators.reports.base import Row

MOST_POINTS = 1500
"""Queries of one outcome in one evaluation that are drawn at most."""
_LATENCY = "latency: due to answer"
_SERVICE = "service: sent to answer"
_FAILED, _TIMED_OUT, _WAITING = "failed", "timed out", "waiting at the end"
_GROUPS = (_LATENCY, _SERVICE, _FAILED, _TIMED_OUT, _WAITING)
_LOGARITHMIC_FROM = 20
_NS_PER_S = 1_000_000_000
_NS_PER_MS = 1_000_000


class WorkloadPlot(Plot):
    """A chart for each workload."""

    def draw(self, evaluations: Sequence[Evaluation], rows: Sequence[Row]) -> Drawing | None:
        """Returns two points for each answered query and one for each other; of very many, a sample."""
        chosen, notes = by_evaluation(evaluations, rows)
        runs = [(e, e.load.options, e.load.runs[0], of_one[0]) for e, of_one in chosen if e.load is not None]
        runs = [each for each in runs if len(each[2].queries)]
        if not runs:
            return None
        sampled = any(len(run.queries) > MOST_POINTS for _, _, run, _ in runs)
        others = any((run.queries.outcome != Outcome.ANSWERED).any() for _, _, run, _ in runs)
        return Drawing(
            title="Latency of each query, by when it was due",
            charts=tuple(_chart(*each) for each in runs),
            groups=_GROUPS if others else _GROUPS[:2],
            notes=(
                "Where a query was sent when it was due, latency and service time are the same, and the dots "
                "lie in each other.",
                *(("Crosses: for how long there had been no right answer.",) * others),
                *(
                    ("Of many queries, some at equal distance are shown, and the longest of each stretch.",)
                    * sampled
                ),
                *notes,
            ),
        )


def _chart(evaluation: Evaluation, options: LoadOptions, run: LoadRun, row: Row) -> PointChart:
    found = _points(run.queries, round(options.timeout_ms * _NS_PER_MS))
    times_ns = np.concatenate([spent_ns for _, _, spent_ns in found])
    bound_ns = options.latency_bound_ns
    median_ns, highest_ns = float(np.median(times_ns)), max(int(times_ns.max()), bound_ns or 0)
    logarithmic = highest_ns > _LOGARITHMIC_FROM * median_ns
    # where there are times of all sizes, the middle one is to be readable
    scale, unit = time_unit((median_ns if logarithmic else highest_ns) / 1000)
    scale *= 1000
    rules = () if bound_ns is None else (Rule(bound_ns / scale, f"bound {options.latency_bound_ms:g} ms"),)
    return PointChart(
        heading=label_of(evaluation, *_details(options, run, row), warning=_warning(run)),
        x_axis="when the query was due (s since the run began)",
        y_axis=f"time ({unit})",
        series=tuple(_series(evaluation, *each, scale, unit) for each in found),
        rules=rules,
        bands=(Band(0.0, run.cut_ns / _NS_PER_S, "empty start: not counted"),) if run.cut_ns else (),
        y_logarithmic=logarithmic,
        tall=True,
    )


def _points(queries: Queries, timeout_ns: int) -> list[tuple[str, NDArray[np.int64], NDArray[np.int64]]]:
    """Of each group that there is: when its queries were due, and the time that is drawn of them."""
    end_ns = int(max(queries.scheduled_ns.max(), queries.sent_ns.max(), queries.done_ns.max()))
    due_ns = queries.scheduled_ns
    spent_ns = {
        (_LATENCY, Outcome.ANSWERED): queries.done_ns - due_ns,
        (_SERVICE, Outcome.ANSWERED): queries.done_ns - queries.sent_ns,
        (_FAILED, Outcome.FAILED): queries.done_ns - due_ns,
        (_TIMED_OUT, Outcome.TIMED_OUT): np.full(len(queries), timeout_ns, np.int64),
        (_WAITING, Outcome.WAITING): end_ns - due_ns,
    }
    found = []
    for (group, outcome), times_ns in spent_ns.items():
        chosen = queries.outcome == outcome
        if chosen.any():
            # a logarithmic axis has no 0
            found.append((group, due_ns[chosen], np.maximum(times_ns[chosen], 1)))
    return found


def _series(
    evaluation: Evaluation,
    group: str,
    due_ns: NDArray[np.int64],
    spent_ns: NDArray[np.int64],
    scale: float,
    unit: str,
) -> Series:
    kept = _sample(spent_ns)
    median, longest = (readable(float(value) / scale) for value in (np.median(spent_ns), spent_ns.max()))
    answered = group in (_LATENCY, _SERVICE)
    return Series(
        group,
        tuple((due_ns[kept] / _NS_PER_S).tolist()),
        tuple((spent_ns[kept] / scale).tolist()),
        tooltip=(
            f"{evaluation.id}: {len(due_ns):,} × {group}, median {median} {unit}, longest {longest} {unit}"
        ),
        mark=Mark.DOT if answered else Mark.CROSS,
        size={_LATENCY: 3.2, _SERVICE: 1.4}.get(group, 3.0),
    )


def _sample(values: NDArray[np.int64]) -> NDArray[np.intp]:
    """The places of values at equal distance and of the largest of each stretch: no outlier is lost."""
    count = len(values)
    if count <= MOST_POINTS:
        return np.arange(count)
    edges = np.linspace(0, count, MOST_POINTS // 3 + 1).astype(np.intp)
    largest = [begin + int(values[begin:end].argmax()) for begin, end in pairwise(edges.tolist())]
    even = np.linspace(0, count - 1, MOST_POINTS - len(largest)).astype(np.intp)
    places: NDArray[np.intp] = np.unique(np.concatenate([even, np.array(largest, np.intp)]))
    return places


def _details(options: LoadOptions, run: LoadRun, row: Row) -> tuple[str, ...]:
    rate = f"{run.source} at {run.rate_qps:g} queries/s" if run.rate_qps else run.source
    if row["latency_ms_p99"] is None:
        return (rate,)
    p99_ms = number(row["latency_ms_p99"])
    return rate, (f"p99 {readable(p99_ms)} ms" if np.isfinite(p99_ms) else "p99 without an answer")


def _warning(run: LoadRun) -> str:
    """What there is to say against a run."""
    stopped = f"STOPPED: {run.stopped}" if run.stopped else ""
    return "; ".join(filter(None, (f"INVALID: {run.invalid}" if run.invalid else "", stopped)))
