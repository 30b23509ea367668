"""The best cells of a plan: conditions, rankings and Pareto fronts, against answers by hand."""

from __future__ import annotations

from dataclasses import replace

import pytest

from inferometer.evaluators.plans.reporting.asked import (
    FRONT,
    OTHERS,
    Objective,
    best,
    chosen,
    none_fulfils,
    pareto,
)
from inferometer.manifests.errors import ConfigurationError
from tests.plan_cases import case

RATE, P99 = "throughput_inputs_per_s", "latency_ms_p99"
FAST = [
    case({RATE: (100.0, 95.0, 105.0), P99: (10.0, 9.0, 11.0)}, batch_size=1),
    case({RATE: (400.0, 390.0, 410.0), P99: (48.0, 45.0, 52.0)}, batch_size=8),
    case({RATE: (395.0, 380.0, 410.0), P99: (30.0, 29.0, 31.0)}, batch_size=4),
    case({RATE: (900.0, 890.0, 910.0), P99: (80.0, 79.0, 81.0)}, batch_size=64),
]
HIGHEST_RATE = Objective(RATE, highest=True)
LOWEST_P99 = Objective(P99, highest=False)


@pytest.mark.parametrize(
    ("condition", "batches"),
    [
        ("latency_ms_p99 <= 50", [1, 8, 4]),  # a figure, by its value
        ("latency_ms_p99<10", []),
        ("batch_size >= 8", [8, 64]),  # a dimension
        ("batch_size = 4", [4]),
        ("batch_size != 4", [1, 8, 64]),
        ("framework == PyTorch", [1, 8, 4, 64]),
    ],
)
def test_conditions_are_on_figures_and_on_dimensions(condition, batches):
    cases = [replace(each, dimensions={**each.dimensions, "framework": "PyTorch"}) for each in FAST]
    assert [each.dimensions["batch_size"] for each in chosen(cases, [condition])] == batches


@pytest.mark.parametrize(
    ("condition", "message"),
    [
        ("latency_ms_p98 <= 50", 'no cell has "latency_ms_p98"; did you mean "latency_ms_p99"?'),
        ("latency_ms_p99", '"latency_ms_p99" is not a condition'),
        ("batch_size >= many", '"batch_size >= many" cannot be decided for "1"'),
    ],
)
def test_a_condition_that_cannot_be_decided_is_told(condition, message):
    with pytest.raises(ConfigurationError) as error:
        chosen(FAST, [condition])
    assert str(error.value).startswith(message)


def test_the_best_comes_first_with_what_is_not_told_apart_from_it():
    found = best(FAST, [HIGHEST_RATE], ["latency_ms_p99 <= 50"])

    assert [(row["batch_size"], row["tie"], row["holds"]) for row in found.rows] == [
        (8, True, "uncertain"),  # 45 to 52 includes 50
        (4, True, "certain"),  # 380 to 410 meets 390 to 410
        (1, False, "certain"),
    ]
    assert [column.key for column in found.columns][:6] == [
        "batch_size",
        RATE,
        f"{RATE}_low",
        f"{RATE}_high",
        "tie",
        P99,
    ]
    assert found.notes[0] == "1 of 4 cells do not fulfil latency_ms_p99 <= 50, by their values."
    assert "2 cells are not told apart" in found.notes[1]


def test_the_lowest_may_be_the_best_and_unknown_intervals_are_no_ties():
    found = best([case({P99: 3.0}, batch_size=2), case({P99: 2.0}, batch_size=1)], [LOWEST_P99], [f"{P99}<9"])
    assert [(row["batch_size"], row["tie"], row["holds"]) for row in found.rows] == [
        (1, None, "unknown"),
        (2, None, "unknown"),
    ]


def test_a_best_that_stands_alone_is_no_tie():
    found = best(FAST, [HIGHEST_RATE])
    assert found.rows[0]["batch_size"] == 64
    assert found.rows[0]["tie"] is False
    assert "holds" not in found.rows[0]


def test_the_one_that_is_left_is_still_named_by_what_tells_it_from_the_others():
    found = best(FAST, [HIGHEST_RATE], ["latency_ms_p99 < 20"])
    assert [row["batch_size"] for row in found.rows] == [1]


def test_where_no_cell_fulfils_the_condition_the_nearest_is_named():
    with pytest.raises(ConfigurationError) as error:
        best(FAST, [HIGHEST_RATE], ["latency_ms_p99 <= 5", "batch_size <= 4"])

    assert str(error.value) == (
        f"no cell fulfils latency_ms_p99 <= 5 and batch_size <= 4; the nearest, {FAST[0].cell.id} "
        "(batch_size=1), has latency_ms_p99 10 [9, 11], batch_size 1"
    )


def test_where_nothing_is_near_none_is_named():
    cases = [case({RATE: 1.0}, framework_name="PyTorch")]
    assert str(none_fulfils(cases, ["framework_name = MXNet"])) == "no cell fulfils framework_name == MXNet"


@pytest.mark.parametrize(
    ("scores", "front"),
    [
        ([(1, 1), (2, 2)], [False, True]),
        ([(1, 2), (2, 1)], [True, True]),
        ([(1, 2), (1, 2)], [True, True]),  # equal points do not dominate each other
        ([(1, 2), (1, 3), (0, 3)], [False, True, False]),  # as good in one, and better in the other
        ([(3, 1, 1), (2, 2, 1), (1, 1, 1)], [True, True, False]),
        ([(5,), (5,), (4,)], [True, True, False]),
    ],
)
def test_the_front_is_what_no_other_dominates(scores, front):
    assert pareto(scores) == front


def test_several_objectives_show_the_front_and_then_the_others():
    worse = case({RATE: 390.0, P99: 31.0}, batch_size=5)
    found = best([*FAST, worse], [LOWEST_P99, HIGHEST_RATE])

    assert [(row["batch_size"], row["front"]) for row in found.rows] == [
        (1, True),  # by the first objective
        (4, True),
        (8, True),
        (64, True),
        (5, False),  # 395 at 30 dominates it
    ]
    [chart] = found.drawing.charts
    assert (chart.x_axis, chart.y_axis) == ("p99 (ms)", "throughput (inputs/s)")
    assert (chart.series[0].line, chart.series[0].x) == (True, (10.0, 30.0, 48.0, 80.0))
    assert found.drawing.groups == (FRONT, OTHERS)
    [ring] = [series for series in chart.series if series.group == OTHERS]
    assert ring.text == "5"
    assert "p99 (ms) 31" in ring.tooltip
    assert any("30 [29, 31]" in series.tooltip for series in chart.series)


def test_three_objectives_have_no_picture():
    cases = [case({RATE: 1.0, P99: 1.0, "run_s": 1.0}, batch_size=size) for size in (1, 2)]
    found = best(cases, [LOWEST_P99, HIGHEST_RATE, Objective("run_s", highest=False)])
    assert [row["front"] for row in found.rows] == [True, True]
    assert found.drawing is None


def test_cells_without_the_figure_are_counted():
    found = best([*FAST, case({P99: 1.0}, batch_size=2)], [HIGHEST_RATE])
    assert len(found.rows) == 4
    assert "1 of 5 cells lack a figure of an objective, and are left out." in found.notes


def test_scores_of_different_kinds_are_not_ranked_together():
    cases = [
        case({"score": 0.5}, told={"score_name": "AP"}, batch_size=1),
        case({"score": 0.75}, told={"score_name": "AP"}, batch_size=2),
        case({"score": 30.0}, told={"score_name": "recall@1"}, batch_size=4),
    ]
    highest = [Objective("score", highest=True)]
    with pytest.raises(ConfigurationError) as error:
        best(cases, highest)
    assert "score is AP for some cells and recall@1 for others" in str(error.value)
    for name, order in (("AP", [2, 1]), ("recall@1", [4])):
        found = best(cases, highest, [f"score_name == {name}"])
        assert [row["batch_size"] for row in found.rows] == order


@pytest.mark.parametrize(
    ("objectives", "message"),
    [
        ([Objective("throughput", highest=True)], 'no cell has the figure "throughput"'),
        ([HIGHEST_RATE, Objective(RATE, highest=False)], "is a duplicate objective"),
    ],
)
def test_an_objective_that_is_none_is_told(objectives, message):
    with pytest.raises(ConfigurationError, match=message):
        best(FAST, objectives)
