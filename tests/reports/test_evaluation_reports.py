"""The latency and the accuracy report: golden outputs, and every figure computed independently."""

from __future__ import annotations

import csv
import io
import json
import math
from dataclasses import fields, replace
from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest

from inferometer.evaluators.evaluation import Evaluation
from inferometer.evaluators.kinds.batches.measurement import LatencySummary
from inferometer.evaluators.kinds.registry import find_report
from inferometer.evaluators.reports.base import Report, Row
from inferometer.evaluators.reports.writer import Format, write
from inferometer.manifests.errors import ConfigurationError
from tests.evaluations import changed
from tests.reports.conftest import batch_times
from tests.reports.pictures import REPORTS

ALIASES = {"throughput": "latency", "kernels": "cuda_launch", "max-qps": "max_qps", "op": "operators"}
GOLDEN = Path(__file__).parent / "golden"
WITH_COMMON_COLUMNS = ("latency", "accuracy")
COMMON_KEYS = [
    "id",
    "created_at",
    "model_name",
    "model_version",
    "framework_name",
    "framework_version",
    "machine_architecture",
    "using_gpu",
    "batch_size",
    "hostname",
    "weights",
    "threads",
    "precision",
]


def written(report: Report, evaluations: list[Evaluation], output_format: Format) -> str:
    stream = io.StringIO()
    write(report.columns, report.rows(evaluations), output_format, stream)
    return stream.getvalue()


@pytest.mark.parametrize("name", WITH_COMMON_COLUMNS)
@pytest.mark.parametrize("output_format", Format)
@pytest.mark.parametrize("count", [0, 1, 3])
def test_a_report_is_its_golden_output(
    name: str, output_format: Format, count: int, evaluations: list[Evaluation]
) -> None:
    golden = GOLDEN / f"{name}_{count}.{output_format.value}"

    text = written(find_report(name), evaluations[:count], output_format)

    assert text == golden.read_text(encoding="utf-8")


@pytest.mark.parametrize("name", WITH_COMMON_COLUMNS)
def test_csv_json_and_columns_have_the_same_keys_and_values(name: str, evaluations: list[Evaluation]) -> None:
    report = find_report(name)

    from_csv = list(csv.DictReader(io.StringIO(written(report, evaluations, Format.CSV))))
    from_json = json.loads(written(report, evaluations, Format.JSON))

    keys = [column.key for column in report.columns]
    assert keys[: len(COMMON_KEYS)] == COMMON_KEYS
    assert len(from_csv) == len(from_json) == 3
    for csv_row, json_row in zip(from_csv, from_json, strict=True):
        assert list(csv_row) == list(json_row) == keys
        for key in keys:
            value = json_row[key]
            text = "" if value is None else value if isinstance(value, str) else json.dumps(value)
            assert csv_row[key] == text


@pytest.mark.parametrize("name", REPORTS)
def test_headings_print_on_any_terminal(name: str) -> None:
    for column in find_report(name).columns:
        assert (column.key + column.header).isascii()


@pytest.mark.parametrize("name", REPORTS)
def test_a_row_has_a_value_for_every_column_and_no_other(name: str, evaluations: list[Evaluation]) -> None:
    report = find_report(name)

    for row in report.rows(report.taken(evaluations)):
        assert set(row) == {column.key for column in report.columns}


def type_7(values: list[int], percent: int) -> Fraction:
    ordered = sorted(values)
    place = Fraction((len(ordered) - 1) * percent, 100)
    low = math.floor(place)
    high = min(low + 1, len(ordered) - 1)
    return ordered[low] + (ordered[high] - ordered[low]) * (place - low)


def test_latency_figures_are_those_of_exact_arithmetic(evaluations: list[Evaluation]) -> None:
    six, three, none = find_report("latency").rows(evaluations)

    full = [2_000_000, 1_000_000, 3_000_000, 2_500_000, 9_000_000, 1_500_000]
    exact = {
        "latency_ms_trimmed_mean": Fraction(sum(sorted(full)[1:5]), 4 * 10**6),
        "latency_ms_mean": Fraction(sum(full), 6 * 10**6),
        "throughput_inputs_per_s": Fraction(6 * 16 * 10**9, sum(full)),
        "end_to_end_inputs_per_s": Fraction(100 * 10**9, 50_000_000),
    }
    assert {key: six[key] for key in exact} == pytest.approx(
        {k: float(v) for k, v in exact.items()}, rel=1e-12
    )
    assert six["measured_batches"] == 6

    full = [123_457, 130_001, 120_000]  # the batch that lost an input is no full one
    exact = {
        "latency_ms_trimmed_mean": Fraction(123_457, 10**6),  # of three, the median
        "latency_ms_mean": Fraction(sum(full), 3 * 10**6),
        "throughput_inputs_per_s": Fraction(3 * 8 * 10**9, sum(full)),
        "end_to_end_inputs_per_s": Fraction(31 * 10**9, 3_000_000),
    }
    assert {key: three[key] for key in exact} == pytest.approx(
        {k: float(v) for k, v in exact.items()}, rel=1e-12
    )
    assert three["measured_batches"] == 3

    percentiles = [f"latency_ms_p{percent}" for percent in (50, 90, 99)]
    assert {row[key] for row in (six, three) for key in percentiles} == {None}

    assert none["measured_batches"] == 0
    assert none["end_to_end_inputs_per_s"] == 5 / 0.008
    assert none["throughput_inputs_per_s"] is None
    assert {none[key] for key in none if key.startswith("latency_ms")} == {None}


@pytest.mark.parametrize(("percent", "needed"), [(50, 10), (90, 50), (99, 500)])
def test_a_percentile_is_a_number_from_as_many_batches_as_carry_it(
    percent: int, needed: int, evaluations: list[Evaluation]
) -> None:
    full = [1_000_000 + 1000 * (n * 7919 % 613) for n in range(needed)]
    rows = [latency_row(evaluations[0], full[:count]) for count in (needed - 1, needed)]

    assert rows[0][f"latency_ms_p{percent}"] is None
    assert rows[1][f"latency_ms_p{percent}"] == pytest.approx(float(type_7(full, percent) / 10**6), rel=1e-12)


def test_intervals_hold_their_figures_from_fifty_batches_on(evaluations: list[Evaluation]) -> None:
    full = [1_000_000 + 1000 * (n * 7919 % 613) for n in range(200)]
    few, many = (latency_row(evaluations[0], full[:count]) for count in (49, 200))

    for key in ("latency_ms_mean", "latency_ms_p50", "latency_ms_p90", "throughput_inputs_per_s"):
        assert few[f"{key}_low"] is None
        assert few[f"{key}_high"] is None
        low, value, high = (float(many[each] or 0) for each in (f"{key}_low", key, f"{key}_high"))
        assert 0.7 * value < low < value < high < 1.3 * value
    ends = (many["latency_ms_mean_high"], many["latency_ms_mean_low"])
    assert [16 * 1000 / float(end or 0) for end in ends] == pytest.approx(
        [many["throughput_inputs_per_s_low"], many["throughput_inputs_per_s_high"]]
    )


def latency_row(evaluation: Evaluation, predict_ns: list[int]) -> Row:
    """The row of an evaluation whose batches of 16 took these times."""
    times = batch_times([16] * len(predict_ns), predict_ns)
    [row] = find_report("latency").rows([changed(evaluation, times=times)])
    return row


def test_accuracy_is_counted_over_the_evaluated_inputs(evaluations: list[Evaluation]) -> None:
    keys = ("top1_accuracy", "top5_accuracy", "evaluated_inputs", "failed_inputs")

    figures = [tuple(row[key] for key in keys) for row in find_report("accuracy").rows(evaluations)]

    assert figures == [(0.98, 1.0, 100, 0), (30 / 31, 1.0, 31, 1), (None, None, 0, 0)]


def test_the_common_columns_say_what_ran_on_what(evaluations: list[Evaluation]) -> None:
    row = next(iter(find_report("accuracy").rows(evaluations[1:])))

    assert [row[key] for key in COMMON_KEYS] == [
        "22222222-2222-4222-8222-222222222222",
        "2026-03-01T23:00:00.007+00:00",  # in UTC, wherever it began
        "DigitsCNN",
        "1.0",
        "MXNet",
        "1.9.1",  # the installed version, not the manifest's constraint
        "x86_64",
        True,
        8,
        "bench-1",
        "pretrained",
        1,
        "float32",
    ]


def test_rows_come_in_the_order_of_the_evaluations_and_leave_them_alone(
    evaluations: list[Evaluation],
) -> None:
    report = find_report("latency")

    forward = list(report.rows(evaluations))
    backward = list(report.rows(evaluations[::-1]))

    assert backward == forward[::-1]
    assert list(report.rows(evaluations)) == forward


def test_an_evaluation_in_which_nothing_was_predicted_has_no_figures(evaluations: list[Evaluation]) -> None:
    zeros = np.zeros(2, np.int64)
    batches = replace(evaluations[0].measurement.times, **dict.fromkeys(("sizes", "predict_ns"), zeros))

    summary = LatencySummary.of(replace(evaluations[0].measurement, times=batches))

    figures = {field.name for field in fields(LatencySummary)} - {"measured_batches"}
    assert summary == LatencySummary(measured_batches=0, **dict.fromkeys(figures))


def test_times_that_no_clock_could_tell_give_no_throughput(evaluations: list[Evaluation]) -> None:
    batches = replace(evaluations[0].measurement.times, predict_ns=np.zeros(7, np.int64))

    summary = LatencySummary.of(replace(evaluations[0].measurement, times=batches, elapsed_ns=0))

    assert (summary.mean_ns, summary.throughput_inputs_per_s, summary.end_to_end_inputs_per_s) == (
        0,
        None,
        None,
    )


class TestRegistry:
    @pytest.mark.parametrize(
        ("name", "found"), [*((name, name) for name in REPORTS), *ALIASES.items(), ("Latency", "latency")]
    )
    def test_a_report_is_found_by_name_and_alias(self, name: str, found: str) -> None:
        report = find_report(name)

        assert report.name == found
        assert report.summary

    def test_throughput_is_the_latency_report(self) -> None:
        assert find_report("throughput").name == "latency"

    def test_an_unknown_report_is_refused_with_the_nearest(self) -> None:
        with pytest.raises(ConfigurationError, match=r'unknown report "latancy"; did you mean "latency"'):
            find_report("latancy")
