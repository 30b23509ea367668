"""Plots of workloads, of searches for the highest rate, and of mixes of models."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from inferometer.evaluators.drawing.charts import (
    Band,
    Bar,
    BarChart,
    BarRow,
    Chosen,
    Drawing,
    Label,
    Mark,
    Plot,
    PointChart,
    Rule,
    Series,
    label_of,
    number,
    readable,
    time_unit,
)
from inferometer.evaluators.evaluation import Evaluation
from inferometer.evaluators.kinds.load.measurement import (
    SIDES,
    LoadMeasurement,
    LoadOptions,
    Method,
    MixMeasurement,
    RateSearchMeasurement,
    invalid_reason,
    rate_text,
)
from inferometer.evaluators.kinds.load.summary import LoadSummary
from inferometer.evaluators.load.latency_parts import PARTS
from inferometer.evaluators.load.queries import LoadRun, Outcome, Queries
from inferometer.evaluators.reports.base import Row

MOST_POINTS = 1500
"""The maximum number of points per outcome of an evaluation."""
_LATENCY = "latency: due to answer"
_SERVICE = "service: sent to answer"
_FAILED, _TIMED_OUT, _WAITING = "failed", "timed out", "waiting at the end"
_GROUPS = (_LATENCY, _SERVICE, _FAILED, _TIMED_OUT, _WAITING)
_SINCE = "s since the run began"
_LOGARITHMIC_FROM = 20
_NS_PER_S = 1_000_000_000
_NS_PER_MS = 1_000_000


class WorkloadPlot(Plot[LoadMeasurement]):
    """A chart for each workload."""

    def drawing(self, chosen: Chosen[LoadMeasurement], notes: Sequence[str]) -> Drawing | None:
        """Returns two points per answered query and one per other query, or a sample if there are many."""
        runs = [
            (e, e.measurement.options, e.measurement.run, of_one[0])
            for e, of_one in chosen
            if len(e.measurement.run.queries)
        ]
        if not runs:
            return None
        sampled = any(len(run.queries) > MOST_POINTS for _, _, run, _ in runs)
        others = any((run.queries.outcome != Outcome.ANSWERED).any() for _, _, run, _ in runs)
        charts = [chart for each in runs for chart in (_chart(*each), *server_charts(each[0], each[2]))]
        read = (series.group for chart in charts for series in chart.series if series.group not in _GROUPS)
        return Drawing(
            title="Latency of each query, by when it was due",
            charts=tuple(charts),
            groups=(*(_GROUPS if others else _GROUPS[:2]), *dict.fromkeys(read)),
            notes=(
                "If a query was sent when it was due, latency and service time are equal: the dots coincide.",
                *(("Crosses: the time without a correct answer.",) * others),
                *(("Shown: evenly spaced queries, and the longest of each stretch.",) * sampled),
                *notes,
            ),
        )


_SERVER_CHARTS = (
    ("requests", 1.0, {"queue_length": "queue length", "in_flight": "in flight", "batch_size": "batch size"}),
    ("cores", 1.0, {"cpu_cores": "CPU"}),
    (
        "share",
        1.0,
        {
            "host_cpu_use": "host's CPU",
            "gpu_use": "GPU",
            "cache_use": "cache",
            "prefix_hit_share": "prefix hits",
        },
    ),
    (
        "memory (MiB)",
        2.0**20,
        {"memory_bytes": "memory", "gpu_memory_bytes": "GPU memory", "host_memory_bytes": "host's memory"},
    ),
)
"""The charts of the server, under that of the latency: the axis, its unit, and the levels by name."""


def server_charts(evaluation: Evaluation, run: LoadRun) -> Iterator[PointChart]:
    """Yields what the server reported during a run, over the same time; of several sources, the first."""
    for axis, unit, levels in _SERVER_CHARTS:
        found = []
        for name, group in levels.items():
            read = (each.level(name) for each in run.server)
            at_ns, values = next((each for each in read if len(each[0])), ((), ()))
            if len(at_ns):
                x, y = np.asarray(at_ns) / _NS_PER_S, np.asarray(values) / unit
                tooltip = f"{evaluation.id}: {group}, mean {readable(y.mean())}, most {readable(y.max())}"
                found.append(Series(group, tuple(x), tuple(y), line=True, tooltip=tooltip, size=2.0))
        if found:
            yield PointChart(
                heading=Label("The server during this run"),
                x_axis=_SINCE,
                y_axis=axis,
                series=tuple(found),
                bands=empty_start(run),
                x_range=clock_range(run),
            )


def _chart(evaluation: Evaluation, options: LoadOptions, run: LoadRun, row: Row) -> PointChart:
    found = _points(run.queries, round(options.timeout_ms * _NS_PER_MS))
    times_ns = np.concatenate([spent_ns for _, _, spent_ns in found])
    bound_ns = options.latency_bound_ns
    median_ns, highest_ns = float(np.median(times_ns)), max(int(times_ns.max()), bound_ns or 0)
    logarithmic = highest_ns > _LOGARITHMIC_FROM * median_ns
    # on a logarithmic axis, the unit suits the median
    scale, unit = time_unit((median_ns if logarithmic else highest_ns) / 1000)
    scale *= 1000
    rules = () if bound_ns is None else (Rule(bound_ns / scale, _bound(bound_ns / scale, unit)),)
    return PointChart(
        heading=label_of(evaluation, *_details(options, run, row), warning=_warning(run)),
        x_axis=f"when the query was due ({_SINCE})",
        y_axis=f"time ({unit})",
        series=tuple(_series(evaluation, *each, scale, unit) for each in found),
        rules=rules,
        bands=empty_start(run),
        y_logarithmic=logarithmic,
        tall=True,
        x_range=clock_range(run),
    )


def clock_range(run: LoadRun) -> tuple[float, float] | None:
    """Returns from when to when a run and the readings of its server lasted; None if none were read."""
    read_ns = [series.at_ns for series in run.server if len(series.at_ns)]
    if not read_ns:
        return None
    times_ns = np.concatenate([[0], run.queries.scheduled_ns, np.maximum(run.queries.done_ns, 0), *read_ns])
    return float(times_ns.min()) / _NS_PER_S, float(times_ns.max()) / _NS_PER_S


def empty_start(run: LoadRun) -> tuple[Band, ...]:
    """Returns the shaded start of a run, if it has one."""
    return (Band(0.0, run.cut_ns / _NS_PER_S, "empty start: not counted"),) if run.cut_ns else ()


def _bound(value: float, unit: str) -> str:
    """Returns the label of a bound, in the unit of the axis."""
    return f"bound {value:,.6g} {unit}"


def _points(queries: Queries, timeout_ns: int) -> list[tuple[str, NDArray[np.int64], NDArray[np.int64]]]:
    """Returns each non-empty group of queries: when they were due, and the time to draw for each query."""
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
            # a logarithmic axis cannot show 0
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
    """Returns the indices of evenly spaced values and of each stretch's largest value, to keep outliers."""
    count = len(values)
    if count <= MOST_POINTS:
        return np.arange(count)
    edges = np.linspace(0, count, MOST_POINTS // 3 + 1).astype(np.intp)
    largest = [begin + int(values[begin:end].argmax()) for begin, end in pairwise(edges.tolist())]
    even = np.linspace(0, count - 1, MOST_POINTS - len(largest)).astype(np.intp)
    indices: NDArray[np.intp] = np.unique(np.concatenate([even, np.array(largest, np.intp)]))
    return indices


def _details(options: LoadOptions, run: LoadRun, row: Row) -> tuple[str, ...]:
    rate = f"{run.source} at {run.rate_qps:g} queries/s" if run.rate_qps else run.source
    if row["latency_ms_p99"] is None:
        return (rate,)
    p99_ms = number(row["latency_ms_p99"])
    return rate, (f"p99 {readable(p99_ms)} ms" if np.isfinite(p99_ms) else "p99 without an answer")


def _warning(run: LoadRun) -> str:
    """Returns the reasons why a run cannot be trusted, or an empty text."""
    stopped = f"STOPPED: {run.stopped}" if run.stopped else ""
    return "; ".join(filter(None, (f"INVALID: {run.invalid}" if run.invalid else "", stopped)))


class PartsPlot(Plot[LoadMeasurement]):
    """A chart for each workload, with a stacked bar for each figure of its latency."""

    def drawing(self, chosen: Chosen[LoadMeasurement], notes: Sequence[str]) -> Drawing | None:
        charts = []
        for evaluation, rows in chosen:
            bars = tuple(
                BarRow(
                    Label(f"{row['figure']} by {row['source']}", str(row["missing"] or "")),
                    tuple(
                        Bar(max(value, 0.0), name, tooltip=f"{name} {readable(value)} ms")
                        for name in PARTS
                        if (value := number(row[f"{name}_ms"]))
                    ),
                )
                for row in rows
            )
            charts.append(BarChart(label_of(evaluation), "latency (ms)", bars, stacked=True))
        return Drawing("Parts of the latency", tuple(charts), PARTS, tuple(notes))


_STOPPED, _INVALID = ", stopped early", ", INVALID"
_SEARCH_LOGARITHMIC_FROM = 4
_NS_PER_US = 1000
_SMALLEST, _LARGER = 3.0, 1.2

Point = tuple[float, float]
"""A rate in queries/s and a latency in nanoseconds."""


class MaxQpsPlot(Plot[RateSearchMeasurement]):
    """A chart for each search."""

    def drawing(self, chosen: Chosen[RateSearchMeasurement], notes: Sequence[str]) -> Drawing | None:
        """Returns a point for each percentile of each probe; lines join those of valid, complete probes."""
        searches = [(e, e.measurement, _groups_of(e.measurement)) for e, _ in chosen]
        searches = [each for each in searches if each[2]]
        if not searches:
            return None
        used = {group for _, _, groups in searches for group in groups}
        return Drawing(
            title="Latency against rate",
            charts=tuple(_search_chart(*each) for each in searches),
            groups=tuple(
                group for group in _names(search.options for _, search, _ in searches) if group in used
            ),
            notes=(
                "Each point is a probe, over the queries by which the search judges it. An arrow at the "
                "upper edge: the percentile falls on queries without an answer.",
                *notes,
            ),
        )


def _groups_of(search: RateSearchMeasurement) -> dict[str, list[Point]]:
    """Returns the points of each group, sorted by rate."""
    found: dict[str, list[Point]] = {}
    for run in sorted(search.probes, key=lambda run: run.rate_qps):
        for each in LoadSummary.of_probe(run, search.options).percentiles:
            suffix = _INVALID if run.invalid else _STOPPED if run.stopped else ""
            if not suffix or each.percent == search.options.percentile:
                found.setdefault(f"p{each.percent:g}{suffix}", []).append((run.rate_qps, each.value_ns))
    return {group: found[group] for group in _names([search.options]) if group in found}


def _names(several: Iterable[LoadOptions]) -> list[str]:
    """Returns the names of all possible groups, in the order of the legend."""
    percents = sorted({percent for options in several for percent in (50.0, options.percentile, 99.9)})
    return [f"p{percent:g}{how}" for how in ("", _STOPPED, _INVALID) for percent in percents]


def _search_chart(
    evaluation: Evaluation, search: RateSearchMeasurement, groups: dict[str, list[Point]]
) -> PointChart:
    options, bound_ns = search.options, search.options.latency_bound_ns or 0
    known = [y for points in groups.values() for _, y in points if np.isfinite(y)] + [float(bound_ns)]
    rates = [run.rate_qps for run in search.probes]
    scale, unit = time_unit(max(known) / _NS_PER_US)
    scale *= _NS_PER_US
    bands, rules = _answer(search)
    # higher percentiles have larger points and lie below, which hides none
    sized = [(*group, _SMALLEST + _LARGER * place) for place, group in enumerate(groups.items())][::-1]
    bound = f"{_bound(bound_ns / scale, unit)} for p{options.percentile:g}"
    return PointChart(
        heading=label_of(evaluation, _headline(search), warning=_search_warning(search)),
        x_axis="rate (queries/s)",
        y_axis=f"{search.headline[0]} ({unit})",
        series=tuple(_search_series(evaluation, *each, scale, unit) for each in sized),
        rules=(Rule(bound_ns / scale, bound), *rules),
        bands=bands,
        x_logarithmic=max(rates) > _SEARCH_LOGARITHMIC_FROM * min(rates),
        y_logarithmic=max(known) > _SEARCH_LOGARITHMIC_FROM * min(known),
        tall=True,
    )


def _search_series(
    evaluation: Evaluation, group: str, points: Sequence[Point], size: float, scale: float, unit: str
) -> Series:
    x, y = zip(*((rate, latency_ns / scale) for rate, latency_ns in points), strict=True)
    mark = Mark.CROSS if group.endswith(_INVALID) else Mark.RING if group.endswith(_STOPPED) else Mark.DOT
    highest = max((value for value in y if np.isfinite(value)), default=None)
    most = f", at most {highest:.4g} {unit}" if highest is not None else ""
    tooltip = f"{evaluation.id}: {group} of {len(points)} probe{'s' * (len(points) > 1)}{most}"
    return Series(group, x, y, line=mark is Mark.DOT, tooltip=tooltip, mark=mark, size=size)


def _answer(search: RateSearchMeasurement) -> tuple[tuple[Band, ...], tuple[Rule, ...]]:
    """Returns the answer's interval as a band, and the answer itself as a rule."""
    answer = search.answer
    if answer is None:
        return (), ()
    bracket = answer.method == Method.BRACKET.value
    if answer.high_qps is None:
        return (), () if answer.rate_qps is None else (Rule(answer.rate_qps, "at least", upright=True),)
    if answer.low_qps is None:
        return (), (Rule(answer.high_qps, "not kept", upright=True),)
    band = Band(answer.low_qps, answer.high_qps, "kept … not kept" if bracket else "95 % interval")
    return (band,), () if bracket or answer.rate_qps is None else (Rule(answer.rate_qps, "", upright=True),)


def _headline(search: RateSearchMeasurement) -> str:
    (_, name, answer), options = search.headline, search.options
    judged = f"at p{options.percentile:g} ≤ {options.latency_bound_ms:g} ms"
    if answer is None:
        return f"{name} {judged}: no answer"
    text = rate_text(answer)
    text = f"INVALID {text}" if invalid_reason(search) else text
    return f"{name} {text} {judged} ({answer.method})"


def _search_warning(search: RateSearchMeasurement) -> str:
    """Returns the reasons why a search cannot be trusted, or an empty text."""
    invalid = sum(bool(run.invalid) for run in search.probes)
    parts = [] if search.answer else ["STOPPED before there was an answer"]
    if invalid:
        parts.append(f"INVALID: {invalid} of {len(search.probes)} probes; do not trust their latencies")
    return "; ".join((*parts, *((search.answer.note,) if search.answer and search.answer.note else ())))


class MixPlot(Plot[MixMeasurement]):
    """Bars of each model's latency alone and together."""

    def shows(self, row: Row) -> bool:
        """Returns whether the row's percentiles are known, and fall on queries with an answer."""
        values = (row[f"{side}_ms_{key}"] for side in SIDES for key in ("p50", "judged"))
        return all(value is not None and np.isfinite(number(value)) for value in values)

    def drawing(self, chosen: Chosen[MixMeasurement], notes: Sequence[str]) -> Drawing:
        return Drawing(
            title="Latency alone and together",
            charts=tuple(_mix_chart(evaluation, row) for evaluation, [row] in chosen),
            groups=SIDES,
            notes=("A whisker is the 95 % interval; the ratio is together / alone.", *notes),
        )


def _mix_chart(evaluation: Evaluation[MixMeasurement], row: Row) -> BarChart:
    mix, rows = evaluation.measurement, []
    for key, percent in (("p50", 50.0), ("judged", mix.options.percentile)):
        bars = []
        for side in SIDES:
            value, low, high = (row[f"{side}_ms_{key}{end}"] for end in ("", "_low", "_high"))
            tooltip = f"{mix.name} {side}: p{percent:g} {value:.6g} ms"
            ends = (number(low), number(high)) if high and np.isfinite(number(high)) else None
            bars.append(Bar(number(value), side, f"{value:.3f} ms", tooltip, ends))
        ratio = row[f"ratio_{key}"]
        detail = "" if ratio is None else f"ratio {number(ratio):.3f}"
        rows.append(BarRow(Label(f"p{percent:g}", detail), tuple(bars)))
    load = f"{mix.name}: {mix.options.arrival} at {mix.options.rate_qps:g} queries/s"
    warning = f"INVALID: {mix.invalid}" if mix.invalid else ""
    return BarChart(label_of(evaluation, load, warning=warning), "latency (ms)", tuple(rows))
