"""The report on generated answers: golden outputs, the summary, the picture, and the documents."""

from __future__ import annotations

import io
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from inferometer.client.web.documents import evaluation_document, page_reports
from inferometer.evaluators.evaluation import Evaluation
from inferometer.evaluators.kinds.registry import find_plot, find_report, kind_of
from inferometer.evaluators.load.server_statistics import ServerSeries
from inferometer.evaluators.reports.writer import Format, write
from tests.evaluations import changed
from tests.generated_answers import MS, answer, measured, sixty
from tests.reports.loads import bounded

GOLDEN = Path(__file__).parent / "golden"


@pytest.mark.parametrize("output_format", Format)
@pytest.mark.parametrize(("name", "count"), [("generation", 0), ("generation", 1), ("generation_search", 2)])
def test_the_report_is_its_golden_output(
    output_format: Format, name: str, count: int, evaluations: list[Evaluation]
) -> None:
    report, stream = find_report(name), io.StringIO()
    found = [changed(evaluations[0], measurement=sixty())]
    if name == "generation_search":
        found = [bounded(evaluations[0], "TTFT"), bounded(evaluations[1], "TPOT")]

    write(report.columns, report.rows(found[:count]), output_format, stream)

    golden = GOLDEN / f"{name}_{count}.{output_format.value}"
    assert stream.getvalue() == golden.read_text(encoding="utf-8")


def test_the_summary_tells_the_figures_and_what_is_missing(evaluations: list[Evaluation]) -> None:
    evaluation = changed(evaluations[0], measurement=sixty())

    told = [f"{name}: {text}" for name, text in kind_of(evaluation).summary(evaluation)]

    assert "requests: 54 (52 answered, 1 failed, 1 timed_out), after 6 of the empty start" in told
    assert ": 1 failed: the stream has an error: overload" in told
    assert ": answers without content, and so without TTFT: 1" in told
    assert any(line.startswith("goodput: ") and line.endswith("kept every bound") for line in told)


def test_answers_without_usage_are_told_beside_the_tokens(evaluations: list[Evaluation]) -> None:
    answers = [answer(100 * n, 5, 2, **({"output_tokens": -1} if n < 7 else {})) for n in range(60)]
    evaluation = changed(evaluations[0], measurement=measured(answers))

    told = "answers whose tokens are not known, and not in the tokens/s: 7"
    assert told in [text for _, text in kind_of(evaluation).summary(evaluation)]


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

    drawing, _ = kind_of(evaluation).drawings(evaluation, 100)

    assert [chart.series[0].y[-1] for chart in drawing.charts] == [51 / 53, 1]


def test_the_requests_of_a_run_are_drawn_over_time_above_the_series_of_the_server(
    evaluations: list[Evaluation],
) -> None:
    found = sixty()
    at_ns = np.arange(0, 6_000 * MS, 1_000 * MS)
    figures = {"in_flight": at_ns * 0.0 + 3, "prefix_tokens": at_ns / 1e7, "prefix_hits": at_ns / 4e7}
    server = (ServerSeries("metrics at http://host/metrics", at_ns, at_ns * 0, figures),)
    evaluation = changed(evaluations[0], measurement=replace(found, run=replace(found.run, server=server)))

    _, requests, read = kind_of(evaluation).drawings(evaluation, 100)

    [chart] = requests.charts
    drawn = {series.group: dict(zip(series.y, series.x, strict=True)) for series in chart.series}
    assert requests.title == "The requests during this run"
    assert (chart.x_axis, chart.y_axis) == ("s since the run began", "request")
    assert drawn["due"] == pytest.approx({n + 1: n / 10 for n in range(60)})
    assert drawn["first token"][4] == pytest.approx(0.353)
    assert len(drawn["first token"]) == 58
    assert drawn["no right answer"].keys() == {21, 31}
    assert max(drawn["chunk"]) == 60
    levels = {series.group: series.y for each in read.charts for series in each.series}
    assert levels == {"in flight": (3,) * 6, "prefix hits": (0.25,) * 5}


def test_several_runs_are_drawn_with_the_tokens_of_a_user_against_those_in_all(
    evaluations: list[Evaluation],
) -> None:
    runs = [[answer(gap * n, 50, 8 + gap / 100) for n in range(60)] for gap in (100, 50)]
    several = [
        changed(each, measurement=measured(answers, gap_ms=gap_ms, options={"ttft_bound_ms": bound_ms}))
        for each, answers, gap_ms, bound_ms in zip(evaluations, runs, (100, 50), (40.0, 60.0), strict=False)
    ]

    rows = list(find_report("generation").rows(several))
    tokens, ttft, tpot = find_plot(find_report("generation")).draw(several, rows).charts

    users, totals = ([row[name] for row in rows] for name in ("user_tokens_per_s", "output_tokens_per_s"))
    points = [(series.x, series.y) for series in tokens.series if not series.line]
    assert points == [((user,), (total,)) for user, total in zip(users, totals, strict=True)]
    assert "tokens/s of a user" in tokens.x_axis
    assert [len(chart.series) for chart in (ttft, tpot)] == [2, 2]
    assert [rule.at for rule in ttft.rules] == [40, 60]
    page = evaluation_document(several[0], several[1:2], page_reports(), lambda _: iter(()))
    assert [chart["title"] for chart in page["charts"]].count("All runs of the group") == 1
    assert page["charts"][-1]["y_axis"] == tokens.y_axis
    assert page["group"][0]["text"].endswith(", constant at 20 requests/s, seed 3")
    alone = evaluation_document(several[0], (), page_reports(), lambda _: iter(()))
    assert alone["charts"] == page["charts"][:-1]


@pytest.mark.parametrize(("gap_ms", "held"), [(0, True), (8, False)])
def test_the_summary_tells_that_chunks_were_held_back(
    gap_ms: float, held: bool, evaluations: list[Evaluation]
) -> None:
    found = measured([answer(100 * n, 50, gap_ms) for n in range(60)])
    evaluation = changed(evaluations[0], measurement=found)

    told = [text for _, text in kind_of(evaluation).summary(evaluation)]

    assert any("in one piece with the one before" in text for text in told) is held


def test_a_search_names_its_bounds_and_the_one_that_limits_it(evaluations: list[Evaluation]) -> None:
    one, other = bounded(evaluations[0], "TTFT"), bounded(evaluations[1], "TPOT")

    told = dict(kind_of(one).summary(one))
    assert told["max QPS"] == (
        "4.20 [3.90, 4.50] queries/s with TTFT p99 <= 10 ms and TPOT p95 <= 40 ms, limited by TTFT"
    )
    assert told["TTFT alone"] == "4.20 [3.90, 4.50] queries/s at p99 <= 10 ms"
    assert dict(kind_of(other).summary(other))["TPOT alone"] == "at least 8 queries/s at p99 <= 10 ms"
    [drawing] = kind_of(other).drawings(other, 100)
    [chart] = drawing.charts
    assert (chart.y_axis, chart.x_axis) == ("TPOT (ms)", "rate (queries/s)")
    assert "TPOT: max QPS 4.20 [3.90, 4.50]" in chart.heading.detail
    words = ("--rate=2", "--ttft_bound=450", "--tpot_bound=40", "--percentile=95")
    assert kind_of(one).again(one).words == ("measure", "generation_search", *words)
    stopped = changed(one, measurement=replace(one.measurement, answer=None, own=None, limited_by=""))
    assert dict(kind_of(one).summary(stopped))["max QPS"] == "no answer: the search was stopped"
