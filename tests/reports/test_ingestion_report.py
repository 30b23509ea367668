"""The report on loaders alone: golden outputs, and figures computed independently from the times."""

from __future__ import annotations

import io
import statistics
from pathlib import Path

import pytest

from inferometer.client.commands.show import lines_of
from inferometer.evaluators.evaluation import Evaluation
from inferometer.evaluators.kinds.ingestion.kind import IngestionMeasurement, ingestion_rows
from inferometer.evaluators.kinds.registry import find_plot, find_report
from inferometer.evaluators.kinds.reports import OverviewReport
from inferometer.evaluators.reports.writer import Format, write
from tests.ingestion_evaluations import WAITS_NS, few, ingested, many, untold

GOLDEN = Path(__file__).parent / "golden"


@pytest.fixture
def loaded(evaluations: list[Evaluation]) -> list[Evaluation[IngestionMeasurement]]:
    return [kind(evaluation) for kind, evaluation in zip((many, few, untold), evaluations, strict=True)]


@pytest.mark.parametrize("output_format", Format)
@pytest.mark.parametrize("count", [0, 1, 3])
def test_the_report_is_its_golden_output(
    output_format: Format, count: int, loaded: list[Evaluation[IngestionMeasurement]]
) -> None:
    report, stream = find_report("ingestion"), io.StringIO()

    write(report.columns, report.rows(loaded[:count]), output_format, stream)

    golden = GOLDEN / f"ingestion_{count}.{output_format.value}"
    assert stream.getvalue() == golden.read_text(encoding="utf-8")


def test_other_evaluations_are_left_out(
    evaluations: list[Evaluation], loaded: list[Evaluation[IngestionMeasurement]]
) -> None:
    report = find_report("ingestion")

    assert report.taken([*evaluations, *loaded]) == loaded
    for row in report.rows(loaded):
        assert set(row) == {column.key for column in report.columns}


def test_rates_are_over_all_batches_and_waits_over_the_full_ones(
    loaded: list[Evaluation[IngestionMeasurement]],
) -> None:
    first, second, third = find_report("ingestion").rows(loaded)

    whole_s = sum(WAITS_NS) / 1e9
    assert first["batches_per_s"] == pytest.approx(600 / whole_s)
    assert first["samples_per_s"] == pytest.approx(32 * 600 / whole_s)
    assert first["bytes_per_s"] == pytest.approx(32_000 * 600 / whole_s)
    assert first["wait_ms_mean"] == pytest.approx(1000 * whole_s / 600)
    assert first["wait_ms_p50"] == pytest.approx(statistics.median(WAITS_NS) / 1e6)
    for name in ("samples_per_s", "wait_ms_mean"):
        low, value, high = (first[f"{name}{end}"] for end in ("_low", "", "_high"))
        assert isinstance(low, float)
        assert isinstance(value, float)
        assert isinstance(high, float)
        assert low < value < high < 1.1 * low
    # 11 of 20 ms, and one of 15 ms without a sample
    assert second["samples_per_s"] == pytest.approx((11 * 32 + 31) / 0.235)
    assert second["wait_ms_mean"] == 20
    assert second["wait_ms_p50"] == 20
    assert [second[f"wait_ms_{name}"] for name in ("p90", "p99", "mean_low", "p50_high")] == [None] * 4
    assert (second["failed_inputs"], second["cached_before"], second["dropped"]) == (1, 0.004, True)
    assert [second[key] for key in ("read_us", "preprocess_us")] == [20, 300]
    assert third["samples_per_s"] == pytest.approx(1000)
    assert [third[key] for key in ("bytes_per_s", "read_us", "wait_ms_mean", "cached_before")] == [None] * 4
    assert [row["worker_kind"] for row in (first, second, third)] == ["processes", None, "threads"]


def test_the_overview_has_the_wait_and_the_rate(loaded: list[Evaluation[IngestionMeasurement]]) -> None:
    rows = list(OverviewReport().rows(loaded))

    assert [row["kind"] for row in rows] == ["ingestion"] * 3
    assert [row["latency_ms_p50"] for row in rows[1:]] == [20, None]
    assert rows[0]["rate_per_s"] == pytest.approx(32 * 600 / sum(WAITS_NS) * 1e9)


def test_a_person_reads_what_was_loaded_and_how_fast(loaded: list[Evaluation[IngestionMeasurement]]) -> None:
    first, second, third = (dict(ingestion_rows(each)) for each in loaded)

    assert first["data"] == (
        "digits_validation (image_folder), shuffled by seed 3, by 2 processes, 4 batches ahead"
    )
    seconds = sum(WAITS_NS) / 1e9
    assert first["throughput"].startswith(f"{19200 / seconds:.1f} [")
    assert first["throughput"].endswith(
        f"samples/s  {600 / seconds:.2f} batches/s  {19.2 / seconds:.2f} MB/s read, 19200 samples in "
        f"{seconds:.3f} s"
    )
    assert "p99 11.000  ms per batch of 32, over 600 full batches" in first["wait"]
    assert first["page cache"] == "100.0 % of the dataset was in it before"
    assert second["page cache"] == "0.4 % of the dataset was in it before, from which it was dropped"
    assert second["a sample"] == (
        "read 20.0  preprocess 300.0  us, means in the thread that does so; 52.2 % of the workers' time"
    )
    assert "CONTRADICTION" not in second
    assert second[""] == "no 95 % intervals, which need 50 full batches"
    assert (second["failures"], third["failures"]) == ("1", "0")
    assert "by the calling thread" in second["data"]
    assert "by the framework's own iterator, 3 threads" in third["data"]
    assert third["wait"] == "not known: no batch held 32 samples"
    assert third["a sample"] == "not known: the framework's iterator does not tell"
    assert third["page cache"].startswith("not known")


def test_one_evaluation_is_shown_with_its_figures(loaded: list[Evaluation[IngestionMeasurement]]) -> None:
    lines = list(lines_of(loaded[0], (), lambda _: iter(())))

    assert any(line.startswith("throughput    ") and line.endswith("6.119 s") for line in lines)


def test_nothing_measured_has_no_figures(evaluations: list[Evaluation]) -> None:
    [row] = find_report("ingestion").rows([ingested(evaluations[0], [], [])])

    assert (row["samples_per_s"], row["wait_ms_p50"], row["measured_batches"]) == (None, None, 0)


def test_the_picture_has_each_batch(loaded: list[Evaluation[IngestionMeasurement]]) -> None:
    rows = list(find_report("ingestion").rows(loaded))

    drawing = find_plot(find_report("ingestion")).draw(loaded, rows)

    assert drawing is not None
    assert [len(chart.series[0].x) for chart in drawing.charts] == [600, 12, 2]
