"""The picture of the kernels report: bars of the heaviest kernels, copies and runtime calls."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from evaluators.evaluation import Evaluation
from evaluators.plots.base import Plot, by_evaluation, by_weight, label_of, number, readable, time_unit
from evaluators.plots.drawing import Bar, BarChart, BarRow, Drawing, Label
from evaluators.reports.base import Row

MOST_BARS = 30
"""Kernels of one evaluation that have bars of their own."""


@dataclass(slots=True)
class _Kernel:
    """A kernel over all layers."""

    activity: str
    total_us: float = 0.0
    share_percent: float = 0.0
    occurrences: int = 0
    layers: set[str] = field(default_factory=set)


class KernelsPlot(Plot):
    """A chart for each evaluation: the heaviest kernels first, each over all of its layers."""

    def draw(self, evaluations: Sequence[Evaluation], rows: Sequence[Row]) -> Drawing | None:
        """Returns bars of the time that each kernel took in all batches."""
        chosen, notes = by_evaluation(evaluations, rows)
        if not chosen:
            return None
        return Drawing(
            title="Kernels, copies and runtime calls by their time",
            charts=tuple(_chart(evaluation, of_one) for evaluation, of_one in chosen),
            groups=by_weight(
                (str(row["activity"]), number(row["share_percent"])) for _, of_one in chosen for row in of_one
            ),
            notes=(
                f"The {MOST_BARS} heaviest of each evaluation, each summed up over its layers; of the "
                "others only the sum is given.",
                *notes,
            ),
        )


def _chart(evaluation: Evaluation, rows: Sequence[Row]) -> BarChart:
    found: dict[tuple[str, str], _Kernel] = {}
    for row in rows:
        key = (str(row["kernel_name"]), str(row["activity"]))
        kernel = found.setdefault(key, _Kernel(key[1]))
        kernel.total_us += number(row["total_us"])
        kernel.share_percent += number(row["share_percent"])
        kernel.occurrences += int(number(row["occurrences"]))
        kernel.layers.add(str(row["layer_name"]))
    ranked = sorted(found.items(), key=lambda item: -item[1].total_us)
    others = [kernel for _, kernel in ranked[MOST_BARS:]]
    rest_us = sum(kernel.total_us for kernel in others)
    scale, unit = time_unit(ranked[0][1].total_us)
    lines = [_line(key[0], kernel, scale, unit) for key, kernel in ranked[:MOST_BARS]]
    if others:
        share = sum(kernel.share_percent for kernel in others)
        text = f"{readable(rest_us / scale)} {unit}, {share:.1f} %"
        label = f"{len(others):,} other{'s' if len(others) > 1 else ''}"
        lines.append(BarRow(Label(label), (Bar(0, "", f"{text} together"),)))
    heading = label_of(evaluation, str(rows[0]["trace_level"]))
    return BarChart(heading, f"time in all batches ({unit})", tuple(lines))


def _line(name: str, kernel: _Kernel, scale: float, unit: str) -> BarRow:
    value = kernel.total_us / scale
    text = f"{readable(value)} {unit}, {kernel.share_percent:.1f} %, {kernel.occurrences:,} ×"
    layers = f"{len(kernel.layers):,} layer{'' if len(kernel.layers) == 1 else 's'}"
    return BarRow(Label(name), (Bar(value, kernel.activity, text, f"{name}: {text}; in {layers}"),))
