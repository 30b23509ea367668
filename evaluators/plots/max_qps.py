"""The picture of a search: latency percentiles of its probes against their rate, the bound and the answer."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np

from evaluators.evaluation import Evaluation
from evaluators.loadgen.max_qps_answer import Method, rate_text
from evaluators.loadgen.probe_summary import ProbeSummary
from evaluators.loadgen.record import LoadOptions, LoadRecord, LoadRun
from evaluators.plots.base import Plot, by_evaluation, label_of, time_unit
from evaluators.plots.drawing import Band, Drawing, Mark, PointChart, Rule, Series
from evaluators.reports.base import Row

_STOPPED, _INVALID = ", stopped early", ", INVALID"
_LOGARITHMIC_FROM = 4
_NS_PER_US = 1000
_SMALLEST, _LARGER = 3.0, 1.2

Point = tuple[float, float]
"""A rate in queries/s and a latency in nanoseconds."""


class MaxQpsPlot(Plot):
    """A chart for each search."""

    def draw(self, evaluations: Sequence[Evaluation], rows: Sequence[Row]) -> Drawing | None:
        """Returns a point for each percentile of each probe, joined by percentile where a probe is whole."""
        chosen, notes = by_evaluation(evaluations, rows)
        loads = [(e, e.load, _groups_of(e.load)) for e, _ in chosen if e.load is not None]
        loads = [each for each in loads if each[2]]
        if not loads:
            return None
        used = {group for _, _, groups in loads for group in groups}
        return Drawing(
            title="Latency against rate",
            charts=tuple(_chart(*each) for each in loads),
            groups=tuple(group for group in _names(load.options for _, load, _ in loads) if group in used),
            notes=(
                "Each point is a probe, over the queries that the search judges it by; an arrow at the upper "
                "edge: the percentile falls on queries without an answer.",
                *notes,
            ),
        )


def _groups_of(load: LoadRecord) -> dict[str, list[Point]]:
    """The points by group, each group in the order of the rates."""
    found: dict[str, list[Point]] = {}
    for run in sorted(load.runs, key=lambda run: run.rate_qps):
        summary = ProbeSummary.of(run, load.options)
        for percent, each in summary.percentiles.items():
            if _is_whole(run) or percent == load.options.percentile:
                found.setdefault(_group(percent, run), []).append((run.rate_qps, each.value_ns))
    return {group: found[group] for group in _names([load.options]) if group in found}


def _names(several: Iterable[LoadOptions]) -> list[str]:
    """The groups that there can be, in the order of the legend."""
    percents = sorted({percent for options in several for percent in (50.0, options.percentile, 99.9)})
    return [f"p{percent:g}{how}" for how in ("", _STOPPED, _INVALID) for percent in percents]


def _is_whole(run: LoadRun) -> bool:
    return not run.stopped and not run.invalid


def _group(percent: float, run: LoadRun) -> str:
    return f"p{percent:g}{_INVALID if run.invalid else _STOPPED if run.stopped else ''}"


def _chart(evaluation: Evaluation, load: LoadRecord, groups: dict[str, list[Point]]) -> PointChart:
    options, bound_ns = load.options, load.options.latency_bound_ns or 0
    known = [y for points in groups.values() for _, y in points if np.isfinite(y)] + [float(bound_ns)]
    rates = [run.rate_qps for run in load.runs]
    scale, unit = time_unit(max(known) / _NS_PER_US)
    scale *= _NS_PER_US
    bands, rules = _answer(load)
    bound = f"bound {options.latency_bound_ms:g} ms for p{options.percentile:g}"
    return PointChart(
        heading=label_of(evaluation, _headline(load), warning=_warning(load)),
        x_axis="rate (queries/s)",
        y_axis=f"latency ({unit})",
        series=tuple(_series(evaluation, *each, scale, unit) for each in _largest_below(groups)),
        rules=(Rule(bound_ns / scale, bound), *rules),
        bands=bands,
        x_logarithmic=max(rates) > _LOGARITHMIC_FROM * min(rates),
        y_logarithmic=max(known) > _LOGARITHMIC_FROM * min(known),
        tall=True,
    )


def _largest_below(groups: dict[str, list[Point]]) -> list[tuple[str, list[Point], float]]:
    """The groups with the size of their points: the higher percentiles lie below, so that none is hidden."""
    return [
        (group, points, _SMALLEST + _LARGER * place)
        for place, (group, points) in reversed(list(enumerate(groups.items())))
    ]


def _series(
    evaluation: Evaluation, group: str, points: Sequence[Point], size: float, scale: float, unit: str
) -> Series:
    x, y = zip(*((rate, latency_ns / scale) for rate, latency_ns in points), strict=True)
    mark = Mark.CROSS if group.endswith(_INVALID) else Mark.RING if group.endswith(_STOPPED) else Mark.DOT
    highest = max((value for value in y if np.isfinite(value)), default=None)
    most = f", at most {highest:.4g} {unit}" if highest is not None else ""
    tooltip = f"{evaluation.id}: {group} of {len(points)} probe{'s' * (len(points) > 1)}{most}"
    return Series(group, x, y, line=mark is Mark.DOT, tooltip=tooltip, mark=mark, size=size)


def _answer(load: LoadRecord) -> tuple[tuple[Band, ...], tuple[Rule, ...]]:
    """The interval of the answer, and the answer."""
    answer = load.answer
    if answer is None:
        return (), ()
    bracket = answer.method == Method.BRACKET.value
    if answer.high_qps is None:
        return (), () if answer.rate_qps is None else (Rule(answer.rate_qps, "at least", upright=True),)
    if answer.low_qps is None:
        return (), (Rule(answer.high_qps, "not kept", upright=True),)
    band = Band(answer.low_qps, answer.high_qps, "kept … not kept" if bracket else "95 % interval")
    return (band,), () if bracket or answer.rate_qps is None else (Rule(answer.rate_qps, "", upright=True),)


def _headline(load: LoadRecord) -> str:
    answer, options = load.answer, load.options
    judged = f"at p{options.percentile:g} ≤ {options.latency_bound_ms:g} ms"
    if answer is None:
        return f"max QPS {judged}: no answer"
    text = rate_text(Method(answer.method), answer.rate_qps, answer.low_qps, answer.high_qps)
    return f"max QPS {text} {judged} ({answer.method})"


def _warning(load: LoadRecord) -> str:
    """What there is to say against a search."""
    invalid = sum(bool(run.invalid) for run in load.runs)
    parts = [
        "" if load.answer else "STOPPED before there was an answer",
        f"INVALID: {invalid} of {len(load.runs)} probes, whose latencies are not to be trusted"
        if invalid
        else "",
        load.answer.note if load.answer else "",
    ]
    return "; ".join(filter(None, parts))
