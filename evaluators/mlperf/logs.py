"""LoadGen's log, and the result in it."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from inferometer.evaluators.kinds.load.measurement import MlperfResult, Scenario
from inferometer.manifests.errors import OutputError

_DETAIL = "mlperf_log_detail.txt"
_MARK = ":::MLLOG "
_PERCENTS = ("50.00", "90.00", "95.00", "97.00", "99.00", "99.90")
_RATES = {
    Scenario.SINGLE_STREAM: "result_qps_with_loadgen_overhead",
    Scenario.SERVER: "result_completed_samples_per_sec",
    Scenario.OFFLINE: "result_samples_per_second",
}
_EARLY_STOPPING = {
    Scenario.SINGLE_STREAM: "early_stopping_latency_ss",
    Scenario.MULTI_STREAM: "early_stopping_latency_ms",
}
_CANCELLED = "the run was cancelled before LoadGen ended it"
_CONDITIONS = {
    "result_perf_constraints_met": "the latency bound is not kept",
    "result_min_duration_met": "it was shorter than the minimum duration",
    "result_min_queries_met": "it had fewer queries than the minimum",
    "early_stopping_met": "early stopping is not satisfied",
}


class MlperfLog:
    """The log of a run of LoadGen, by its keys.

    Args:
        directory: The directory of the logs.

    Raises:
        OutputError: There is no log, or it cannot be read.
    """

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        path = directory / _DETAIL
        try:
            lines = path.read_text(encoding="utf-8", errors="replace").splitlines()
        except OSError as error:
            raise OutputError(f"{path}: LoadGen's log cannot be read: {error.strerror}") from error
        entries = list(_entries(lines))
        self._values: dict[str, Any] = {str(entry["key"]): entry.get("value") for entry in entries}
        self._errors = tuple(
            _line(entry.get("value")) for entry in entries if entry.get("metadata", {}).get("is_error")
        )

    @property
    def generated(self) -> tuple[int, int]:
        """How many queries were prepared, and when the one after them would have been due, in nanoseconds.

        Both are 0 if the log does not say.
        """
        values = self._values
        return int(values.get("generated_query_count") or 0), int(values.get("generated_query_duration") or 0)

    def result(self, scenario: Scenario, *, ended: bool, clock_known: bool) -> MlperfResult:
        """Returns the result; that of a run that was cancelled is invalid, and has no figures.

        Args:
            scenario: The scenario of the run.
            ended: Whether LoadGen ended the run. A cancelled run may have figures, too, which count samples
                without an answer.
            clock_known: See ``MlperfResult``.
        """
        ended = ended and "result_validity" in self._values
        # the version is logged before the run
        values: Mapping[str, Any] = (
            self._values if ended else {"loadgen_version": self._values.get("loadgen_version")}
        )
        key = "result_{}_percentile_latency_ns"
        mean = "result_mean_latency_ns"
        if scenario is Scenario.MULTI_STREAM:
            key, mean = "result_{}_percentile_per_query_latency_ns", "result_mean_query_latency_ns"
        percentiles = tuple(
            (float(percent), int(values[name]))
            for percent in _PERCENTS
            if (name := key.format(percent)) in values
        )
        queries = int(values.get("result_query_count") or 0)
        if scenario is Scenario.OFFLINE:
            queries *= int(values.get("generated_samples_per_query") or 0)
        rate = values.get(_RATES.get(scenario, ""))
        early = values.get(_EARLY_STOPPING.get(scenario, ""))
        return MlperfResult(
            version=str(values.get("loadgen_version") or "").split(" @ ")[0],
            valid=values.get("result_validity") == "VALID",
            reasons=(*self._reasons(), *self._errors) if ended else (_CANCELLED,),
            queries=queries,
            rate_qps=None if rate is None else float(rate),
            mean_ns=int(values[mean]) if mean in values else None,
            percentiles_ns=percentiles,
            early_stopping_ns=int(early) if early else None,
            clock_known=clock_known,
            log_directory=str(self._directory),
        )

    def _reasons(self) -> Iterator[str]:
        """Yields why the run is invalid."""
        values = self._values
        for key, text in _CONDITIONS.items():
            if values.get(key) is False:
                more = _line(values.get("early_stopping_result")) if key == "early_stopping_met" else ""
                yield f"{text}: {more}" if more else text
        if advice := _line(values.get("result_invalid_reason")):
            yield advice


def _entries(lines: list[str]) -> Iterator[Mapping[str, Any]]:
    """Yields the entries of a log; malformed lines, such as a truncated one, are skipped."""
    for line in lines:
        try:
            entry = json.loads(line.removeprefix(_MARK)) if line.startswith(_MARK) else None
        except (ValueError, RecursionError):
            continue
        if isinstance(entry, dict) and "key" in entry:
            yield entry


def _line(text: object) -> str:
    """Returns a text of LoadGen's as one line, without its bullets."""
    words = " ".join(str(text or "").replace(" * ", " ").split())
    return words.removeprefix("* ")
