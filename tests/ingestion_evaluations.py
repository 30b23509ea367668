"""Measurements of loaders alone, for tests of the store and of the reports."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from inferometer.agent.inference.stages import InputFailure, Stage
from inferometer.evaluators.evaluation import Evaluation
from inferometer.evaluators.kinds.ingestion.kind import IngestionMeasurement, LoadTimes
from inferometer.evaluators.loading.options import DataOptions

FAILURE = InputFailure("cat/7.jpg", Stage.PREPROCESS, "image of 100 bytes cannot be decoded: é $x.y")
WAITS_NS = [9_000_000 + 200_000 * (number * number * 7 % 11) for number in range(600)]


def ingested(
    evaluation: Evaluation[Any],
    samples: list[int],
    whole_ns: list[int],
    *,
    batch_size: int = 32,
    told: bool = True,
    failures: tuple[InputFailure, ...] = (),
    **data: Any,
) -> Evaluation[IngestionMeasurement]:
    """The evaluation with a run of a loader: each sample takes 20 µs to read and 300 µs to preprocess."""
    counts = np.array(samples, np.int64)
    columns = [counts * each if told else counts * 0 for each in (20_000, 300_000, 1_000)]
    measurement = IngestionMeasurement(
        batch_size=batch_size,
        num_warmup_batches=1,
        data=DataOptions(**{"backend": "image_folder", **data}),
        times=LoadTimes(counts, np.array(whole_ns, np.int64), *columns),
        elapsed_ns=sum(whole_ns),
        failures=failures,
        epochs=2,
    )
    return replace(evaluation, measurement=measurement)


def many(evaluation: Evaluation[Any]) -> Evaluation[IngestionMeasurement]:
    """600 full batches of 9 to 11 ms, by two processes that load ahead, of a dataset in memory."""
    return ingested(
        evaluation,
        [32] * 600,
        WAITS_NS,
        workers=2,
        processes=True,
        prefetch=4,
        shuffle=True,
        seed=3,
        cached_before=1.0,
    )


def few(evaluation: Evaluation[Any]) -> Evaluation[IngestionMeasurement]:
    """Twelve batches of a dropped dataset by the calling thread, the last without a failed sample."""
    return ingested(
        evaluation,
        [32] * 11 + [31],
        [20_000_000] * 11 + [15_000_000],
        failures=(FAILURE,),
        cached_before=0.004,
        dropped=True,
    )


def untold(evaluation: Evaluation[Any]) -> Evaluation[IngestionMeasurement]:
    """Two smaller batches by the framework's own iterator, which tells nothing else."""
    return ingested(
        evaluation,
        [5, 5],
        [4_000_000, 6_000_000],
        told=False,
        backend="recordio",
        reader="framework",
        workers=3,
        prefetch=1,
    )
