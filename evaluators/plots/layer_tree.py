"""The picture of the layer tree report: the share of each type of layer."""

from __future__ import annotations

from collections.abc import Sequence

from evaluators.evaluation import Evaluation
from evaluators.plots.base import (
    Plot,
    by_evaluation,
    by_weight,
    described,
    label_of,
    number,
    readable,
    time_unit,
)
from evaluators.plots.drawing import Bar, BarChart, BarRow, Drawing, Label
from evaluators.reports.base import Row

_ANY_TYPE = "types"
_AXIS = "share of the time of all layers (%)"
_SHOWN = {"layers": "layers", "occurrences": "times", "allocated_bytes": "allocated bytes"}


class LayerTreePlot(Plot):
    """A bar for each type of one evaluation, or one bar that is made of types for each of several."""

    def draw(self, evaluations: Sequence[Evaluation], rows: Sequence[Row]) -> Drawing | None:
        """Returns bars in percent of the time of an evaluation's layers."""
        chosen, notes = by_evaluation(evaluations, rows)
        if not chosen:
            return None
        alone = len(chosen) == 1
        by_type = by_weight(
            (_type(row), number(row["share_percent"])) for _, found in chosen for row in found
        )
        return Drawing(
            title="Share of each type of layer",
            charts=(_types(*chosen[0]) if alone else _beside_each_other(chosen),),
            groups=(_ANY_TYPE,) if alone else by_type,
            notes=("Times are under the framework's profiler.", *notes),
        )


def _types(evaluation: Evaluation, rows: Sequence[Row]) -> BarChart:
    heading = label_of(evaluation, str(rows[0]["trace_level"]))
    return BarChart(heading, _AXIS, tuple(BarRow(Label(_type(row)), (_bar(row, _ANY_TYPE),)) for row in rows))


def _beside_each_other(chosen: Sequence[tuple[Evaluation, Sequence[Row]]]) -> BarChart:
    lines = tuple(
        BarRow(
            label_of(evaluation, str(rows[0]["trace_level"])),
            tuple(_bar(row, _type(row), short=True) for row in rows),
        )
        for evaluation, rows in chosen
    )
    return BarChart(Label(""), _AXIS, lines, stacked=True, whole=100)


def _type(row: Row) -> str:
    return str(row["layer_type"] or "no type")


def _bar(row: Row, group: str, *, short: bool = False) -> Bar:
    share = number(row["share_percent"])
    scale, unit = time_unit(number(row["total_us"]))
    layers = f"{row['layers']:,} layer{'' if row['layers'] == 1 else 's'}"
    total = f"{readable(number(row['total_us']) / scale)} {unit} in all"
    tooltip = "; ".join((f"{_type(row)}: {share:.2f} %, {total}", *described(row, _SHOWN)))
    text = f"{share:.0f} %" if short else f"{share:.1f} %, {total}, {layers}"
    return Bar(share, group, text, tooltip)
