"""The picture of the layers report: bars of the heaviest layers, in the colours of their types."""

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

MOST_BARS = 30
"""Layers of one evaluation that have bars of their own."""
_TIME = "duration_us_trimmed_mean"
_SHOWN = {
    "layer_type": "type",
    "input_shapes": "inputs",
    "output_shapes": "outputs",
    "occurrences": "times",
    "allocated_bytes": "allocated bytes",
}


class LayersPlot(Plot):
    """A chart for each evaluation: the heaviest layers first, and the sum of the others without a bar."""

    def draw(self, evaluations: Sequence[Evaluation], rows: Sequence[Row]) -> Drawing | None:
        """Returns bars of trimmed means, with the share of each layer."""
        chosen, notes = by_evaluation(evaluations, rows)
        if not chosen:
            return None
        return Drawing(
            title="Layers by their time",
            charts=tuple(_chart(evaluation, of_one) for evaluation, of_one in chosen),
            groups=by_weight(
                (str(row["layer_type"]), number(row["share_percent"]))
                for _, of_one in chosen
                for row in of_one
            ),
            notes=(
                f"The {MOST_BARS} heaviest layers of each evaluation, the heaviest first; of the "
                "others only the sum is given.",
                "Times are under the framework's profiler, which slows layers down: they tell where the time "
                "goes, not how long the model takes.",
                *notes,
            ),
        )


def _chart(evaluation: Evaluation, rows: Sequence[Row]) -> BarChart:
    ranked = sorted(rows, key=lambda row: -number(row[_TIME]))
    heaviest, others = ranked[:MOST_BARS], ranked[MOST_BARS:]
    rest_us = sum(number(row[_TIME]) for row in others)
    scale, unit = time_unit(number(ranked[0][_TIME]))
    lines = [_line(row, scale, unit) for row in heaviest]
    if others:
        share = sum(number(row["share_percent"]) for row in others)
        text = f"{readable(rest_us / scale)} {unit}, {share:.1f} %"
        label = f"{len(others):,} other layer{'s' if len(others) > 1 else ''}"
        lines.append(BarRow(Label(label), (Bar(0, "", f"{text} together"),)))
    return BarChart(
        label_of(evaluation, str(rows[0]["trace_level"])),
        f"trimmed mean of the time in a batch ({unit})",
        tuple(lines),
    )


def _line(row: Row, scale: float, unit: str) -> BarRow:
    value = number(row[_TIME]) / scale
    text = f"{readable(value)} {unit}, {number(row['share_percent']):.1f} %"
    tooltip = "; ".join((f"{row['layer_index']} {row['layer_name']}: {text}", *described(row, _SHOWN)))
    label = Label(f"{row['layer_index']}  {row['layer_name']}")
    return BarRow(label, (Bar(value, str(row["layer_type"]), text, tooltip),))
