"""The measurement of a loader alone: batches are read and preprocessed, and nothing is computed."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from inferometer.agent.inference.results import InputFailure
from inferometer.evaluators.measurements.data import DataOptions


@dataclass(frozen=True, slots=True, eq=False)
class LoadTimes:
    """The raw times of the measured batches; int64, one entry a batch.

    Attributes:
        samples: The samples that were loaded, without the failed ones.
        whole_ns: From the end of the batch before to the end of this one: what a caller waits that does
            nothing else.
        read_ns: The time to read, summed over the samples and the workers; 0 where the framework's own
            iterator does not tell.
        preprocess_ns: The time to decode and preprocess, likewise.
        read_bytes: The bytes of the encoded samples, likewise.
    """

    samples: NDArray[np.int64]
    whole_ns: NDArray[np.int64]
    read_ns: NDArray[np.int64]
    preprocess_ns: NDArray[np.int64]
    read_bytes: NDArray[np.int64]


@dataclass(frozen=True, slots=True, eq=False)
class IngestionMeasurement:
    """One run of a loader.

    Attributes:
        batch_size: The samples in a full batch.
        num_warmup_batches: The batches before, which are not measured.
        data: How batches were loaded.
        times: The raw times of the measured batches.
        elapsed_ns: The duration of the measured batches.
        failures: The samples that failed.
        epochs: How many passes over the data were begun.
    """

    kind: ClassVar[str] = "ingestion"

    batch_size: int
    num_warmup_batches: int
    data: DataOptions
    times: LoadTimes
    elapsed_ns: int
    failures: tuple[InputFailure, ...] = ()
    epochs: int = 0
