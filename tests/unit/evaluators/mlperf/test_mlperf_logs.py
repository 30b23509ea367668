"""LoadGen's log as a result: verdict, reasons and figures, and damaged logs."""

import json
from pathlib import Path

import pytest

from inferometer.evaluators.kinds.load.measurement import Scenario
from inferometer.evaluators.kinds.load.mlperf_settings import MlperfLog
from inferometer.manifests.errors import OutputError

VALUES = {
    "loadgen_version": "6.0.17 @ d6147c7eb7",
    "generated_query_count": 1,
    "generated_samples_per_query": 330,
    "generated_query_duration": 1000000,
    "result_validity": "INVALID",
    "result_min_duration_met": False,
    "result_min_queries_met": True,
    "early_stopping_met": False,
    "result_invalid_reason": "Increase expected QPS. ",
    "early_stopping_result": " * Only processed 100 queries.  * Need to process at least 662 queries.",
    "result_query_count": 1,
    "result_samples_per_second": 1693.44,
    "result_mean_latency_ns": 97,
    "result_50.00_percentile_latency_ns": 98,
    "result_99.90_percentile_latency_ns": 194,
    "result_mean_query_latency_ns": 47,
    "result_50.00_percentile_per_query_latency_ns": 48,
    "early_stopping_latency_ms": 0,
}


def log(directory: Path, values, *, more: str = "", errors=()) -> MlperfLog:
    entries = [(key, value, False) for key, value in values.items()]
    entries += [("error_runtime", text, True) for text in errors]
    lines = [
        ":::MLLOG " + json.dumps({"key": key, "value": value, "metadata": {"is_error": is_error}})
        for key, value, is_error in entries
    ]
    (directory / "mlperf_log_detail.txt").write_text("\n".join(lines) + more)
    return MlperfLog(directory)


def test_the_verdict_its_reasons_and_the_figures_are_read(tmp_path: Path) -> None:
    found = log(tmp_path, VALUES, errors=["Ending early: Max query count reached."])
    result = found.result(Scenario.OFFLINE, ended=True, clock_known=True)

    assert found.generated == (1, 1000000)
    assert result.version == "6.0.17"
    assert not result.valid
    assert result.reasons == (
        "it was shorter than the minimum duration",
        "early stopping is not satisfied: Only processed 100 queries. Need to process at least 662 queries.",
        "Increase expected QPS.",
        "Ending early: Max query count reached.",
    )
    assert result.queries == 330
    assert result.rate_qps == 1693.44
    assert result.mean_ns == 97
    assert result.percentiles_ns == ((50.0, 98), (99.9, 194))
    assert result.early_stopping_ns is None
    assert result.log_directory == str(tmp_path)


def test_multi_stream_is_judged_by_its_queries_and_not_by_their_samples(tmp_path: Path) -> None:
    found = log(tmp_path, VALUES | {"early_stopping_latency_ms": 55, "result_validity": "VALID"})
    result = found.result(Scenario.MULTI_STREAM, ended=True, clock_known=True)

    assert result.valid
    assert (result.mean_ns, result.percentiles_ns) == (47, ((50.0, 48),))
    assert result.early_stopping_ns == 55
    assert result.rate_qps is None


@pytest.mark.parametrize("validity", ["VALID", None])
def test_a_run_that_was_broken_off_has_no_figures(tmp_path: Path, validity: str | None) -> None:
    values = {key: value for key, value in VALUES.items() if key != "result_validity"}
    found = log(tmp_path, values | ({"result_validity": validity} if validity else {}))
    result = found.result(Scenario.OFFLINE, ended=not validity, clock_known=True)

    assert not result.valid
    assert result.reasons == ("the run was cancelled before LoadGen ended it",)
    assert (result.queries, result.rate_qps, result.percentiles_ns) == (0, None, ())
    assert result.version == "6.0.17"


def test_a_line_that_was_cut_off_is_left_out(tmp_path: Path) -> None:
    found = log(tmp_path, VALUES, more='\nsomething else\n:::MLLOG {"key": "result_mean_lat')
    assert found.result(Scenario.OFFLINE, ended=True, clock_known=True).mean_ns == 97


def test_without_a_log_the_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(OutputError, match=r"mlperf_log_detail.txt: LoadGen's log cannot be read"):
        MlperfLog(tmp_path)
