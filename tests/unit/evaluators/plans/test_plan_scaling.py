"""Weak and strong scaling of the cells of a plan, against answers by hand."""

from __future__ import annotations

import math

import pytest

from inferometer.evaluators.plans.reporting.scaling import (
    IDEAL,
    Quantity,
    Scaling,
    count_of,
    quantity_of,
    scaling,
)
from inferometer.manifests.errors import ConfigurationError
from tests.plan_cases import case

TIME, RATE = "latency_ms_p50", "throughput_samples_per_s"
TIMES = {1: 100.0, 2: 110.0, 4: 125.0}


def _timed(**options):
    """The example of DLBS, last first."""
    return [case({TIME: ms}, num_gpus=n, **options) for n, ms in reversed(TIMES.items())]


def _figures(found, *keys):
    return [tuple(row[key] for key in keys) for row in found.rows]


def test_weak_scaling_is_what_dlbs_prints():
    found = scaling(_timed(), Scaling.WEAK)

    assert _figures(found, "num_gpus", "efficiency_percent") == [(1, 100.0), (2, 90.9), (4, 80.0)]
    assert [row["speedup"] for row in found.rows] == pytest.approx([1, 200 / 110, 3.2])
    assert found.rows[1]["uncapped_efficiency_percent"] == pytest.approx(100 / 1.1)


def test_strong_scaling_divides_the_work():
    found = scaling(_timed(), Scaling.STRONG)

    assert _figures(found, "efficiency_percent") == [(100.0,), (45.45,), (20.0,)]
    assert [row["speedup"] for row in found.rows] == pytest.approx([1, 100 / 110, 0.8])


@pytest.mark.parametrize("kind", list(Scaling))
def test_a_rate_counts_the_work_of_all(kind):
    """Twice the devices with 1.5 times the samples per second are 75 % efficient, whatever stays the same."""
    cases = [case({RATE: 200.0}, threads=2), case({RATE: 300.0}, threads=4), case({RATE: 420.0}, threads=6)]
    found = scaling(cases, kind)
    assert _figures(found, "threads", "efficiency_percent") == [(2, 100.0), (4, 75.0), (6, 70.0)]


def test_efficiency_is_capped_beside_the_value_as_it_is():
    found = scaling([case({TIME: 100.0}, threads=1), case({TIME: 40.0}, threads=2)], Scaling.STRONG)
    assert _figures(found, "efficiency_percent", "uncapped_efficiency_percent")[1] == (100.0, 125.0)


def test_the_halves_of_the_intervals_add_up_as_squares():
    cases = [case({TIME: (100.0, 90.0, 120.0)}, threads=1), case({TIME: (50.0, 40.0, 55.0)}, threads=2)]
    _, row = scaling(cases, Scaling.STRONG).rows
    down = math.hypot(math.log(100 / 90), math.log(55 / 50))
    up = math.hypot(math.log(120 / 100), math.log(50 / 40))
    assert row["speedup_low"] == pytest.approx(2 * math.exp(-down))
    assert row["speedup_high"] == pytest.approx(2 * math.exp(up))
    assert row["uncapped_efficiency_percent_low"] == pytest.approx(100 * math.exp(-down))
    assert row["efficiency_percent_high"] == 100.0


def test_the_base_is_1_by_definition_and_one_unknown_interval_leaves_none():
    cases = [case({TIME: (100.0, 90.0, 120.0)}, threads=1), case({TIME: 50.0}, threads=2)]
    assert _figures(scaling(cases, Scaling.STRONG), "speedup", "speedup_low") == [(1.0, None), (2.0, None)]


def test_each_group_has_its_own_base():
    cases = [*_timed(model_name="a"), case({TIME: 10.0}, num_gpus=2, model_name="b")]
    cases += [case({TIME: 10.0}, num_gpus=4, model_name="b"), case({TIME: 7.0}, num_gpus=1, model_name="c")]
    found = scaling(cases, Scaling.WEAK)

    assert _figures(found, "model_name", "num_gpus", "speedup")[-2:] == [("b", 2, 1.0), ("b", 4, 2.0)]
    assert "1 of 6 cells are left out" in found.notes[1]
    [chart] = found.drawing.charts
    [ideal] = [series for series in chart.series if series.group == IDEAL]
    assert (ideal.x, ideal.y) == ((1.0, 4.0), (1.0, 4.0))
    assert {series.group for series in chart.series} == {IDEAL, "a", "b"}


def test_strong_scaling_keeps_the_batch_of_all_together():
    """A grid of batches and devices has two cells for each whole batch of 8, and they are one group."""
    cases = [
        case({TIME: 10.0}, told={"effective_batch": batch * n}, batch_size=batch, num_gpus=n)
        for batch in (4, 8)
        for n in (1, 2)
    ]
    found = scaling(cases, Scaling.STRONG)
    assert _figures(found, "effective_batch", "num_gpus") == [(8, 1), (8, 2)]
    assert len(scaling(cases, Scaling.WEAK).rows) == 4


@pytest.mark.parametrize(
    ("value", "name", "count"),
    [
        ("0,2-3", "cell.cores", 3),
        ("0", "gpus", 1),
        ("0,1", "gpus", 2),
        ("4", "threads", 4),
        ("a", "threads", None),
    ],
)
def test_lists_count_what_they_name(value, name, count):
    assert count_of(case({}, **{name.replace(".", "__"): value}), name) == count


def test_scaling_over_cores_that_cells_are_pinned_to():
    cases = [case({TIME: 8.0}, cell__cores="0"), case({TIME: 4.0}, cell__cores="0-1")]
    found = scaling(cases, Scaling.STRONG)
    assert _figures(found, "cell.cores", "efficiency_percent") == [(1, 100.0), (2, 100.0)]


@pytest.mark.parametrize(
    ("figure", "quantity"),
    [
        ("latency_ms_p50", Quantity.TIME),
        ("p50_us", Quantity.TIME),
        ("run_s", Quantity.TIME),
        ("throughput_inputs_per_s", Quantity.RATE),
        ("max_qps", Quantity.RATE),
        ("gflops_per_s", Quantity.RATE),
    ],
)
def test_a_figure_is_a_time_or_a_rate_by_its_unit(figure, quantity):
    assert quantity_of(figure) is quantity


@pytest.mark.parametrize("figure", ["top1_accuracy", "resident_bytes", "measured_steps", "first_loss"])
def test_another_figure_is_neither(figure):
    with pytest.raises(ConfigurationError, match="is neither a time nor a rate"):
        scaling([case({figure: 1.0}, threads=n) for n in (1, 2)], Scaling.WEAK, values=[figure])


@pytest.mark.parametrize(
    ("cases", "over", "message"),
    [
        (_timed(), "num_gpu", 'no cell has "num_gpu"; did you mean "num_gpus"?'),
        (_timed(model_name="a"), "model_name", '"model_name" has no numbers'),
        (_timed()[:1], "num_gpus", 'no cells differ in "num_gpus" alone'),
        (_timed()[:1], None, "no number of devices, ranks, threads or cores varies; name the dimension"),
        (
            [case({TIME: 1.0}, threads=t, num_ranks=r) for t, r in ((1, 1), (1, 2), (2, 2))],
            None,
            "num_ranks, threads vary; name the dimension with --over",
        ),
        ([*_timed(), case({TIME: 9.0}, num_gpus=0)], None, "num_gpus is 0 in a cell"),
        ([*_timed(exp__one=1), *_timed(exp__one=1)], None, "do not differ in any parameter"),
    ],
)
def test_what_does_not_scale_is_one_line(cases, over, message):
    with pytest.raises(ConfigurationError, match=message):
        scaling(cases, Scaling.WEAK, over)


def test_numbers_that_vary_together_are_one_dimension():
    cases = [case({TIME: 10.0}, told={"devices": n, "ranks": n}, num_ranks=n) for n in (1, 2)]
    assert _figures(scaling(cases, Scaling.WEAK), "devices", "efficiency_percent") == [(1, 100.0), (2, 100.0)]
