"""The report on loaders that ran alone."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from inferometer.evaluators.evaluation import Evaluation
from inferometer.evaluators.kinds.ingestion.measurement import IngestionMeasurement, IngestionSummary
from inferometer.evaluators.reports.base import (
    CONDITIONS_COLUMN,
    EVALUATION_COLUMNS,
    STATUS_COLUMN,
    Column,
    Report,
    Row,
    describe,
)
from inferometer.evaluators.reports.times import time_columns, time_values

_NS_PER_US = 1000
_FIGURES = {"mean": 1, "p50": 0, "p90": 1, "p99": 1}
_WITH_INTERVAL = ("mean", "p50")
_OF_A_MODEL = {"framework_name", "framework_version", "using_gpu", "weights", "threads", "precision"}


class IngestionReport(Report[IngestionMeasurement]):
    """One row for each run of a loader alone, with the figures of ``IngestionSummary``.

    The model gives the preprocessing only. The wait is that of a caller who does nothing else, in
    milliseconds a full batch; the times to read and to preprocess are those of a sample in one worker.
    """

    name = "ingestion"
    summary = "loading alone: batches, samples and bytes in a second, and the wait for a batch in ms"
    takes = (IngestionMeasurement,)
    columns = (
        *(column for column in EVALUATION_COLUMNS if column.key not in _OF_A_MODEL),
        Column("data_backend", "data"),
        Column("reader", "reader", detail=1),
        Column("workers", "workers"),
        Column("worker_kind", "kind of workers", detail=1),
        Column("prefetch", "batches ahead", detail=1),
        Column("shuffled", "shuffled", detail=2),
        Column("batches_per_s", "batches/s", decimals=2, detail=1),
        Column("samples_per_s", "samples/s", decimals=1),
        Column("samples_per_s_low", "samples/s low", decimals=1, detail=3),
        Column("samples_per_s_high", "samples/s high", decimals=1, detail=3),
        Column("bytes_per_s", "bytes/s", decimals=0, detail=1),
        *time_columns("wait_ms", "wait", _FIGURES, _WITH_INTERVAL),
        Column("read_us", "read a sample (us)", decimals=1, detail=1),
        Column("preprocess_us", "preprocess a sample (us)", decimals=1, detail=1),
        Column("busy", "workers busy (share)", decimals=3, detail=1),
        Column("contradiction", "contradiction", detail=1),
        Column("cached_before", "in the page cache (share)", decimals=4, detail=1),
        Column("dropped", "dropped from it", detail=2),
        Column("measured_batches", "measured batches", detail=1),
        Column("epochs", "epochs", detail=2),
        Column("failed_inputs", "failed inputs", detail=1),
        Column("dataset_name", "dataset", detail=1),
        STATUS_COLUMN,
        CONDITIONS_COLUMN,
    )

    def rows(self, evaluations: Sequence[Evaluation[IngestionMeasurement]]) -> Iterator[Row]:
        """Yields one row for each evaluation."""
        for evaluation in evaluations:
            measured, summary = evaluation.measurement, IngestionSummary.of(evaluation.measurement)
            data = measured.data
            low, high = summary.samples_interval or (None, None)
            described = describe(evaluation)
            yield {
                **{key: value for key, value in described.items() if key not in _OF_A_MODEL},
                "data_backend": data.backend,
                "reader": data.reader,
                "workers": data.workers,
                "worker_kind": ("processes" if data.processes else "threads") if data.workers else None,
                "prefetch": data.prefetch,
                "shuffled": data.shuffle,
                "batches_per_s": summary.batches_per_s,
                "samples_per_s": summary.samples_per_s,
                "samples_per_s_low": low,
                "samples_per_s_high": high,
                "bytes_per_s": summary.bytes_per_s,
                **time_values("wait_ms", summary, _FIGURES, _WITH_INTERVAL),
                "read_us": _in_us(summary.read_ns),
                "preprocess_us": _in_us(summary.preprocess_ns),
                "busy": summary.busy,
                "contradiction": summary.contradiction or None,
                "cached_before": data.cached_before,
                "dropped": data.dropped,
                "measured_batches": summary.batches,
                "epochs": measured.epochs,
                "failed_inputs": len(measured.failures),
                "dataset_name": evaluation.dataset.name,
            }


def _in_us(duration_ns: float | None) -> float | None:
    return None if duration_ns is None else duration_ns / _NS_PER_US
