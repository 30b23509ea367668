"""The plots of load: their queries, probes and answers."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
from matplotlib.figure import Figure

from inferometer.evaluators.drawing import canvas, painting
from inferometer.evaluators.drawing.charts import (
    TALL_POINT_INCHES,
    Band,
    BarChart,
    Drawing,
    Label,
    Mark,
    PointChart,
    Rule,
    Series,
)
from inferometer.evaluators.drawing.painting import ALARM
from inferometer.evaluators.evaluation import Evaluation
from inferometer.evaluators.kinds.load import plot as load
from inferometer.evaluators.kinds.load.kind import LoadKind
from inferometer.evaluators.kinds.load.measurement import LoadMeasurement, RateAnswer
from inferometer.evaluators.load.queries import Outcome
from inferometer.evaluators.load.server_statistics import ServerSeries
from tests.reports.loads import MS, OPTIONS, loaded, mix, queries, run
from tests.reports.pictures import drawn, picture, texts, titles


def charts_of(name: str, evaluations: list[Evaluation]) -> list[PointChart]:
    charts = picture(name, evaluations).charts
    assert all(isinstance(chart, PointChart) for chart in charts)
    return [chart for chart in charts if isinstance(chart, PointChart)]


def by_group(chart: PointChart) -> dict[str, Series]:
    return {series.group: series for series in chart.series}


def test_a_workload_is_its_latencies_and_service_times_by_when_queries_were_due(
    workloads: list[Evaluation],
) -> None:
    [chart] = charts_of("workload", workloads[:1])

    latency, service = chart.series
    assert latency.group == "latency: due to answer"
    assert service.group == "service: sent to answer"
    assert latency.x == service.x == pytest.approx([n / 100 for n in range(1200)])
    assert latency.y == pytest.approx([1 + n * 7 % 12 for n in range(1200)])
    assert service.y == pytest.approx([0.9 * (1 + n * 7 % 12) for n in range(1200)])
    assert chart.y_axis == "time (ms)"
    assert not chart.y_logarithmic
    assert chart.rules == (Rule(10, "bound 10 ms"),)
    assert chart.bands == (Band(0, 1.2, "empty start: not counted"),)
    assert chart.heading.warning == ""
    assert "poisson at 100 queries/s · p99 12 ms" in chart.heading.detail


def read_from(evaluation: Evaluation, **figures: list[float]) -> Evaluation:
    """The evaluation, with figures of its server that were read every second."""
    count = len(next(iter(figures.values())))
    columns = {name: np.array(values, np.float64) for name, values in figures.items()}
    series = ServerSeries("V2", np.arange(count) * 1000 * MS, np.full(count, MS), columns)
    load = evaluation.measurement
    assert isinstance(load, LoadMeasurement)
    return replace(evaluation, measurement=replace(load, run=replace(load.run, server=(series,))))


def test_what_the_server_told_is_drawn_below_the_latency(workloads: list[Evaluation]) -> None:
    figures = {"queue_ns": [0, 2e9, 2e9], "inferences": [0, 8, 8], "executions": [0, 2, 2]}
    resources = {"cpu_ns": [0, 5e8, 2e9], "memory_bytes": [2**20, 2**21, 2**21], "gpu_use": [0.5, 0.25, 1]}
    resources |= {"host_cpu_use": [1, 1, 1], "host_memory_bytes": [2**30, 2**30, 2**30]}
    read = read_from(workloads[0], **figures, **resources)

    latency, requests, cores, share, memory = charts_of("workload", [read])

    assert latency.series[0].group == "latency: due to answer"
    found = by_group(requests)
    assert (found["queue length"].x, found["queue length"].y) == ((0.5, 1.5), (2, 0))
    assert (found["batch size"].x, found["batch size"].y) == ((0.5,), (4,))
    assert by_group(cores)["CPU"].y == (0.5, 1.5)
    assert by_group(share)["GPU"].y == (0.5, 0.25, 1)
    assert by_group(memory)["memory"].y == (1, 2, 2)
    assert (by_group(share)["host's CPU"].y, by_group(memory)["host's memory"].y) == ((1,) * 3, (1024,) * 3)
    assert {chart.bands for chart in (requests, cores, share, memory)} == {latency.bands}
    [span] = {chart.x_range for chart in (latency, requests, cores, share, memory)}
    queries = workloads[0].measurement.run.queries
    assert span == (0, max(2.0, queries.scheduled_ns.max() / 1e9, queries.done_ns.max() / 1e9))
    for chart in (latency, requests):
        axes = Figure().add_subplot()
        painting._scale(axes, chart)
        assert axes.get_xlim() == pytest.approx((0 - span[1] / 100, span[1] * 1.01))
    groups = picture("workload", [read]).groups
    assert groups[2:] == ("queue length", "batch size", "CPU", "host's CPU", "GPU", "memory", "host's memory")
    assert "The server during this run" in texts(canvas.svg(picture("workload", [read])))


def test_the_page_has_a_picture_of_the_server_with_a_title_of_its_own(workloads: list[Evaluation]) -> None:
    read = read_from(workloads[0], cpu_ns=[0, 1e9], memory_bytes=[1, 2])

    latency, server = LoadKind().drawings(read, 100)

    assert (latency.title, len(latency.charts)) == ("Latency of each query, by when it was due", 1)
    assert (server.title, len(server.charts), server.notes) == ("The server during this run", 2, ())
    assert len(list(LoadKind().drawings(workloads[0], 100))) == 1


def test_a_picture_of_runs_with_several_charts_is_not_too_high(workloads: list[Evaluation]) -> None:
    read = read_from(workloads[0], cpu_ns=[0, 1e9], memory_bytes=[1, 2])
    drawing = picture("workload", [replace(read, id=f"{n}") for n in range(9)])

    assert len(drawing.charts) == 6
    assert "2 of 9 evaluations are shown." in drawing.notes


def test_the_parts_of_a_workload_are_stacked(workloads: list[Evaluation]) -> None:
    [chart] = picture("parts", workloads[:1]).charts

    assert isinstance(chart, BarChart)
    assert [row.label.name for row in chart.rows] == [
        f"{figure} by answers" for figure in ("mean", "p50", "p90", "p95", "p99")
    ]
    assert {bar.group: round(bar.value, 4) for bar in chart.rows[0].bars} == {
        "lag": 0.65,
        "queue": 1.625,
        "input": 0.8125,
        "compute": 3.25,
        "rest": 0.1625,
    }


def test_a_bound_has_the_unit_of_its_axis(workloads: list[Evaluation]) -> None:
    fast = queries([0.1 + 0.01 * (n % 5) for n in range(100)])
    measurement = LoadMeasurement(replace(OPTIONS, latency_bound_ms=0.5), run(fast), 10**9)

    [chart] = charts_of("workload", [loaded(workloads[0], 9, measurement)])

    assert chart.y_axis == "time (µs)"
    assert chart.rules == (Rule(500, "bound 500 µs"),)


def test_queries_without_an_answer_are_crosses_for_as_long_as_there_was_none(
    workloads: list[Evaluation],
) -> None:
    [chart] = charts_of("workload", workloads[1:2])

    groups = by_group(chart)
    assert {name for name, series in groups.items() if series.mark is Mark.CROSS} == {
        "failed",
        "timed out",
        "waiting at the end",
    }
    assert groups["failed"].x == pytest.approx((0.06, 0.07, 0.08))
    assert groups["failed"].y == pytest.approx((1, 1, 1))
    assert groups["timed out"].y == pytest.approx((500, 500))
    # the last answer came at 50 + 250 ms, and the query was due at 110 ms
    assert groups["waiting at the end"].y == pytest.approx((190,))
    assert len(groups["latency: due to answer"].x) == 6


def test_a_run_that_was_stopped_or_is_invalid_says_so(workloads: list[Evaluation]) -> None:
    drawing = picture("workload", workloads[1:2])

    warning = drawing.charts[0].heading.warning
    assert warning.startswith("INVALID: p99 of the harness's own lag is 22 ms")
    assert warning.endswith("STOPPED: the backlog grew without end")
    assert warning in " ".join(texts(canvas.svg(drawing)))


def test_of_many_queries_a_sample_is_drawn_with_every_outlier(evaluations: list[Evaluation]) -> None:
    latency_ms = [1.0 + n % 5 / 10 for n in range(20_000)]
    latency_ms[12_345] = 400.0
    many = loaded(evaluations[0], 9, LoadMeasurement(OPTIONS, run(queries(latency_ms)), 0))

    drawing = picture("workload", [many])

    [chart] = drawing.charts
    assert isinstance(chart, PointChart)
    latency, _ = chart.series
    assert 1000 < len(latency.x) <= load.MOST_POINTS
    assert max(latency.y) == pytest.approx(400)
    assert latency.x[int(np.argmax(latency.y))] == pytest.approx(123.45)
    assert (latency.x[0], latency.x[-1]) == pytest.approx((0, 199.99), abs=0.3)
    assert list(latency.x) == sorted(latency.x)
    assert chart.y_logarithmic  # the longest is far from the others
    assert "20,000 × latency" in latency.tooltip
    assert any("longest of each stretch" in note for note in drawing.notes)


def test_a_workload_without_a_query_is_not_drawn(evaluations: list[Evaluation]) -> None:
    empty = loaded(evaluations[0], 9, LoadMeasurement(OPTIONS, run(queries([])), 0))

    assert drawn("workload", [empty]) is None
    assert drawn("workload", []) is None


def test_a_search_is_percentiles_of_its_probes_against_their_rate(searches: list[Evaluation]) -> None:
    [chart] = charts_of("max_qps", searches[:1])

    groups = by_group(chart)
    assert set(groups) == {"p50", "p99", "p99.9", "p99, stopped early", "p99, INVALID"}
    assert (groups["p50"].x, groups["p50"].y) == ((100,), pytest.approx((5,)))
    assert groups["p99"].y == groups["p99.9"].y == pytest.approx((8,))
    assert groups["p99, stopped early"].x == (1000,)
    assert math.isinf(groups["p99, stopped early"].y[0])
    assert (groups["p99, INVALID"].x, groups["p99, INVALID"].mark) == ((120,), Mark.CROSS)
    assert [series.line for series in chart.series] == [
        s.group.startswith("p") and "," not in s.group for s in chart.series
    ]
    assert chart.rules == (Rule(10, "bound 10 ms for p99"), Rule(120.04, "", upright=True))
    assert chart.bands == (Band(118.7, 121.3, "95 % interval"),)
    assert chart.x_logarithmic
    assert "max QPS 120.0 [118.7, 121.3] at p99 ≤ 10 ms (single server)" in chart.heading.detail
    assert chart.heading.warning == "INVALID: 1 of 3 probes; do not trust their latencies"


def test_the_picture_of_a_mix_names_the_model_and_the_factor(mix_searches: list[Evaluation]) -> None:
    details = [chart.heading.detail for chart in charts_of("mix_search", mix_searches)]

    for said in (
        "onnx: factor 1.502 [1.455, 1.555] at p99 ≤ 10 ms (late fraction)",
        "torch: factor INVALID 1.5",
    ):
        assert any(said in detail for detail in details)


def test_an_answer_without_an_interval_has_no_band(searches: list[Evaluation]) -> None:
    none, unlimited = charts_of("max_qps", searches[1:])

    assert none.bands == unlimited.bands == ()
    assert none.rules == (Rule(10, "bound 10 ms for p99"),)
    assert "max QPS none at p99" in none.heading.detail
    assert none.heading.warning == "50 of 50 queries were late"
    assert unlimited.rules[1:] == (Rule(400, "at least", upright=True),)
    assert "max QPS at least 400 at p99" in unlimited.heading.detail


def test_a_bracket_is_no_interval_and_a_stopped_search_has_no_answer(searches: list[Evaluation]) -> None:
    load = searches[0].measurement
    assert load is not None
    answers = (
        RateAnswer(100.0, 100.0, 200.0, "bracket", "the time budget was used up"),
        RateAnswer(None, None, 200.0, "bracket"),
        None,
    )

    bracket, below, stopped = charts_of(
        "max_qps",
        [replace(searches[0], id=str(n), measurement=replace(load, answer=a)) for n, a in enumerate(answers)],
    )

    assert bracket.bands == (Band(100, 200, "kept … not kept"),)
    assert len(bracket.rules) == 1
    assert bracket.heading.warning.endswith("the time budget was used up")
    assert (below.bands, below.rules[1:]) == ((), (Rule(200, "not kept", upright=True),))
    assert "max QPS below 200 at p99" in below.heading.detail
    assert (stopped.bands, len(stopped.rules)) == ((), 1)
    assert stopped.heading.warning.startswith("STOPPED before there was an answer")


def test_points_that_are_infinitely_high_are_drawn_with_one_tooltip_a_series() -> None:
    mixed = Series("a", (1, 2, 3), (1.0, math.inf, 2.0), line=True, tooltip="mixed")
    beyond = Series("b", (2,), (math.inf,), tooltip="beyond")
    ring = Series("c", (1,), (2.0,), tooltip="ring", mark=Mark.RING)
    chart = PointChart(
        Label("name", "detail", "a warning"),
        "x",
        "y",
        (mixed, beyond, ring),
        (Rule(1.5, "line"), Rule(2, "upright", upright=True)),
        (Band(1, 2, "band"),),
        tall=True,
    )
    both = replace(chart, x_logarithmic=True, y_logarithmic=True)
    only = replace(chart, series=(beyond,), rules=(), bands=())
    plain = replace(chart, heading=Label("name", "detail"))

    svg = canvas.svg(Drawing("t", (chart,), ("a", "b", "c")))
    logarithmic = canvas.svg(Drawing("t", (both,), ("a", "b", "c")))

    assert sorted(titles(svg)) == ["beyond", "mixed", "ring"]
    assert {"line", "upright", "band", "a warning", "x", "y"} <= set(texts(svg))
    assert {"x, logarithmic", "y, logarithmic"} <= set(texts(logarithmic))
    assert titles(canvas.svg(Drawing("t", (only,), ("b",)))) == ["beyond"]
    assert canvas.png(Drawing("t", (chart, both, only), ("a", "b", "c")))
    heights = [int.from_bytes(canvas.png(Drawing("t", (each,)))[20:24], "big") for each in (chart, plain)]
    assert 10 < heights[0] - heights[1] < 30  # the line of the warning
    assert heights[1] > 120 * TALL_POINT_INCHES


def test_a_remark_stands_below_the_warning_in_another_colour() -> None:
    headings = (Label("n", "d", "a warning"), Label("n", "d", "a warning", "a remark"))
    charts = [PointChart(heading, "x", "y", (Series("a", (1,), (1.0,)),)) for heading in headings]
    plain, remarked = (canvas.svg(Drawing("t", (chart,))) for chart in charts)

    assert "a remark" in texts(remarked)
    assert remarked.count(ALARM.lower()) == plain.count(ALARM.lower()) > 0
    assert "a remark" not in texts(plain)


def test_the_unit_suits_the_times(evaluations: list[Evaluation]) -> None:
    options = replace(OPTIONS, latency_bound_ms=None)
    short, long = (
        loaded(evaluations[0], n, LoadMeasurement(options, run(queries([each] * 30)), 0))
        for n, each in enumerate((0.05, 3000.0))
    )

    units = [chart.y_axis for chart in charts_of("workload", [short, long])]

    assert units == ["time (µs)", "time (s)"]


@pytest.mark.parametrize(
    ("percentile", "failed", "count", "is_drawn"),
    [
        (95.0, (12, 300), 600, True),  # p95 has an answer, and the upper end of its interval has none
        (25.0, (7, 10), 600, False),  # p25 has an answer, and p50 has none
        (99.0, (0, 1), 0, False),  # no query was counted
    ],
)
def test_a_mix_with_failures_is_drawn_as_far_as_its_figures_are_finite(
    evaluations: list[Evaluation], percentile: float, failed: tuple[int, int], count: int, is_drawn: bool
) -> None:
    outcomes = [Outcome.FAILED if n % failed[1] < failed[0] else Outcome.ANSWERED for n in range(count)]
    alone, together = run(queries([3.0 + n % 7 for n in range(600)])), run(queries([5.0] * count, outcomes))
    failing = mix([alone] * 2, [together] * 2, options={"percentile": percentile})

    shown = drawn("mix", [loaded(evaluations[0], 1, failing)])

    assert (shown is not None) == is_drawn
    if shown is not None:
        [chart] = shown.charts
        assert isinstance(chart, BarChart)
        assert [bar.ends is None for row in chart.rows for bar in row.bars] == [False, False, False, True]
        assert "vision" in "".join(texts(canvas.svg(shown)))
