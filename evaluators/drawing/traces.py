"""Pictures of the reports on traces: layers, layer tree, kernels and eventflow.

The eventflow shows the spans of the first batches over time.
"""

from __future__ import annotations

import json
from bisect import bisect_left
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import groupby

from inferometer.agent.tracing.recorder import TraceLevel
from inferometer.evaluators.drawing.charts import (
    Bar,
    BarChart,
    BarRow,
    Chosen,
    Drawing,
    Label,
    Plot,
    TimeBar,
    Timeline,
    by_weight,
    described,
    label_of,
    number,
    plural,
    readable,
    time_unit,
)
from inferometer.evaluators.evaluation import Evaluation
from inferometer.evaluators.reports.base import Row

MOST_BARS = 30
"""The maximum number of layers or kernels of one evaluation that have a bar of their own."""
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
    """A chart for each evaluation: the slowest layers first, and a row that sums those without a bar."""

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
        """Returns bars for the types of an evaluation's layers, in percent of the time of all layers."""
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
    """Returns the phase of a training layer, to append to its name, if its type does not show it."""
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
    """One kernel, summed over all layers that run it."""

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


MOST_SPANS = 400
"""The maximum number of spans drawn for one evaluation."""
MOST_LANES = 40
"""The maximum number of lanes drawn for one evaluation."""
_NS_PER_US = 1000


class EventflowPlot(Plot):
    """A timeline for each evaluation: the spans since the measurement began, by level and thread."""

    def drawing(self, chosen: Chosen, notes: Sequence[str]) -> Drawing:
        """Returns the timelines."""
        charts = tuple(_chart(evaluation, of_one) for evaluation, of_one in chosen)
        return Drawing(
            title="Spans of the first batches",
            charts=charts,
            groups=by_weight((bar.group, bar.length / chart.end) for chart in charts for bar in chart.bars),
            notes=(
                f"At most {MOST_SPANS} spans of each evaluation; one that reaches beyond the picture is cut. "
                "Spans of one level and thread that overlap lie below each other.",
                *notes,
            ),
        )


def _chart(evaluation: Evaluation, rows: Sequence[Row]) -> Timeline:
    begin_ns, end_ns, began = _window(rows)
    seen = [row for row in rows if _start(row) < end_ns and _end(row) > begin_ns]
    seen.sort(key=lambda row: (TraceLevel[str(row["level"])], number(row["thread"]), _start(row), -_end(row)))
    scale, unit = time_unit((end_ns - begin_ns) / _NS_PER_US)
    per_unit = scale * _NS_PER_US
    lanes: list[Label] = []
    bars: list[TimeBar] = []
    hidden = 0
    for (level, thread), group in groupby(seen, key=lambda row: (str(row["level"]), row["thread"])):
        first = len(lanes)
        for lane, row in _stacked(group):
            if first + lane >= MOST_LANES or len(bars) >= MOST_SPANS:
                hidden += 1
                continue
            while len(lanes) <= first + lane:
                lanes.append(Label(level if len(lanes) == first else "", f"thread {thread}"))
            start = max(_start(row), begin_ns)
            length = min(_end(row), end_ns) - start
            took = f"{readable(number(row['duration_us']) / scale)} {unit}"
            batch = "" if row["batch"] is None else f"; batch {row['batch']}"
            bars.append(
                TimeBar(
                    first + lane,
                    (start - begin_ns) / per_unit,
                    length / per_unit,
                    _group(row),
                    str(row["name"]),
                    f"{row['name']}: {took}{batch}; {level}, thread {thread}",
                )
            )
    lanes = [Label(lane.name, lane.detail if lane.name else "") for lane in lanes]
    cut = f"; {hidden:,} spans are not shown" if hidden else ""
    return Timeline(
        label_of(evaluation, evaluation.trace_level.name),
        f"time since {began} ({unit}); {len(bars):,} of {len(rows):,} spans{cut}",
        (end_ns - begin_ns) / per_unit,
        tuple(lanes),
        tuple(bars),
    )


def _start(row: Row) -> int:
    start_ns = row["start_unix_ns"]
    return start_ns if isinstance(start_ns, int) else 0


def _end(row: Row) -> int:
    return _start(row) + round(number(row["duration_us"]) * _NS_PER_US)


def _window(rows: Sequence[Row]) -> tuple[int, int, str]:
    """Returns the drawn window of a trace: its ends in nanoseconds since 1970, and the event at its start.

    It extends from the first measured batch to the point where there would be too many spans. Inputs are read
    ahead; if that alone would fill the picture, the window starts with the first predict step.
    """
    most = MOST_SPANS * 9 // 10  # others began before
    measured = [row for row in rows if row["name"] == "measure"]
    begin_ns, began = min(map(_start, measured or rows)), "the measurement began"
    end_ns = max(map(_end, measured or rows))
    starts = sorted(start for start in map(_start, rows) if begin_ns <= start < end_ns)
    steps = [row for row in rows if row["name"] == "predict_step" and _start(row) >= begin_ns]
    if steps:
        first = min(steps, key=_start)
        if bisect_left(starts, _end(first)) > most // 2:
            begin_ns, began = _start(first), "the first predict step began"
            starts = starts[bisect_left(starts, begin_ns) :]
    if len(starts) > most:
        end_ns = starts[most]
    return begin_ns, max(end_ns, begin_ns + 1), began


def _stacked(rows: Iterator[Row]) -> Iterator[tuple[int, Row]]:
    """Assigns each span the first free lane; the spans are sorted by their start."""
    free_ns: list[int] = []
    for row in rows:
        lane = next((place for place, end_ns in enumerate(free_ns) if end_ns <= _start(row)), len(free_ns))
        if lane == len(free_ns):
            free_ns.append(0)
        free_ns[lane] = _end(row)
        yield lane, row


def _group(row: Row) -> str:
    """Returns the group that determines a span's colour: the type of a layer, otherwise the span's name."""
    if row["level"] == TraceLevel.FRAMEWORK_TRACE.name:
        type_ = json.loads(str(row["attributes"])).get("inferometer.layer_type")
        if type_:
            return str(type_)
    return str(row["name"])
