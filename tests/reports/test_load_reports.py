"""The reports on load: golden outputs, and figures computed independently from the queries."""

from __future__ import annotations

import io
import json
from dataclasses import replace
from fractions import Fraction
from pathlib import Path

import pytest

from inferometer.evaluators.evaluation import Evaluation
from inferometer.evaluators.kinds.load.measurement import (
    LoadMeasurement,
    MixMeasurement,
    MixSearchMeasurement,
    MlperfResult,
    RateAnswer,
    RateSearchMeasurement,
)
from inferometer.evaluators.kinds.load.report import ProbesReport
from inferometer.evaluators.kinds.load.summary import mix_search_rows
from inferometer.evaluators.kinds.registry import find_report
from inferometer.evaluators.kinds.reports import OverviewReport
from inferometer.evaluators.load.queries import Outcome
from inferometer.evaluators.reports.base import Report, Row
from inferometer.evaluators.reports.writer import Format, write
from tests.reports.loads import MS, mix_search

GOLDEN = Path(__file__).parent / "golden"
PERCENTILES = {"p50": 50, "p90": 90, "p95": 95, "p99": 99, "p99_9": Fraction(999, 10)}
NAMES = ("workload", "max_qps", "probes", "parts", "mix", "mix_search")


@pytest.fixture
def reported(
    workloads: list[Evaluation],
    searches: list[Evaluation],
    mixes: list[Evaluation],
    mix_searches: list[Evaluation],
) -> dict[str, list[Evaluation]]:
    loads = {"workload": workloads, "parts": workloads, "mix": mixes, "mix_search": mix_searches}
    return {**loads, "max_qps": searches, "probes": [*searches, *mix_searches]}


def report_of(name: str) -> Report:
    return ProbesReport() if name == "probes" else find_report(name)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("output_format", Format)
@pytest.mark.parametrize("count", [0, 1, 3])
def test_a_report_on_load_is_its_golden_output(
    name: str, output_format: Format, count: int, reported: dict[str, list[Evaluation]]
) -> None:
    report, stream = report_of(name), io.StringIO()

    write(report.columns, report.rows(reported[name][:count]), output_format, stream)

    golden = GOLDEN / f"{name}_{count}.{output_format.value}"
    assert stream.getvalue() == golden.read_text(encoding="utf-8")


@pytest.mark.parametrize("name", NAMES)
def test_a_report_on_load_leaves_other_evaluations_out(
    name: str, evaluations: list[Evaluation], reported: dict[str, list[Evaluation]]
) -> None:
    kinds = ("workload", "max_qps", "mix", "mix_search")
    everything = [*evaluations, *(each for kind in kinds for each in reported[kind])]

    report = report_of(name)
    ids = {row["id"] for row in report.rows(report.taken(everything))}

    assert ids == {each.id for each in reported[name]}
    takes = {
        "workload": (LoadMeasurement,),
        "parts": (LoadMeasurement,),
        "max_qps": (RateSearchMeasurement,),
        "mix": (MixMeasurement,),
        "mix_search": (MixSearchMeasurement,),
        "probes": (RateSearchMeasurement, MixSearchMeasurement),
    }
    assert report.takes == takes[name]
    for row in report.rows(report.taken(everything)):
        assert set(row) == {column.key for column in report.columns}


def type_7_ms(values_ms: list[float], percent: int | Fraction) -> float:
    ordered = [Fraction(value).limit_denominator(10**9) for value in sorted(values_ms)]
    place = Fraction(len(ordered) - 1) * percent / 100
    low = int(place)
    high = min(low + 1, len(ordered) - 1)
    return float(ordered[low] + (ordered[high] - ordered[low]) * (place - low))


def test_a_workloads_figures_are_those_of_its_queries_after_the_empty_start(
    workloads: list[Evaluation],
) -> None:
    [row] = find_report("workload").rows(workloads[:1])

    latency_ms = [float(1 + n * 7 % 12) for n in range(1200)]
    counted = latency_ms[120:]  # due from 1.2 s on, one every 10 ms
    assert {name: row[f"latency_ms_{name}"] for name in PERCENTILES} == pytest.approx(
        {name: type_7_ms(counted, percent) for name, percent in PERCENTILES.items()}
    )
    for name in ("p50", "p90", "p95"):
        low, value, high = (row[f"latency_ms_{name}{end}"] for end in ("_low", "", "_high"))
        assert isinstance(low, float)
        assert isinstance(value, float)
        assert isinstance(high, float)
        assert low <= value <= high
    assert row["service_ms_p50"] == pytest.approx(0.9 * type_7_ms(counted, 50))
    assert row["service_ms_p99"] == pytest.approx(0.9 * type_7_ms(counted, 99))
    assert row["queue_ms_p99"] == pytest.approx(type_7_ms(counted, 99) / 4)
    assert row["predict_ms_p50"] == pytest.approx(type_7_ms(counted, 50) / 2)
    assert row["lag_ms_p99"] == pytest.approx(type_7_ms(latency_ms, 99) / 10)  # of the whole run
    assert row["queries"] == row["answered"] == 1080
    assert row["late_share"] == pytest.approx(sum(each > 10 for each in counted) / 1080)
    assert row["rate_qps"] == 100
    assert row["target_qps"] == pytest.approx(100)
    # from the first that counts to the last answer, with the answers that came in this time: query 119, due
    # 10 ms before, was answered after 1 + 119·7 mod 12 = 6 ms
    end_s = max((n * 10 + each) / 1000 for n, each in enumerate(latency_ms)) - 1.2
    assert row["achieved_qps"] == pytest.approx(1080 / end_s)
    assert row["goodput_qps"] == pytest.approx(sum(each <= 10 for each in counted) / end_s, rel=2e-3)
    # of three queries that follow each other, one was alone and two were together
    assert row["mean_batch_size"] == pytest.approx(1080 / (360 + 720 / 2))
    assert row["repeated_answers"] == 2
    assert (row["seed"], row["schedule_checksum"], row["concurrency"]) == (3, "sha256:100", None)
    assert (row["stopped"], row["invalid"]) == (None, None)


def test_every_query_of_an_overloaded_run_is_counted_once_and_late_ones_have_no_end(
    workloads: list[Evaluation],
) -> None:
    [row] = find_report("workload").rows(workloads[1:2])

    assert [row[key] for key in ("queries", "answered", "failed", "timed_out", "waiting")] == [12, 6, 3, 2, 1]
    assert row["late_share"] == 0.5
    # the middle is between the longest answer and the first that never came
    assert row["latency_ms_p50"] == row["latency_ms_p99"] == float("inf")
    assert row["stopped"] == "the backlog grew without end"
    assert str(row["invalid"]).startswith("p99 of the harness's own lag is 22 ms")
    assert row["latency_bound_ms"] is None


def test_loadgens_verdict_is_that_of_the_run(workloads: list[Evaluation]) -> None:
    result = MlperfResult("5.1", False, ("too few queries",), 10, None, None, (), None, True, "logs")
    measured = workloads[0].measurement
    assert isinstance(measured, LoadMeasurement)
    measured = replace(measured, mlperf=result)

    for report in (find_report("workload"), OverviewReport()):
        [row] = report.rows([replace(workloads[0], measurement=measured)])
        assert (row["verdict"], row["invalid"]) == ("INVALID", "LoadGen calls it INVALID")


def test_a_closed_loop_has_no_rate_that_was_asked_for(workloads: list[Evaluation]) -> None:
    [row] = find_report("workload").rows(workloads[2:])

    keys = ("arrival", "concurrency", "rate_qps", "seed", "schedule_checksum")
    assert [row[key] for key in keys] == ["closed loop, 4 in flight", 4, None, None, None]


def test_a_search_has_its_answer_and_what_it_took(searches: list[Evaluation]) -> None:
    found, none, unlimited = find_report("max_qps").rows(searches)

    keys = ("max_qps", "max_qps_low", "max_qps_high", "method")
    assert [found[key] for key in keys] == [120.04, 118.7, 121.3, "single server"]
    assert [none[key] for key in keys] == [None, None, None, "none"]
    assert [unlimited[key] for key in keys] == [400, 400, None, "at least"]
    assert [found[key] for key in ("percentile", "latency_bound_ms")] == [99, 10]
    assert [found[key] for key in ("probes", "stopped_probes", "invalid_probes")] == [3, 1, 1]
    # the last arrival or answer of each: of query 1399; of 29, due at 29 ms and answered 60 ms later; of 39
    assert found["load_s"] == pytest.approx((13_990 + 1 + 1399 % 8 + 89 + 393) / 1000)
    assert none["note"] == "50 of 50 queries were late"
    assert found["note"] is None


def test_a_search_that_was_stopped_has_no_answer(searches: list[Evaluation]) -> None:
    load = searches[0].measurement
    assert load is not None

    [row] = find_report("max_qps").rows([replace(searches[0], measurement=replace(load, answer=None))])

    assert [row[key] for key in ("max_qps", "method", "note")] == [None, None, "the search was stopped"]


def test_probes_are_judged_without_their_empty_start(searches: list[Evaluation]) -> None:
    whole, stopped, invalid = ProbesReport().rows(searches[:1])

    # ten bounds of 10 ms are left out: the first ten queries of one every 10 ms
    judged = [1.0 + n % 8 for n in range(10, 1400)]
    assert (whole["queries"], whole["judged_queries"]) == (1400, 1390)
    assert whole["latency_ms_p50"] == pytest.approx(type_7_ms(judged, 50))
    assert whole["latency_ms_percentile"] == pytest.approx(type_7_ms(judged, 99))
    assert whole["latency_ms_p99_9"] == pytest.approx(type_7_ms(judged, PERCENTILES["p99_9"]))
    assert whole["late_share"] == 0
    assert (whole["stopped"], whole["invalid"]) == (None, None)
    # a quarter of 59 ms is left out, and what was due less than a bound before the end at 89 ms is not:
    # queries 15…59, of which the last 30 wait, and of the others all have more than 10 ms
    assert stopped["waiting"] == 30
    assert stopped["judged_queries"] == 45
    assert stopped["late_share"] == 1
    assert stopped["latency_ms_percentile"] == float("inf")
    assert stopped["latency_ms_p99_9"] is None  # of too few queries
    assert stopped["stopped"] == "too many queries were late"
    assert invalid["invalid"] == "the machine was too busy"
    assert [row["probe"] for row in (whole, stopped, invalid)] == [0, 1, 2]
    assert [row["rate_qps"] for row in (whole, stopped, invalid)] == [100, 1000, 120]


def test_json_has_null_where_a_percentile_has_no_end_and_csv_inf(workloads: list[Evaluation]) -> None:
    report = find_report("workload")
    texts = {}
    for output_format in (Format.JSON, Format.CSV):
        stream = io.StringIO()
        write(report.columns, report.rows(workloads[1:2]), output_format, stream)
        texts[output_format] = stream.getvalue()

    [row] = json.loads(texts[Format.JSON])
    assert row["latency_ms_p99"] is None
    assert ",inf," in texts[Format.CSV]


def test_both_spellings_find_the_search_report() -> None:
    rows: list[list[Row]] = [list(find_report(name).rows([])) for name in ("max-qps", "MAX_QPS")]
    assert rows == [[], []]
    assert find_report("max-qps").name == find_report("Max_Qps").name == "max_qps"


def test_lag_is_of_the_queries_that_were_sent(workloads: list[Evaluation]) -> None:
    load = workloads[1].measurement
    assert isinstance(load, LoadMeasurement)
    run = load.run
    unsent = replace(run.queries, sent_ns=run.queries.sent_ns.copy())
    unsent.sent_ns[run.queries.outcome == Outcome.ANSWERED] = -1

    changed = replace(workloads[1], measurement=replace(load, run=replace(run, queries=unsent)))
    [row] = find_report("workload").rows([changed])

    assert row["lag_ms_p99"] == pytest.approx(0.1 * MS / MS)


def test_a_mix_that_keeps_its_bounds_at_no_factor_says_none() -> None:
    none = RateAnswer(None, None, None, "none", "a: 12 of 12 queries were late")
    rows = dict(mix_search_rows(mix_search("a", 100.0, (1,), answer=none, limited_by="a")))

    assert rows["factor"] == "none, limited by a"
