"""Tables of a plan: figures over repetitions, places that cells share, and pictures."""

from __future__ import annotations

import io
import math

import pytest

from inferometer.evaluators.drawing.charts import BarChart, PointChart
from inferometer.evaluators.plans.cells import Cell, Run
from inferometer.evaluators.plans.reporting.cases import Figure, overlap, ratio
from inferometer.evaluators.plans.reporting.tables import MOST_LINES, MOST_ROWS, failures, table, telling
from inferometer.evaluators.plans.running.folder import Ended, Result, RunHistory
from inferometer.evaluators.reports.writer import Format, write
from inferometer.manifests.errors import ConfigurationError
from tests.plan_cases import case

TIME, RATE = "latency_ms_p50", "throughput_inputs_per_s"


def test_repetitions_have_a_geometric_mean_and_students_interval_of_their_logarithms():
    found = Figure.over([Figure(value) for value in (1.0, 2.0, 4.0)])

    assert found.value == pytest.approx(2.0)
    reach = 4.303 * math.log(2) / math.sqrt(3)  # the sample's standard deviation is ln 2
    assert (found.low, found.high) == pytest.approx((2 * math.exp(-reach), 2 * math.exp(reach)))
    assert found.count == 3


def test_values_that_are_not_positive_have_an_arithmetic_mean():
    found = Figure.over([Figure(0.0), Figure(2.0)])
    assert (found.value, found.low) == pytest.approx((1.0, 1 - 12.706))


def test_one_repetition_keeps_the_interval_of_its_run():
    assert Figure.over([Figure(2.0, 1.0, 3.0)]) == Figure(2.0, 1.0, 3.0)


def test_a_ratio_of_what_is_not_positive_is_none():
    assert ratio(Figure(1.0), Figure(0.0)) is None
    assert ratio(Figure(4.0, 0.0, 5.0), Figure(2.0, 1.0, 3.0)) == Figure(2.0)


@pytest.mark.parametrize(
    ("one", "other", "answer"),
    [
        ((2.0, 1.0, 3.0), (4.0, 3.0, 5.0), True),
        ((2.0, 1.0, 3.0), (4.0, 3.1, 5.0), False),
        ((2.0, None, None), (4.0, 3.1, 5.0), None),
    ],
)
def test_figures_are_told_apart_by_their_intervals(one, other, answer):
    assert overlap(Figure(*one), Figure(*other)) is answer
    assert overlap(Figure(*other), Figure(*one)) is answer


def test_cells_that_differ_in_something_else_share_no_place():
    cases = [case({TIME: 1.0}, batch_size=1, threads=1), case({TIME: 2.0}, batch_size=1, threads=2)]

    with pytest.raises(ConfigurationError, match="they differ in threads; add a row or a column"):
        table(cases, rows=["batch_size"])


def test_names_that_tell_nothing_more_are_left_out():
    cases = [
        case({TIME: 1.0}, model_name="a", batch_size=n, twice=2 * n, threads=t)
        for n in (1, 2)
        for t in (1, 2)
    ]
    assert telling(cases) == ("batch_size", "threads")
    assert telling(cases, ["threads"]) == ("batch_size",)


def test_a_number_across_is_drawn_as_lines_and_texts_as_bars():
    cases = [
        case({TIME: (ms, ms * 0.9, ms * 1.1)}, framework_name=name, batch_size=size)
        for name, base in (("A", 1.0), ("B", 2.0))
        for size, ms in ((16, base * 4), (1, base))
    ]
    [lines] = table(cases, columns=["batch_size"]).drawing.charts
    [bars] = table(cases, columns=["framework_name"]).drawing.charts
    [plain] = table(cases).drawing.charts

    assert isinstance(lines, PointChart)
    assert [(each.group, each.x, each.y) for each in lines.series[:2]] == [
        ("A", (1.0, 16.0), (1.0, 4.0)),
        ("B", (1.0, 16.0), (2.0, 8.0)),
    ]
    assert lines.x_logarithmic
    assert "A: at 16: 4 [3.6, 4.4]" in [each.tooltip for each in lines.series]
    assert isinstance(bars, BarChart)
    assert [[bar.value for bar in row.bars] for row in bars.rows] == [[4.0, 8.0], [1.0, 2.0]]
    assert [row.label.name for row in plain.rows] == ["A · 16", "A · 1", "B · 16", "B · 1"]
    assert plain.rows[1].bars[0].text == "1 [0.9, 1.1]"


def test_each_figure_has_a_chart_of_its_own():
    drawing = table([case({TIME: 1.0, RATE: 5.0}, threads=1)], values=[TIME, RATE]).drawing
    assert [chart.axis for chart in drawing.charts] == ["p50 (ms)", "throughput (inputs/s)"]


def test_a_picture_says_what_it_leaves_out():
    count = MOST_ROWS + 1
    bars = table([case({TIME: 1.0}, seed=n) for n in range(count)]).drawing
    lines = table(
        [case({TIME: 1.0}, seed=n, threads=t) for n in range(count) for t in (1, 2)], columns=["threads"]
    )

    assert len(bars.charts[0].rows) == MOST_ROWS
    assert bars.notes == (f"The first {MOST_ROWS} of {count} rows are shown.",)
    assert lines.drawing.notes == (f"The first {MOST_LINES} of {count} rows are shown.",)
    assert len({series.group for series in lines.drawing.charts[0].series}) == MOST_LINES


def test_nothing_failed_is_told():
    assert failures([], {}).notes == ("No run failed, or was lost on the way.",)


class _Terminal(io.StringIO):
    def isatty(self):
        return True


def test_the_whole_reason_of_a_failure_is_read_in_a_narrow_terminal(monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    reason = "the device that the cell asks for is not there, and nothing on this machine can take its place"
    run = Run(Cell("abc", ("predict", "dataset"), {"model_name": "A" * 30, "gpu": True}, {}), 1)
    found = failures([run], {run.key: RunHistory(result=Result(run.key, Ended.FAILED, reason))})
    terminal = _Terminal()
    write(found.columns, found.rows, Format.TABLE, terminal)

    lines = terminal.getvalue().splitlines()
    assert set(reason.split()) <= {word for line in lines for word in line.split()}
    assert all(len(line.replace("\x1b[1m", "").replace("\x1b[0m", "")) <= 80 for line in lines)
