"""What is made of a tuning: its documents, rows, plot, summary, and the command that repeats it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import yaml

from inferometer.agent.hardware.environment import Precision
from inferometer.evaluators.evaluation import Evaluation, Status
from inferometer.evaluators.kinds.load.measurement import Method, RateAnswer
from inferometer.evaluators.kinds.registry import again, find_kind
from inferometer.evaluators.kinds.tuning.figures import TuningMeasurement
from inferometer.evaluators.kinds.tuning.kind import TuningKind, TuningPlot, TuningReport, _configuration_text
from inferometer.evaluators.kinds.tuning.request import Configuration
from inferometer.evaluators.load.queries import QUERY_COLUMNS
from tests.contract.store_fixtures import make_evaluation
from tests.tuned_hosts import tuned_host


def tuned(*, whole: bool = True, **options: Any) -> Evaluation[TuningMeasurement]:
    """A tuning of a simulated host."""
    evaluation: Evaluation[TuningMeasurement] = make_evaluation(
        measurement=tuned_host(whole=whole, **options)
    )
    return evaluation


@pytest.mark.parametrize("options", [{}, {"rate_qps": 100.0}, {"whole": False}], ids=str)
def test_what_is_stored_comes_back(options: dict[str, Any]) -> None:
    kind, evaluation = find_kind("tuning"), tuned(**options)
    before = evaluation.measurement
    document, parts = kind.to_documents(evaluation, "save")
    stored = {name: list(part.documents) for name, part in parts.items()}

    found = kind.from_documents({"measurement": document, "elapsed_ns": 7}, stored)

    assert isinstance(found, TuningMeasurement)
    assert found.trials == before.trials
    assert (found.answer, found.options, found.elapsed_ns) == (before.answer, before.options, 7)
    assert dict(found.asked) == {k: list(v) if isinstance(v, tuple) else v for k, v in before.asked.items()}
    for one, other in zip(found.probes, before.probes, strict=True):
        for name in QUERY_COLUMNS:
            np.testing.assert_array_equal(getattr(one.queries, name), getattr(other.queries, name))


def test_damaged_documents_are_refused() -> None:
    kind, evaluation = TuningKind(), tuned()
    document, parts = kind.to_documents(evaluation, "save")
    stored = {name: list(part.documents) for name, part in parts.items()}
    document["trials"][0]["configuration"]["instances"] = "two"

    with pytest.raises(TypeError, match="instances is str"):
        kind.from_documents({"measurement": document, "elapsed_ns": 7}, stored)


def test_the_report_has_a_row_for_each_configuration() -> None:
    evaluation = tuned()

    rows = list(TuningReport().rows([evaluation]))

    keys = {column.key for column in TuningReport.columns}
    assert all(set(row) == keys for row in rows)
    assert [row["place"] for row in rows] == [1, 2, 3, 4]
    assert (rows[0]["instances"], rows[0]["max_batch_size"], rows[0]["stopped"]) == (2, 8, None)
    assert rows[0]["better"] is None
    assert all(row["stopped"] for row in rows[1:])
    assert evaluation.measurement.batch_size == 8


def test_the_summary_states_what_was_tried_and_what_is_not_certain() -> None:
    rows = list(TuningKind().summary(tuned()))

    told = dict(rows)
    assert told["best"] == "instances 2, threads 1, batch 8, delay 0 ms"
    assert "queries/s at p99 <= 60 ms" in told["answer"]
    assert told["another"].startswith("is better with a probability of at most ")
    assert told["raced"].endswith("of 4 configurations; 4 answered a burst")
    assert rows[-1] == ("", "3 not raced: its burst is slower than what the best keeps")
    assert len(rows) == 4 + 2


@pytest.mark.parametrize("options", [{}, {"rate_qps": 100.0}], ids=str)
def test_a_figure_that_was_not_confirmed_is_about_right_and_has_no_interval(options: dict[str, Any]) -> None:
    evaluation = tuned(**options)
    best, *others = evaluation.measurement.trials
    trials = (
        replace(best, low=None, high=None),
        *(replace(each, stopped="the time budget was used up") for each in others),
    )
    measured = replace(evaluation.measurement, answer=None, trials=trials)

    told = dict(TuningKind().summary(replace(evaluation, measurement=measured)))

    assert told["answer"].startswith("about ")
    assert told["answer"].endswith("; there was too little time for an interval")
    assert told["another"].startswith("may be better: there was too little time")
    if not options:
        assert TuningKind().unfit(measured) == "has no answer; leave it out"


@pytest.mark.parametrize(
    ("stopped", "answer"),
    [
        (["its memory peaks above 9 MiB"] * 4, "no configuration stays within the memory limit"),
        (
            ["its memory peaks above 9 MiB", *["it breaks the bound even at 2 queries/s"] * 3],
            "no configuration within the memory limit can serve this load",
        ),
        (["it breaks the bound even at 2 queries/s"] * 4, "no configuration can serve this load"),
        (["it breaks the bound even at 2 queries/s"] * 4, "the best of an earlier round lost: at 2 qps"),
    ],
)
def test_it_is_told_why_no_configuration_is_the_best(stopped: list[str], answer: str) -> None:
    evaluation = tuned()
    trials = tuple(
        replace(each, stopped=why) for each, why in zip(evaluation.measurement.trials, stopped, strict=True)
    )
    none = RateAnswer(None, None, None, Method.NONE.value, answer)
    measured = replace(evaluation.measurement, answer=none, trials=trials)

    rows = list(TuningKind().summary(replace(evaluation, measurement=measured)))

    assert [row for row in rows if answer in row[1]] == [("answer", answer)]


def test_the_smallest_latency_is_told_in_milliseconds() -> None:
    evaluation = tuned(rate_qps=100.0)
    kind = TuningKind()

    told = dict(kind.summary(evaluation))

    assert told["answer"].endswith("ms, p99 at 100 queries/s")
    assert "cannot be compared" in kind.unfit(evaluation.measurement)
    assert kind.overview(evaluation.measurement) == {"rate_per_s": 100.0}


def test_a_stopped_tuning_has_no_answer_and_keeps_its_probes() -> None:
    evaluation, kind = replace(tuned(whole=False), status=Status.INTERRUPTED), TuningKind()

    assert kind.keeps_interrupted
    assert kind.measured(evaluation.measurement) == "13 probes"
    told = dict(kind.summary(evaluation))
    assert told["answer"] == f"none: stopped; --resume={evaluation.id} continues it"
    assert "another" not in told
    assert list(TuningReport().rows([evaluation]))


def test_the_command_that_repeats_it_has_the_axes_and_no_threads_of_its_own() -> None:
    evaluation = tuned(threads=(1, 2))
    system = replace(evaluation.system, threads=1)

    line = again(replace(evaluation, system=system)).line

    assert line.startswith("agent measure tuning --model_name=DigitsCNN")
    assert line.count("--threads=") == 1
    assert "--threads=1,2 --max_batch_size=1,8 --latency_bound=60" in line


def test_each_precision_is_named_and_asked_for_again() -> None:
    evaluation = tuned(dtype=("float32", "bfloat16"))
    best = evaluation.measurement.trials[0].configuration
    system = replace(evaluation.system, precision=Precision.BFLOAT16)

    rows = list(TuningReport().rows([evaluation]))

    assert best == Configuration(2, 1, 8, 0.0, "bfloat16")
    assert [row["precision"] for row in rows[:2]] == ["bfloat16", "float32"]
    assert again(replace(evaluation, system=system)).line.count("--dtype=") == 1
    assert "--dtype=float32,bfloat16" in again(replace(evaluation, system=system)).line
    text = _configuration_text(best, "an answer")
    assert text.startswith("# agent tune: an answer\n# for clients with --dtype=bfloat16\nserving:\n")
    assert yaml.safe_load(text) == {
        "serving": {"instances": 2, "threads": 1, "max_batch_size": 8, "max_queue_delay_ms": 0.0}
    }
    assert "dtype" not in _configuration_text(replace(best, precision=None), "an answer")


def test_the_plot_has_the_pareto_front_of_all_probes() -> None:
    evaluation = tuned()
    drawing = TuningPlot().draw([evaluation], list(TuningReport().rows([evaluation])))

    assert drawing is not None
    [chart] = drawing.charts
    series = {each.group: each for each in chart.series}  # type: ignore[union-attr]
    front = series["Pareto front"]
    assert list(front.x) == sorted(front.x)
    assert list(front.y) == sorted(front.y)
    points = [
        point
        for name in ("the best configuration", "others")
        for point in zip(*_xy(series.get(name)), strict=True)
    ]
    for x, y in zip(front.x, front.y, strict=True):
        assert not any(a > x and b < y for a, b in points)


def _xy(series: Any) -> tuple[tuple[float, ...], tuple[float, ...]]:
    return (series.x, series.y) if series else ((), ())
