"""The report on generated answers: golden outputs, the summary, the picture, and the documents."""

from __future__ import annotations

import io
from pathlib import Path

import pytest

from inferometer.evaluators.evaluation import Evaluation
from inferometer.evaluators.kinds.registry import find_report, kind_of
from inferometer.evaluators.reports.writer import Format, write
from tests.evaluations import changed
from tests.generated_answers import answer, measured, sixty

GOLDEN = Path(__file__).parent / "golden"


@pytest.mark.parametrize("output_format", Format)
@pytest.mark.parametrize("count", [0, 1])
def test_the_report_is_its_golden_output(
    output_format: Format, count: int, evaluations: list[Evaluation]
) -> None:
    report, stream = find_report("generation"), io.StringIO()
    found = [changed(evaluations[0], measurement=sixty())]

    write(report.columns, report.rows(found[:count]), output_format, stream)

    golden = GOLDEN / f"generation_{count}.{output_format.value}"
    assert stream.getvalue() == golden.read_text(encoding="utf-8")


def test_the_summary_tells_the_figures_and_what_is_missing(evaluations: list[Evaluation]) -> None:
    evaluation = changed(evaluations[0], measurement=sixty())

    told = [f"{name}: {text}" for name, text in kind_of(evaluation).summary(evaluation)]

    assert "requests: 54 (52 answered, 1 failed, 1 timed_out), after 6 of the empty start" in told
    assert ": 1 failed: the stream has an error: overload" in told
    assert ": answers without content, and so without TTFT: 1" in told
    assert any(line.startswith("goodput: ") and line.endswith("kept every bound") for line in told)


def test_a_bound_that_cannot_be_judged_is_named(evaluations: list[Evaluation]) -> None:
    uncounted = measured([answer(0, 5, 2)], options={"tpot_bound_ms": 3.0}, tokens_by="")
    evaluation = changed(evaluations[0], measurement=uncounted)

    assert dict(kind_of(evaluation).summary(evaluation))["goodput"] == "not known: TPOT is not"


def test_nothing_was_answered(evaluations: list[Evaluation]) -> None:
    evaluation = changed(evaluations[0], measurement=measured([], options={"ttft_bound_ms": 3.0}))

    told = dict(kind_of(evaluation).summary(evaluation))

    assert (told["requests"], told["rate"]) == ("0 (none)", "not known")
    assert not list(kind_of(evaluation).drawings(evaluation, 100))


def test_the_distribution_of_ttft_ends_below_1_if_requests_failed(evaluations: list[Evaluation]) -> None:
    evaluation = changed(evaluations[0], measurement=sixty())

    [drawing] = kind_of(evaluation).drawings(evaluation, 100)

    assert [chart.series[0].y[-1] for chart in drawing.charts] == [51 / 53, 1]


@pytest.mark.parametrize(("gap_ms", "held"), [(0, True), (8, False)])
def test_the_summary_tells_that_chunks_were_held_back(
    gap_ms: float, held: bool, evaluations: list[Evaluation]
) -> None:
    found = measured([answer(100 * n, 50, gap_ms) for n in range(60)])
    evaluation = changed(evaluations[0], measurement=found)

    told = [text for _, text in kind_of(evaluation).summary(evaluation)]

    assert any("in one piece with the one before" in text for text in told) is held
