"""The picture of the eventflow report: the spans of the first batches over time."""

from __future__ import annotations

import json
from bisect import bisect_left
from collections.abc import Iterator, Sequence
from itertools import groupby

from inferometer.agent.tracing.span import TraceLevel
from inferometer.evaluators.drawing.charts import Drawing, Label, TimeBar, Timeline
from inferometer.evaluators.evaluation import Evaluation
from inferometer.evaluators.plots.base import (
    Chosen,
    Plot,
    by_weight,
    label_of,
    number,
    readable,
    time_unit,
)
from inferometer.evaluators.reports.base import Row

MOST_BARS = 400
"""Spans of one evaluation that are drawn at most."""
MOST_LANES = 40
"""Lanes of one evaluation that are drawn at most."""
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
                f"At most {MOST_BARS} spans of each evaluation; one that reaches beyond the picture is cut. "
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
            if first + lane >= MOST_LANES or len(bars) >= MOST_BARS:
                hidden += 1
                continue
            while len(lanes) <= first + lane:
                lanes.append(Label(level if len(lanes) == first else "", f"thread {thread}"))
            start = max(_start(row), begin_ns)
            length = min(_end(row), end_ns) - start
            group_name = _group(row)
            took = f"{readable(number(row['duration_us']) / scale)} {unit}"
            batch = "" if row["batch"] is None else f"; batch {row['batch']}"
            bars.append(
                TimeBar(
                    first + lane,
                    (start - begin_ns) / per_unit,
                    length / per_unit,
                    group_name,
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

    It reaches from the first measured batch to where there would be too many spans. Inputs are read ahead;
    where that alone would fill the picture, the window starts with the first predict step.
    """
    most = MOST_BARS * 9 // 10  # others began before
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
    """Returns the group that colours a span: the type of a layer, else its name."""
    if row["level"] == TraceLevel.FRAMEWORK_TRACE.name:
        type_ = json.loads(str(row["attributes"])).get("inferometer.layer_type")
        if type_:
            return str(type_)
    return str(row["name"])
