"""The plot of each report shows its rows."""

from __future__ import annotations

import re
import xml.etree.ElementTree as ElementTree
from dataclasses import replace
from datetime import timedelta
from itertools import pairwise

import pytest

from inferometer.evaluators.drawing import canvas, traces
from inferometer.evaluators.drawing.charts import (
    MOST_EVALUATIONS,
    MOST_INCHES,
    BarChart,
    BoxChart,
    Plot,
    PointChart,
    Timeline,
    label_of,
    shortened,
)
from inferometer.evaluators.drawing.painting import MOST_GROUPS, OTHER, Palette
from inferometer.evaluators.evaluation import Evaluation
from inferometer.evaluators.kinds.batches import plot as batches
from inferometer.evaluators.kinds.registry import find_plot, find_report
from inferometer.manifests.errors import ConfigurationError
from tests.evaluations import changed
from tests.reports.conftest import batch_times
from tests.reports.pictures import LAYERS, REPORTS, SHALLOW, drawn, picture, rows_of, texts


def test_every_report_has_a_picture() -> None:
    for name in REPORTS:
        assert isinstance(find_plot(find_report(name)), Plot)
    assert type(find_plot(find_report("Kernels"))) is type(find_plot(find_report("cuda_launch")))
    with pytest.raises(ConfigurationError, match='"layrs"; did you mean "layers"'):
        find_plot(find_report("layrs"))


def test_latency_is_a_box_over_the_full_batches(shallow: list[Evaluation]) -> None:
    [chart] = picture("latency", shallow).charts

    assert isinstance(chart, BoxChart)
    six, three = chart.boxes
    # 1, 1.5, 2, 2.5, 3 and 9 ms; the batch of 4 inputs is none of them
    assert (six.first, six.middle, six.third) == pytest.approx((1.625, 2.25, 2.875))
    assert (six.low, six.high) == pytest.approx((1, 9)), "so few batches carry no 5th and 95th percentile"
    assert six.mark == pytest.approx(2.25)
    assert six.text == "mean 3.17 ms, 6 batches"
    assert six.label.name == "DigitsCNN 1.0, batch size 16"
    for part in ("PyTorch 2.13.0", "CPU", "APPLICATION_TRACE", "2026-03-01 12:30:00"):
        assert part in six.label.detail
    assert three.middle == pytest.approx(0.123457)
    assert "GPU:0" in three.label.detail


def test_an_evaluation_that_was_disturbed_says_so_in_its_label(shallow: list[Evaluation]) -> None:
    labels = [label_of(evaluation) for evaluation in shallow]

    assert labels[0].remark == "disturbed: other processes took 48 % of the CPU, in 97 % of the time"
    assert [label.detail.endswith(" · disturbed") for label in labels] == [True, False]
    assert labels[1].remark == ""


def test_accuracy_is_two_bars_with_what_they_are_counted_over(evaluations: list[Evaluation]) -> None:
    drawing = picture("accuracy", evaluations)

    [chart] = drawing.charts
    assert isinstance(chart, BarChart)
    assert len(chart.rows) == 2  # the third has no accuracy
    assert [bar.value for bar in chart.rows[0].bars] == pytest.approx([98, 100])
    assert [bar.group for bar in chart.rows[0].bars] == list(drawing.groups) == ["top-1", "top-5"]
    assert chart.rows[1].bars[0].text == "96.77 % of 31 inputs; 1 failed"


def test_durations_are_points_that_tell_full_batches_from_others(shallow: list[Evaluation]) -> None:
    first, second = picture("duration", shallow).charts

    assert isinstance(first, PointChart)
    full, other = first.series
    assert (full.x, full.y) == ((0, 1, 2, 3, 4, 5), pytest.approx((2, 1, 3, 2.5, 9, 1.5)))
    assert (other.x, other.y) == ((6,), pytest.approx((0.1,)))
    assert first.y_axis == "predict (ms)"
    assert isinstance(second, PointChart)
    assert second.y_axis == "predict (µs)"


def test_many_durations_keep_their_outliers(shallow: list[Evaluation]) -> None:
    [row, *_] = rows_of("duration", shallow[:1])
    rows = [{**row, "batch": b, "predict_us": 7e5 if b == 4321 else 10.0 + b % 7} for b in range(9000)]

    drawing = find_plot(find_report("duration")).draw(shallow, rows)

    assert drawing is not None
    [chart] = drawing.charts
    assert isinstance(chart, PointChart)
    [series] = chart.series
    assert len(series.x) <= batches.MOST_POINTS
    assert (4321, 700) in zip(series.x, series.y, strict=True)
    assert list(series.x) == sorted(series.x)
    assert "shortest and the longest" in drawing.notes[0]


def test_layers_are_bars_of_the_heaviest_and_a_sum_of_the_others(given: dict[str, list[Evaluation]]) -> None:
    drawing = picture("layers", given["layers"][:1])

    [chart] = drawing.charts
    assert isinstance(chart, BarChart)
    heaviest, others = chart.rows[:-1], chart.rows[-1]
    assert len(heaviest) == traces.MOST_BARS
    values = [row.bars[0].value for row in heaviest]
    assert values == pytest.approx([2 * (LAYERS - place) for place in range(traces.MOST_BARS)])
    assert heaviest[0].label.name == "32  layer32"
    whole = LAYERS * (LAYERS + 1) // 2
    # the label shows the bar's own quantity, and its share of the sum of all bars
    assert [row.bars[0].text for row in heaviest[:2]] == [
        f"{2 * n} µs, {100 * n / whole:.1f} %" for n in (LAYERS, LAYERS - 1)
    ]
    assert others.label.name == "3 other layers"
    assert others.bars[0].text == f"12 µs, {600 / whole:.1f} % together"
    assert others.bars[0].value == 0
    assert chart.axis.endswith("(µs)")
    assert "FULL_TRACE" in chart.heading.detail
    assert drawing.groups == ("layer2", "layer1", "layer0")  # types by their time


def test_types_of_one_evaluation_are_bars_and_of_several_parts_of_a_bar(
    given: dict[str, list[Evaluation]],
) -> None:
    [alone] = picture("layer_tree", given["layer_tree"][:1]).charts
    [beside] = picture("layer_tree", given["layer_tree"]).charts

    assert isinstance(alone, BarChart)
    assert isinstance(beside, BarChart)
    assert [row.label.name for row in alone.rows] == ["layer2", "layer1", "layer0"]
    assert sum(row.bars[0].value for row in alone.rows) == pytest.approx(100)
    assert [len(row.bars) for row in beside.rows] == [3, 3]
    assert beside.stacked
    for row in beside.rows:
        assert sum(bar.value for bar in row.bars) == pytest.approx(100)


def test_kernels_are_summed_up_over_their_layers(given: dict[str, list[Evaluation]]) -> None:
    [chart, _] = picture("cuda_launch", given["cuda_launch"]).charts

    assert isinstance(chart, BarChart)
    assert [row.label.name for row in chart.rows] == ["k0layer", "k1layer"]
    # of 33 layers in two full batches, 17 have the one and 16 the other, for 0.5 µs each
    assert [row.bars[0].value for row in chart.rows] == [17, 16]
    assert "in 17 layers" in chart.rows[0].bars[0].tooltip


def test_the_timeline_nests_and_is_bounded(
    given: dict[str, list[Evaluation]], monkeypatch: pytest.MonkeyPatch
) -> None:
    [whole, _] = picture("eventflow", given["eventflow"]).charts
    monkeypatch.setattr(traces, "MOST_SPANS", 20)
    [cut, _] = picture("eventflow", given["eventflow"]).charts

    assert isinstance(whole, Timeline)
    assert len(whole.bars) == 1 + 2 * (1 + 2 * LAYERS)
    assert [lane.name for lane in whole.lanes] == [
        "APPLICATION_TRACE",
        "MODEL_TRACE",
        "FRAMEWORK_TRACE",
        "SYSTEM_LIBRARY_TRACE",
    ]
    assert whole.end == pytest.approx(2)
    assert whole.axis.startswith("time since the measurement began (ms)")
    for lane in range(len(whole.lanes)):
        bars = sorted((bar.start, bar.start + bar.length) for bar in whole.bars if bar.lane == lane)
        assert all(end <= start + 1e-9 for (_, end), (start, _) in pairwise(bars))
    assert isinstance(cut, Timeline)
    assert 10 < len(cut.bars) <= 20
    assert "(µs)" in cut.axis  # of 2 ms
    assert all(bar.start >= 0 and bar.start + bar.length <= cut.end * 1.000001 for bar in cut.bars)
    assert f"{len(cut.bars)} of 135 spans" in cut.axis


def test_a_timeline_that_reading_ahead_would_fill_begins_with_the_first_predict_step(
    given: dict[str, list[Evaluation]], monkeypatch: pytest.MonkeyPatch
) -> None:
    [evaluation] = given["eventflow"][:1]
    [row, *_] = rows_of("eventflow", [evaluation])
    times = [("measure", 0, 1000.0), ("predict_step", 800_000, 100.0)]
    times += [("read", 1000 * n, 0.5) for n in range(30)]
    rows = [{**row, "name": n, "start_unix_ns": s, "duration_us": d} for n, s, d in times]

    began = []
    for most in (100, 40):
        monkeypatch.setattr(traces, "MOST_SPANS", most)
        drawing = find_plot(find_report("eventflow")).draw([evaluation], rows)
        assert drawing is not None
        [chart] = drawing.charts
        assert isinstance(chart, Timeline)
        [step] = [bar for bar in chart.bars if bar.text == "predict_step"]
        began.append((chart.axis.partition(" (")[0], len(chart.bars), step.start))

    assert began == [
        ("time since the measurement began", 32, pytest.approx(0.8)),
        ("time since the first predict step began", 2, 0),
    ]


def test_overlapping_spans_of_one_thread_have_lanes_of_their_own(given: dict[str, list[Evaluation]]) -> None:
    [evaluation] = given["eventflow"][:1]
    [row, *_] = rows_of("eventflow", [evaluation])
    rows = [
        {**row, "name": n, "start_unix_ns": s, "duration_us": d}
        for n, s, d in (("a", 0, 9.0), ("b", 1000, 2.0))
    ]

    drawing = find_plot(find_report("eventflow")).draw([evaluation], rows)

    assert drawing is not None
    [chart] = drawing.charts
    assert isinstance(chart, Timeline)
    assert [(bar.text, bar.lane) for bar in chart.bars] == [("a", 0), ("b", 1)]


@pytest.mark.parametrize("name", REPORTS)
def test_where_there_is_nothing_to_draw_there_is_no_picture(name: str, evaluations: list[Evaluation]) -> None:
    assert drawn(name, []) is None
    if name not in SHALLOW:
        assert drawn(name, evaluations) is None


@pytest.mark.parametrize("count", [1, 20, 27])
def test_many_evaluations_have_a_chart_each_up_to_a_bound(count: int, shallow: list[Evaluation]) -> None:
    many = [
        replace(shallow[0], id=str(n), created_at=shallow[0].created_at + timedelta(seconds=n))
        for n in range(count)
    ]
    for name in SHALLOW:
        drawing = picture(name, many)
        [charts] = {
            len(c.boxes)
            if isinstance(c, BoxChart)
            else len(c.rows)
            if isinstance(c, BarChart)
            else len(drawing.charts)
            for c in drawing.charts
        }
        most = 7 if name == "duration" else MOST_EVALUATIONS
        assert charts == min(count, most)
        assert (f"{most} of {count} evaluations are shown." in drawing.notes) is (count > most)
        svg = ElementTree.fromstring(canvas.svg(drawing))
        height_inches = float(svg.get("height", "0pt").removesuffix("pt")) / 72
        assert charts * 0.35 < height_inches < MOST_INCHES + 2


@pytest.mark.parametrize("name", ["layers", "eventflow", "workload", "max_qps"])
def test_a_picture_of_many_evaluations_is_not_too_high_to_look_at(
    name: str, given: dict[str, list[Evaluation]]
) -> None:
    first = given[name][0]
    many = [replace(first, id=f"{n}") for n in range(20)]

    drawing = picture(name, many)

    assert 1 < len(drawing.charts) < 20
    assert f"{len(drawing.charts)} of 20 evaluations are shown." in drawing.notes
    height_inches = float((ElementTree.fromstring(canvas.svg(drawing)).get("height") or "")[:-2]) / 72
    assert height_inches < MOST_INCHES + 2


def test_one_batch_has_the_one_tick_that_there_is(shallow: list[Evaluation]) -> None:
    times = batch_times([16], [1_000_000])

    svg = canvas.svg(picture("duration", [changed(shallow[0], times=times)]))

    ticks = texts(svg)[: texts(svg).index("batch")]
    assert [text for text in ticks if re.fullmatch(r"\W?[\d.]+", text)] == ["0"]


def test_colours_repeat_hatched_and_then_are_grey() -> None:
    groups = [str(n) for n in range(MOST_GROUPS + 2)]
    palette = Palette(groups)

    fills = [palette[group] for group in groups]
    assert len({(fill.colour, fill.hatch) for fill in fills[:MOST_GROUPS]}) == MOST_GROUPS
    assert fills[MOST_GROUPS:] == [OTHER, OTHER]
    assert palette.legend({"0", groups[-1]}) == [("0", fills[0]), ("others", OTHER)]
    assert [name for name, _ in palette.legend({"1", ""})] == ["1"]


def test_long_names_keep_both_ends() -> None:
    assert shortened("features.denseblock1.conv2", 11) == "featu…conv2"
    assert shortened("short", 5) == "short"
    assert len(shortened("模" * 40, 20)) <= 10
    assert shortened("a\nb", 9) == "a\\nb"
