"""The reports and pictures of training: figures, raw steps, and scaling."""

from __future__ import annotations

from datetime import datetime, timedelta, timezone

import numpy as np
import pytest

from inferometer.client.web.documents import facts_of
from inferometer.evaluators.drawing.charts import BarChart, PointChart
from inferometer.evaluators.evaluation import Evaluation
from inferometer.evaluators.kinds.registry import find_plot, find_report
from inferometer.evaluators.kinds.reports import OverviewReport
from inferometer.evaluators.kinds.training.measurement import TrainingMeasurement
from inferometer.evaluators.kinds.training.report import (
    StrongScalingReport,
    TrainingReport,
    TrainingStepsReport,
    WeakScalingReport,
    training_rows,
)
from inferometer.evaluators.reports.base import cut_percent
from inferometer.evaluators.tasks.metric import Accuracy
from tests.contract.store_fixtures import make_system
from tests.training_evaluations import make_training

Training = Evaluation[TrainingMeasurement]


def scaled(*step_ms: float, batches: tuple[int, ...] = (8, 8, 8)) -> list[Training]:
    """Trainings on 1, 2, 4 … ranks with these step times."""
    return [
        make_training(
            make_system(),
            whole_ms=each,
            ranks=2**place,
            batch_size=batches[place],
            communicate_ms=float(place),
            created_at=datetime(2025, 1, 1, tzinfo=timezone.utc) - timedelta(hours=place),
        )
        for place, each in enumerate(step_ms)
    ]


def test_a_training_is_one_row_with_its_figures() -> None:
    accuracy = Accuracy(3, 4, 5)
    evaluation = make_training(
        make_system(),
        whole_ms=np.array([[10, 10, 10, 20]]),
        samples=np.array([[8, 8, 8, 3]]),
        accuracy=accuracy,
        validation="digits",
    )
    [row] = TrainingReport().rows([evaluation])
    assert set(row) == {column.key for column in TrainingReport.columns}
    assert row["step_ms_mean"] == 10.0
    assert row["throughput_samples_per_s"] == pytest.approx(27 / 0.050)
    assert (row["forward_ms"], row["backward_ms"], row["update_ms"]) == (2.0, 4.0, 1.0)
    assert (row["first_loss"], row["last_loss"]) == (2.0, 1.0)
    assert (row["measured_steps"], row["effective_batch"], row["bound"]) == (4, 8, "compute")
    assert row["top1_accuracy"] == 0.6


NAN, INF = float("nan"), float("inf")


@pytest.mark.parametrize(
    ("losses", "diverged"),
    [
        ([2.0, 1.0, 200.0, 1.0], False),
        ([2.0, 1.0, 200.1, 1.0], True),
        ([12.4, 9.0, 624416.0, 5e6], True),
        ([2.0, NAN, 1.0, 1.0], True),
        ([NAN, 1.0, 1.0, 1.0], True),
        ([2.0, 1.0, 1.0, INF], True),
        ([INF, INF, INF, INF], True),
        ([0.0, 0.0, 0.0, 0.0], False),
    ],
)
def test_a_loss_that_diverged_is_said(losses: list[float], diverged: bool) -> None:
    evaluation = make_training(make_system(), losses=np.array([losses, losses]), ranks=2, steps=3)
    [row] = TrainingReport().rows([evaluation])
    assert row["diverged"] is diverged
    assert dict(training_rows(evaluation))["loss"].endswith("; diverged") is diverged
    facts = [
        fact
        for section in facts_of(evaluation, evaluation, training_rows(evaluation))
        for fact in section["rows"]
    ]
    assert any(name == "loss" and text.endswith("diverged") for name, text in facts) is diverged


def test_every_step_is_a_row_with_its_loss_and_some_have_their_parts() -> None:
    evaluation = make_training(make_system(), ranks=2)
    rows = list(TrainingStepsReport().rows([evaluation]))
    assert [(row["rank"], row["step"]) for row in rows] == [
        (rank, step) for rank in (0, 1) for step in range(4)
    ]
    # the first loss is that of the warm-up
    assert [row["loss"] for row in rows[:4]] == [1.75, 1.5, 1.25, 1.0]
    assert [row["forward_us"] for row in rows[:4]] == [2000.0, None, 2000.0, None]
    assert rows[0]["whole_us"] == 10_000.0


def test_weak_scaling_is_that_of_dlbs() -> None:
    rows = list(WeakScalingReport().rows(scaled(100, 110, 125)))
    assert [row["devices"] for row in rows] == [1, 2, 4]
    assert [row["efficiency_percent"] for row in rows] == [100.0, 90.9, 80.0]
    assert [row["speedup"] for row in rows] == pytest.approx([1, 2 * 100 / 110, 3.2])
    assert rows[1]["uncapped_efficiency_percent"] == pytest.approx(90.909090, abs=1e-5)
    assert [row["communicate_ms"] for row in rows] == [0.0, 1.0, 2.0]
    assert rows[2]["communicate_percent"] == pytest.approx(1.6)


def test_strong_scaling_divides_one_batch() -> None:
    rows = list(StrongScalingReport().rows(scaled(100, 60, 20, batches=(32, 16, 8))))
    assert [row["speedup"] for row in rows] == pytest.approx([1, 100 / 60, 5])
    assert [row["efficiency_percent"] for row in rows] == [100.0, 83.33, 100.0]
    assert rows[2]["uncapped_efficiency_percent"] == pytest.approx(125)


def test_trainings_with_other_batches_are_not_compared() -> None:
    evaluations = scaled(100, 60, 20, batches=(32, 16, 8))
    assert list(WeakScalingReport().rows(evaluations)) == []
    assert list(StrongScalingReport().rows(scaled(100, 110, 125))) == []


def test_the_base_of_scaling_is_the_mean_of_its_runs() -> None:
    evaluations = [*scaled(90, 110), *scaled(110, 110)]
    rows = list(WeakScalingReport().rows(evaluations))
    assert [row["efficiency_percent"] for row in rows] == [100.0, 90.9, 90.9, 90.9]


@pytest.mark.parametrize(
    ("percent", "cut"), [(90.9099, 90.9), (100.0, 100.0), (130.0, 100.0), (79.999999999, 80.0)]
)
def test_efficiency_is_cut_and_capped(percent: float, cut: float) -> None:
    assert cut_percent(percent) == cut


def test_the_overview_lists_trainings() -> None:
    [row] = OverviewReport().rows([make_training(make_system(), steps=12)])
    assert (row["kind"], row["latency_ms_p50"], row["rate_per_s"]) == ("training", 10.0, 800.0)


def test_the_picture_of_steps_has_times_and_losses() -> None:
    evaluation = make_training(make_system(), ranks=2)
    report = find_report("training_steps")
    drawing = find_plot(find_report("training_steps")).draw([evaluation], list(report.rows([evaluation])))
    assert drawing is not None
    times, losses = drawing.charts
    assert isinstance(times, PointChart)
    assert isinstance(losses, PointChart)
    assert [series.group for series in times.series] == ["whole step", "wait for data"]
    assert times.series[0].y == (10.0,) * 4
    assert losses.series[0].y == (2.0, 1.75, 1.5, 1.25, 1.0)


def test_the_picture_of_trainings_stacks_the_parts_of_a_step() -> None:
    evaluation = make_training(make_system())
    drawing = find_plot(find_report("training")).draw([evaluation], list(TrainingReport().rows([evaluation])))
    assert drawing is not None
    [chart] = drawing.charts
    assert isinstance(chart, BarChart)
    assert [bar.value for bar in chart.rows[0].bars] == [1.0, 1.0, 2.0, 4.0, 0.0, 1.0]


def test_the_picture_of_scaling_has_a_bar_for_each_number_of_devices() -> None:
    evaluations = scaled(100, 110, 125)
    drawing = find_plot(find_report("weak_scaling")).draw(
        evaluations, list(WeakScalingReport().rows(evaluations))
    )
    assert drawing is not None
    [chart] = drawing.charts
    assert isinstance(chart, BarChart)
    assert [row.bars[0].value for row in chart.rows] == [100.0, 90.9, 80.0]
