"""The plot of single operators: the roofline of the machine, and frameworks side by side."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from inferometer.evaluators.drawing.charts import (
    Bar,
    BarChart,
    BarRow,
    Drawing,
    Label,
    PointChart,
    Series,
)
from inferometer.evaluators.kinds.operators.measurement import MachinePeak, OperatorMeasurement
from inferometer.evaluators.plots.base import Chosen, Plot, number, plural, readable, time_unit
from inferometer.evaluators.reports.base import Row

MOST_ROWS = 30
"""The rows of bars that fit into a picture together with the roofline."""
MOST_POINTS = 60
_ROOF = "roof of this machine"
_CASE = ("operator", "inputs", "parameters", "mode")
_WHERE = ("dtype", "cache", "device", "threads", "hostname")
_FAR = 10.0  # a ratio beyond which bars are logarithmic
_DETAIL_CHARACTERS = 60
_GIGA = 1e9
_CORNER = 0.1  # how small the points at the ends of a roof are


class OperatorsPlot(Plot[OperatorMeasurement]):
    """Two charts: each row under the roofs of the machine, and p50 relative to the fastest framework.

    The roofline is drawn where the machine's peak was measured; the bars compare where several frameworks or
    forms measured the same, and show p50 elsewhere. Of what was measured repeatedly, the newest is shown.

    Args:
        most_points: The points of the roofline beyond which those of a framework have one tooltip together.
    """

    def __init__(self, most_points: int = MOST_POINTS) -> None:
        self._most_points = most_points

    def shows(self, row: Row) -> bool:
        """Returns whether the row was measured."""
        return row["p50_us"] is not None

    def drawing(self, chosen: Chosen[OperatorMeasurement], notes: Sequence[str]) -> Drawing:
        """Returns the charts."""
        every = [row for _, rows in chosen for row in rows]
        series_of = _series_names(every)
        newest: dict[tuple[str, ...], Row] = {}
        for row in every:
            newest.setdefault((*_key(row), series_of[id(row)]), row)
        rows = list(newest.values())
        groups = tuple(dict.fromkeys(series_of[id(row)] for row in rows))
        peaks = dict.fromkeys(e.measurement.peak for e, _ in chosen if e.measurement.peak is not None)
        roofline = self._roofline(list(peaks), rows, series_of)
        bars, told = _side_by_side(rows, series_of)
        return Drawing(
            title="Single operators",
            charts=(*((roofline,) if roofline else ()), bars),
            groups=(*groups, *((_ROOF,) if roofline else ())),
            notes=(*told, *notes),
        )

    def _roofline(
        self, peaks: Sequence[MachinePeak], rows: Sequence[Row], series_of: Mapping[int, str]
    ) -> PointChart | None:
        """Returns the roofs, and a point for each row with known operations and bytes, or None."""
        placed = [row for row in rows if number(row["intensity"]) > 0 and number(row["gflops_per_s"]) > 0]
        if not peaks or not placed:
            return None
        intensities = [number(row["intensity"]) for row in placed]
        ridges = [peak.flops_per_s / peak.bytes_per_s for peak in peaks]
        low, high = min(*intensities, *ridges) / 2, max(*intensities, *ridges) * 2
        return PointChart(
            Label("Roofline", " · ".join(map(_peak_text, peaks))),
            "arithmetic intensity (FLOP/byte)",
            "GFLOP/s at p50",
            (*(_roof(peak, low, high) for peak in peaks), *_points(placed, series_of, self._most_points)),
            x_logarithmic=True,
            y_logarithmic=True,
            tall=True,
        )


def _series_names(rows: Sequence[Row]) -> Mapping[int, str]:
    """Returns the legend name of each row by its ``id``: the framework, with its form if it has several."""
    forms: dict[str, set[str]] = {}
    for row in rows:
        forms.setdefault(str(row["framework_name"]), set()).add(str(row["form"]))
    names = {}
    for row in rows:
        framework = str(row["framework_name"])
        names[id(row)] = framework if len(forms[framework]) == 1 else f"{framework} {row['form']}"
    return names


def _key(row: Row) -> tuple[str, ...]:
    return tuple(str(row[name]) for name in (*_CASE, *_WHERE))


def _peak_text(peak: MachinePeak) -> str:
    flops, transfer = readable(peak.flops_per_s / _GIGA), readable(peak.bytes_per_s / _GIGA)
    return f"{plural(peak.threads, 'thread')}: {flops} GFLOP/s, {transfer} GB/s"


def _roof(peak: MachinePeak, low: float, high: float) -> Series:
    ridge = peak.flops_per_s / peak.bytes_per_s
    x = (low, ridge, high)
    y = tuple(min(peak.flops_per_s, at * peak.bytes_per_s) / _GIGA for at in x)
    return Series(_ROOF, x, y, line=True, tooltip=f"roof: {_peak_text(peak)}", size=_CORNER, strong=True)


def _points(rows: Sequence[Row], series_of: Mapping[int, str], most: int) -> Iterator[Series]:
    """Yields a series for each row, whose tooltip names it; for each name in the legend if there are many."""
    if len(rows) <= most:
        for row in rows:
            yield _point_series(series_of[id(row)], [row], _named(row))
        return
    groups: dict[str, list[Row]] = {}
    for row in rows:
        groups.setdefault(series_of[id(row)], []).append(row)
    for name, of_one in groups.items():
        yield _point_series(name, of_one, plural(len(of_one), "row"))


def _point_series(name: str, rows: Sequence[Row], what: str) -> Series:
    x = tuple(number(row["intensity"]) for row in rows)
    y = tuple(number(row["gflops_per_s"]) for row in rows)
    rate = f", {readable(y[0])} GFLOP/s" if len(y) == 1 else ""
    return Series(name, x, y, tooltip=f"{name}: {what}{rate}", size=5)


def _named(row: Row) -> str:
    sizes = " ".join(filter(None, (str(row["inputs"]), str(row["parameters"] or ""))))
    return f"{row['operator']} {str(row['mode']).replace('_', ' + ')}, {sizes}"


def _side_by_side(rows: Sequence[Row], series_of: Mapping[int, str]) -> tuple[BarChart, tuple[str, ...]]:
    """Returns the bars, and notes on what they leave out."""
    cases: dict[tuple[str, ...], list[Row]] = {}
    order = list(dict.fromkeys(series_of[id(row)] for row in rows))
    for row in sorted(rows, key=lambda row: order.index(series_of[id(row)])):
        cases.setdefault(_key(row), []).append(row)
    compared = [of_one for of_one in cases.values() if len(of_one) > 1]
    if not compared:
        return _times(list(cases.values()), series_of)
    compared.sort(key=_slowest, reverse=True)
    shown = compared[:MOST_ROWS]
    lines = tuple(
        _bars(of_one, series_of, {id(row): _relative(row, of_one) for row in of_one}) for of_one in shown
    )
    heading = Label("Frameworks side by side", "p50 relative to the fastest; the greatest difference first")
    far = _slowest(shown[0]) > _FAR
    chart = BarChart(heading, "p50 over the fastest framework's", lines, logarithmic=far)
    return chart, _hidden(len(shown), len(compared), "that differ most")


def _times(cases: Sequence[Sequence[Row]], series_of: Mapping[int, str]) -> tuple[BarChart, tuple[str, ...]]:
    """Returns the times themselves, where nothing was measured twice."""
    ordered = sorted(cases, key=lambda of_one: number(of_one[0]["p50_us"]), reverse=True)
    shown = ordered[:MOST_ROWS]
    scale, unit = time_unit(max(number(row["p50_us"]) for of_one in shown for row in of_one))
    lines = tuple(
        _bars(of_one, series_of, {id(row): number(row["p50_us"]) / scale for row in of_one})
        for of_one in shown
    )
    chart = BarChart(Label("Time of a run"), f"p50 ({unit})", lines)
    return chart, _hidden(len(shown), len(cases), "that take longest")


def _hidden(shown: int, count: int, which: str) -> tuple[str, ...]:
    return (f"The bars show the {shown} of {count:,} operators {which}.",) * (count > shown)


def _relative(row: Row, of_one: Sequence[Row]) -> float:
    return number(row["p50_us"]) / min(number(each["p50_us"]) for each in of_one)


def _slowest(of_one: Sequence[Row]) -> float:
    return max(_relative(row, of_one) for row in of_one)


def _bars(of_one: Sequence[Row], series_of: Mapping[int, str], values: Mapping[int, float]) -> BarRow:
    bars = []
    for row in of_one:
        p50_us = number(row["p50_us"])
        scale, unit = time_unit(p50_us)
        time = f"{readable(p50_us / scale)} {unit}"
        relative = f"{values[id(row)]:.2f} ×, " if len(of_one) > 1 else ""
        tooltip = f"{row['id']}: {_named(row)} in {series_of[id(row)]}: {relative}{time}"
        bars.append(Bar(values[id(row)], series_of[id(row)], f"{relative}{time}", tooltip))
    first = of_one[0]
    detail = str(first["inputs"])
    if len(detail) > _DETAIL_CHARACTERS:
        detail = f"{detail[: _DETAIL_CHARACTERS - 1]}…"
    mode = "" if first["mode"] == "forward" else f", {str(first['mode']).replace('_', ' + ')}"
    return BarRow(Label(f"{first['operator']}{mode}", detail), tuple(bars))
