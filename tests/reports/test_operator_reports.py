"""The report on operators: golden outputs, the picture, and figures computed independently."""

from __future__ import annotations

import io
import statistics
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from inferometer.client.commands.show import lines_of
from inferometer.client.web.documents import charts_of
from inferometer.evaluators.drawing.canvas import png
from inferometer.evaluators.drawing.charts import BarChart, PointChart
from inferometer.evaluators.evaluation import Evaluation
from inferometer.evaluators.kinds.operators.measurement import OperatorMeasurement
from inferometer.evaluators.kinds.operators.report import operator_lines
from inferometer.evaluators.kinds.registry import find_plot, find_report
from inferometer.evaluators.kinds.reports import OverviewReport
from inferometer.evaluators.reports.writer import Format, write
from tests.reported_operators import ADD, CONV, PEAK, measured, one, operators_in, other, several, slower

GOLDEN = Path(__file__).parent / "golden"


@pytest.fixture
def rows_of_operators(evaluations: list[Evaluation]) -> list[Evaluation[OperatorMeasurement]]:
    return [one(evaluations[0]), other(evaluations[1]), several(evaluations[2])]


@pytest.mark.parametrize("output_format", Format)
@pytest.mark.parametrize("count", [0, 1, 3])
def test_the_report_is_its_golden_output(
    output_format: Format, count: int, rows_of_operators: list[Evaluation[OperatorMeasurement]]
) -> None:
    report, stream = find_report("op"), io.StringIO()
    shown = report.on_a_page() if output_format is Format.MARKDOWN else report

    write(shown.columns, shown.rows(rows_of_operators[:count]), output_format, stream)

    golden = GOLDEN / f"operators_{count}.{output_format.value}"
    assert stream.getvalue() == golden.read_text(encoding="utf-8")


def test_other_evaluations_are_left_out(
    evaluations: list[Evaluation], rows_of_operators: list[Evaluation[OperatorMeasurement]]
) -> None:
    report = find_report("operators")

    assert report.taken([*evaluations, *rows_of_operators]) == rows_of_operators
    for row in report.rows(rows_of_operators):
        assert set(row) == {column.key for column in report.columns}


def test_figures_are_those_of_the_times(evaluations: list[Evaluation]) -> None:
    [row] = find_report("operators").rows([one(evaluations[0])])

    p50_us = statistics.median(ADD.times_ns.tolist()) / 1000
    assert row["p50_us"] == pytest.approx(p50_us)
    assert row["mean_us"] == pytest.approx(statistics.mean(ADD.times_ns.tolist()) / 1000)
    assert row["moved_bytes"] == 12_582_912
    assert row["gflops_per_s"] == pytest.approx(2**20 / p50_us / 1000)
    assert row["gbytes_per_s"] == pytest.approx(12_582_912 / p50_us / 1000)
    assert row["bytes_share"] == pytest.approx(12_582_912 / (p50_us / 1e6) / 20e9)
    assert row["intensity"] == pytest.approx(1 / 12)
    assert (row["bound"], row["max_difference"], row["stop"]) == ("memory", 2e-7, "target")


def test_processes_are_one_row_and_what_failed_says_why(evaluations: list[Evaluation]) -> None:
    rows = list(find_report("operators").rows([several(evaluations[0])]))

    assert [row["operator"] for row in rows].count("add") == 1
    assert (rows[0]["processes"], rows[0]["runs"]) == (2, 400)
    ended = {row["operator"]: (row["status"], row["p50_us"], row["reason"]) for row in rows[4:]}
    assert ended["argmax"] == ("missing", None, "PyTorch has no gradient of it")
    assert ended["power"][0] == "wrong"
    assert ended["modulo"] == ("failed", None, 'the process ended by SIGSEGV in "mod" | again')


def test_one_process_of_several_that_failed_is_told(evaluations: list[Evaluation]) -> None:
    failed = replace(
        ADD, process=2, status=several(evaluations[0]).measurement.rows[-1].status, reason="SIGBUS"
    )
    failed = replace(failed, times_ns=np.empty(0, np.int64))

    [row] = find_report("operators").rows([measured(evaluations[0], ADD, failed)])

    assert (row["status"], row["reason"], row["processes"]) == ("failed", "SIGBUS", 1)
    assert row["p50_us"] is not None


def test_a_run_in_a_block_is_a_part_of_its_time(evaluations: list[Evaluation]) -> None:
    rows = {row["operator"]: row for row in find_report("operators").rows([several(evaluations[0])])}

    tiny = rows["negative"]
    assert (tiny["p50_us"], tiny["block"], tiny["runs"], tiny["near_floor"]) == (0.4, 10, 500, True)


def test_the_overview_has_operators(rows_of_operators: list[Evaluation[OperatorMeasurement]]) -> None:
    rows = list(OverviewReport().rows(rows_of_operators))

    assert [row["kind"] for row in rows] == ["operators"] * 3
    assert [row["latency_ms_p50"] for row in rows] == [None] * 3


def test_a_person_reads_the_rows_and_the_peak(evaluations: list[Evaluation]) -> None:
    told = dict(operator_lines(several(evaluations[0])))

    assert told["operators"] == "7 rows: 4 measured, 1 wrong, 1 failed, 1 missing"
    assert told["measured"].startswith("float32, hot cache, until the 95 % interval")
    assert told["peak"] == "100.0 GFLOP/s, 20.0 GB/s with 1 thread: sgemm of 2048 and a triad of 3 x 128 MiB"
    assert dict(operator_lines(other(evaluations[0])))["peak"] == "not known"
    lines = list(lines_of(several(evaluations[0]), (), lambda _: iter(())))
    assert any("add forward" in line and "lhs=1024x1024" in line for line in lines)
    assert any("modulo" in line and "SIGSEGV" in line for line in lines)


def test_the_picture_has_a_point_a_row_and_the_frameworks_side_by_side(evaluations: list[Evaluation]) -> None:
    both = [several(evaluations[0]), operators_in("MXNet", evaluations[0])]
    rows = list(find_report("operators").rows(both))

    drawing = find_plot(find_report("operators")).draw(both, rows)

    assert drawing is not None
    assert drawing.groups == ("PyTorch", "MXNet nd", "MXNet sym", "roof of this machine")
    roofline, bars = drawing.charts
    assert isinstance(roofline, PointChart)
    assert isinstance(bars, BarChart)
    roof, *points = roofline.series
    assert max(roof.y) == PEAK.flops_per_s / 1e9
    assert roof.y[0] == pytest.approx(roof.x[0] * PEAK.bytes_per_s / 1e9)
    assert len(points) == 4 + 4
    conv = next(row for row in bars.rows if row.label.name == "conv2d")
    assert {bar.group: round(bar.value, 3) for bar in conv.bars} == {
        "PyTorch": round(1 / 0.9, 3),
        "MXNet nd": round(1.5 / 0.9, 3),
        "MXNet sym": 1,
    }


@pytest.mark.parametrize(("factor", "logarithmic"), [(3, False), (300, True)])
def test_bars_of_very_different_lengths_are_logarithmic(
    evaluations: list[Evaluation], factor: float, logarithmic: bool
) -> None:
    elsewhere = measured(operators_in("MXNet", evaluations[0]), slower(ADD, factor, "nd"))
    both = [measured(evaluations[0], ADD), elsewhere]

    drawing = find_plot(find_report("operators")).draw(both, list(find_report("operators").rows(both)))

    assert drawing is not None
    bars = drawing.charts[-1]
    assert isinstance(bars, BarChart)
    assert bars.logarithmic is logarithmic
    assert png(drawing).startswith(b"\x89PNG")


def test_of_what_was_measured_again_the_newest_is_drawn(evaluations: list[Evaluation]) -> None:
    newest = measured(evaluations[0], slower(CONV, 3, CONV.form))
    both = [newest, replace(measured(evaluations[0], ADD, CONV), id="before")]

    drawing = find_plot(find_report("operators")).draw(both, list(find_report("operators").rows(both)))

    assert drawing is not None
    bars = drawing.charts[-1]
    assert isinstance(bars, BarChart)
    assert {row.label.name: row.bars[0].value for row in bars.rows} == {"conv2d": 27, "add": 1.0495}


def test_without_a_peak_and_with_one_framework_the_picture_has_times(evaluations: list[Evaluation]) -> None:
    evaluation = measured(evaluations[0], ADD, CONV, peak=None)

    drawing = find_plot(find_report("operators")).draw(
        [evaluation], list(find_report("operators").rows([evaluation]))
    )

    assert drawing is not None
    [chart] = drawing.charts
    assert isinstance(chart, BarChart)
    assert chart.axis == "p50 (ms)"
    assert [row.label.name for row in chart.rows] == ["conv2d", "add"]


def test_more_operators_than_fit_are_told(evaluations: list[Evaluation]) -> None:
    many = [replace(ADD, operator=f"add{number}") for number in range(50)]
    elsewhere = operators_in("MXNet", evaluations[0])
    both = [
        measured(evaluations[0], *many),
        measured(elsewhere, *(slower(row, 1 + n / 10, "nd") for n, row in enumerate(many))),
    ]

    drawing = find_plot(find_report("operators")).draw(both, list(find_report("operators").rows(both)))

    assert drawing is not None
    bars = drawing.charts[-1]
    assert isinstance(bars, BarChart)
    assert [row.label.name for row in bars.rows][:2] == ["add49", "add48"]
    assert drawing.notes == ("The bars show the 30 of 50 operators that differ most.",)


def test_nothing_measured_has_no_picture(evaluations: list[Evaluation]) -> None:
    nothing = measured(evaluations[0], *several(evaluations[0]).measurement.rows[-2:])
    report = find_report("operators")

    assert find_plot(find_report("operators")).draw([nothing], list(report.rows([nothing]))) is None


def test_the_page_has_the_roofline_with_one_series_a_form(evaluations: list[Evaluation]) -> None:
    evaluation = several(evaluations[0])

    [chart] = charts_of(evaluation)

    assert [each["name"] for each in chart["series"]] == ["roof of this machine", "PyTorch"]
    assert len(chart["series"][1]["x"]) == 4
    assert chart["x_logarithmic"]
