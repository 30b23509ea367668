"""The kind of measurement of a loader alone."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from typing import Any

import numpy as np
from numpy.typing import NDArray

from inferometer.agent.inference.results import InputFailure
from inferometer.evaluators.comparing.times import RunTimes
from inferometer.evaluators.drawing.charts import Drawing
from inferometer.evaluators.evaluation import Evaluation
from inferometer.evaluators.kinds.ingestion.documents import IngestionDocuments
from inferometer.evaluators.kinds.ingestion.measurement import IngestionMeasurement, IngestionSummary
from inferometer.evaluators.kinds.ingestion.plot import IngestionPlot
from inferometer.evaluators.kinds.ingestion.report import IngestionReport
from inferometer.evaluators.kinds.ingestion.summary import ingestion_rows
from inferometer.evaluators.kinds.kind import Kind, Rows, drawn, failure_values, own_values, top_figures
from inferometer.evaluators.reports.base import Row
from inferometer.evaluators.reports.trace_report import SpanSource

_HARDLY = 0.01
"""The share of a dataset that makes no difference."""


class IngestionKind(Kind[IngestionMeasurement]):
    """A loader alone."""

    name = "ingestion"
    title = "ingestion"
    phrase = "a run of a loader"
    counted = "samples"
    collections = ("loaded_batch", "input_failure")
    reports = ("ingestion",)
    headlines = ("samples_per_s", "bytes_per_s", "wait_ms_p50", "cached_before")

    def documents(self) -> IngestionDocuments:
        return IngestionDocuments()

    def failures(self, measurement: IngestionMeasurement) -> Sequence[InputFailure]:
        return measurement.failures

    def measured(self, measurement: IngestionMeasurement) -> str:
        return f"{len(measurement.times.samples)} batches"

    def overview(self, measurement: IngestionMeasurement) -> Row:
        loaded = IngestionSummary.of(measurement)
        return top_figures(loaded.p50_ns, loaded.samples_per_s)

    def summary(self, evaluation: Evaluation[IngestionMeasurement]) -> Rows:
        return ingestion_rows(evaluation)

    def document(
        self,
        evaluation: Evaluation[IngestionMeasurement],
        timed: Evaluation[IngestionMeasurement],
        spans: SpanSource,
    ) -> dict[str, Any]:
        [row], measured = IngestionReport().rows([evaluation]), evaluation.measurement
        figures = {
            "num_warmup_batches": measured.num_warmup_batches,
            "data": asdict(measured.data),
            **own_values(IngestionReport(), row, "dataset_name"),
            "failures": failure_values(measured.failures),
        }
        return {"ingestion": figures}

    def drawings(self, evaluation: Evaluation[IngestionMeasurement], most_points: int) -> Iterator[Drawing]:
        yield from drawn(IngestionPlot(), IngestionReport(), evaluation)

    def unfit(self, measurement: IngestionMeasurement) -> str:
        return ""

    def conditions(self, evaluation: Evaluation[IngestionMeasurement]) -> Mapping[str, str]:
        measured, data = evaluation.measurement, evaluation.measurement.data
        return {
            "batch size": str(measured.batch_size),
            "data": data.backend,
            "reader": data.reader,
            "loader": str(data),
            "in the page cache": _cached(data.cached_before),
        }

    def run_times(self, evaluation: Evaluation[IngestionMeasurement]) -> RunTimes:
        measured = evaluation.measurement
        if not len(measured.full_ns):
            raise ValueError("full batch; load with a smaller --batch_size")
        return RunTimes.of_batches(measured.full_ns, measured.times.samples[measured.full])

    def batch_times(self, measurement: IngestionMeasurement) -> tuple[NDArray[np.int64], int]:
        return measurement.times.whole_ns, int(measurement.times.samples.sum())


def _cached(share: float | None) -> str:
    """Returns how much of a dataset was in the page cache, as far as it makes a difference."""
    if share is None:
        return "not known"
    return "nothing" if share < _HARDLY else "all" if share > 1 - _HARDLY else f"{100 * share:.0f} %"


_HARDLY = 0.01
