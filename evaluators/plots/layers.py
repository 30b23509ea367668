"""Pictures of the layers, layer tree and kernels reports."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from inferometer.evaluators.drawing.charts import Bar, BarChart, BarRow, Drawing, Label
from inferometer.evaluators.evaluation import Evaluation
from inferometer.evaluators.plots.base import (
    Chosen,
    Plot,
    by_weight,
    described,
    label_of,
    number,
    plural,
    readable,
    time_unit,
)
from inferometer.evaluators.reports.base import Row

MOST_BARS = 30
"""The maximum number of layers or kernels of one evaluation with a bar of their own."""
_TIME = "total_us"
_DETAILS_OF_LAYER = {
    "layer_type": "type",
    "phase": "phase",
    "input_shapes": "inputs",
    "output_shapes": "outputs",
    "occurrences": "times",
    "allocated_bytes": "allocated bytes",
}
_DETAILS_OF_TYPE = {
    "phase": "phase",
    "layers": "layers",
    "occurrences": "times",
    "allocated_bytes": "allocated bytes",
}
_ANY_TYPE = "types"
_SHARE_AXIS = "share of the time of all layers (%)"


class LayersPlot(Plot):
    """A chart for each evaluation: the slowest layers first, and the sum of the others without a bar."""

    def drawing(self, chosen: Chosen, notes: Sequence[str]) -> Drawing:
        """Returns bars of the time that each layer took in all batches, with its share of all layers."""
        return Drawing(
            title="Layers by their time",
            charts=tuple(_layer_chart(evaluation, found) for evaluation, found in chosen),
            groups=_heaviest(chosen, "layer_type"),
            notes=(
                f"The {MOST_BARS} slowest layers of each evaluation, the slowest first; only the sum of the "
                "others is shown.",
                "Times are under the framework's profiler, which slows layers down: they show where the time "
                "goes, not how long the model takes.",
                *notes,
            ),
        )


class LayerTreePlot(Plot):
    """A bar for each type of one evaluation, or one stacked bar for each of several evaluations."""

    def drawing(self, chosen: Chosen, notes: Sequence[str]) -> Drawing:
        """Returns bars in percent of the time of an evaluation's layers."""
        groups: tuple[str, ...] = (_ANY_TYPE,)
        if len(chosen) == 1:
            evaluation, found = chosen[0]
            bars = tuple(BarRow(Label(_type(row)), (_type_bar(row, _ANY_TYPE),)) for row in found)
            chart = BarChart(_heading(evaluation, found), _SHARE_AXIS, bars)
        else:
            stacks = ((each, tuple(_type_bar(r, _type(r), short=True) for r in each[1])) for each in chosen)
            bars = tuple(BarRow(_heading(*each), stack) for each, stack in stacks)
            chart = BarChart(Label(""), _SHARE_AXIS, bars, stacked=True, whole=100)
            groups = by_weight(
                (_type(row), number(row["share_percent"])) for _, found in chosen for row in found
            )
        return Drawing(
            title="Share of each type of layer",
            charts=(chart,),
            groups=groups,
            notes=("Times are under the framework's profiler.", *notes),
        )


class KernelsPlot(Plot):
    """A chart for each evaluation: the slowest kernels first, each summed over all of its layers."""

    def drawing(self, chosen: Chosen, notes: Sequence[str]) -> Drawing:
        """Returns bars of the time that each kernel took in all batches."""
        return Drawing(
            title="Kernels, copies and runtime calls by their time",
            charts=tuple(_kernel_chart(evaluation, found) for evaluation, found in chosen),
            groups=_heaviest(chosen, "activity"),
            notes=(
                f"The {MOST_BARS} slowest of each evaluation, each summed over its layers; only the sum of "
                "the others is shown.",
                *notes,
            ),
        )


def _heading(evaluation: Evaluation, rows: Sequence[Row]) -> Label:
    return label_of(evaluation, str(rows[0]["trace_level"]))


def _heaviest(chosen: Chosen, key: str) -> tuple[str, ...]:
    return by_weight((str(row[key]), number(row["share_percent"])) for _, found in chosen for row in found)


def _others(count: str, sum_us: float, scale: float, unit: str, share: str = "") -> BarRow:
    """Returns the row without a bar that sums the layers or kernels beyond ``MOST_BARS``."""
    text = f"{readable(sum_us / scale)} {unit}{share} together"
    return BarRow(Label(count), (Bar(0, "", text),))


def _layer_chart(evaluation: Evaluation, rows: Sequence[Row]) -> BarChart:
    ranked = sorted(rows, key=lambda row: -number(row[_TIME]))
    scale, unit = time_unit(number(ranked[0][_TIME]))
    lines = []
    for row in ranked[:MOST_BARS]:
        value = number(row[_TIME]) / scale
        text = f"{readable(value)} {unit}, {number(row['share_percent']):.1f} %"
        mean_us = f"{readable(number(row['duration_us_trimmed_mean']))} µs trimmed mean"
        details = (mean_us, *described(row, _DETAILS_OF_LAYER))
        tooltip = "; ".join((f"{row['layer_index']} {row['layer_name']}: {text}", *details))
        label = Label(f"{row['layer_index']}  {row['layer_name']}{_phase(row)}")
        lines.append(BarRow(label, (Bar(value, str(row["layer_type"]), text, tooltip),)))
    if others := ranked[MOST_BARS:]:
        sum_us, share = (sum(number(row[key]) for row in others) for key in (_TIME, "share_percent"))
        lines.append(_others(plural(len(others), "other layer"), sum_us, scale, unit, f", {share:.1f} %"))
    return BarChart(_heading(evaluation, rows), f"time in all batches ({unit})", tuple(lines))


def _type(row: Row) -> str:
    return f"{row['layer_type'] or 'no type'}{_phase(row)}"


def _phase(row: Row) -> str:
    """Returns the phase of a layer of training where the type does not tell it: behind the name."""
    return f" ({row['phase']})" if row["phase"] else ""


def _type_bar(row: Row, group: str, *, short: bool = False) -> Bar:
    share = number(row["share_percent"])
    scale, unit = time_unit(number(row["total_us"]))
    total = f"{readable(number(row['total_us']) / scale)} {unit} in all"
    tooltip = "; ".join((f"{_type(row)}: {share:.2f} %, {total}", *described(row, _DETAILS_OF_TYPE)))
    text = f"{share:.1f} %, {total}, {plural(int(number(row['layers'])), 'layer')}"
    return Bar(share, group, f"{share:.0f} %" if short else text, tooltip)


@dataclass(slots=True)
class _Kernel:
    """One kernel, summed over all layers."""

    name: str
    activity: str
    total_us: float = 0.0
    share_percent: float = 0.0
    occurrences: int = 0
    layers: set[str] = field(default_factory=set)


def _kernel_chart(evaluation: Evaluation, rows: Sequence[Row]) -> BarChart:
    found: dict[tuple[str, str], _Kernel] = {}
    for row in rows:
        key = (str(row["kernel_name"]), str(row["activity"]))
        kernel = found.setdefault(key, _Kernel(*key))
        kernel.total_us += number(row["total_us"])
        kernel.share_percent += number(row["share_percent"])
        kernel.occurrences += int(number(row["occurrences"]))
        kernel.layers.add(str(row["layer_name"]))
    ranked = sorted(found.values(), key=lambda kernel: -kernel.total_us)
    scale, unit = time_unit(ranked[0].total_us)
    lines = []
    for kernel in ranked[:MOST_BARS]:
        value = kernel.total_us / scale
        text = f"{readable(value)} {unit}, {kernel.share_percent:.1f} %, {kernel.occurrences:,} ×"
        tooltip = f"{kernel.name}: {text}; in {plural(len(kernel.layers), 'layer')}"
        lines.append(BarRow(Label(kernel.name), (Bar(value, kernel.activity, text, tooltip),)))
    if others := ranked[MOST_BARS:]:
        # their shares are those of the device and of the host, which have no sum
        sum_us = sum(each.total_us for each in others)
        lines.append(_others(plural(len(others), "other"), sum_us, scale, unit))
    return BarChart(_heading(evaluation, rows), f"time in all batches ({unit})", tuple(lines))
