"""Reading and preprocessing of samples into the rows of a buffer, which every kind of worker does."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from inferometer.agent.inference.results import InputFailure, Stage
from inferometer.agent.preprocessing.inputs import (
    EncodedImage,
    NamedTensors,
    Payload,
    Pixels,
    Tensor,
    Text,
    Url,
)
from inferometer.agent.preprocessing.preprocessor import Preprocessor, preprocessor_of
from inferometer.evaluators.datasets.base import Dataset
from inferometer.manifests.errors import InputError
from inferometer.manifests.inputs import InputParameters


@dataclass(frozen=True, slots=True, eq=False)
class Rows:
    """The buffers of a loader, in which each row is for one sample.

    Attributes:
        places: int64, (rows,): the place of the sample in the dataset.
        inputs: ``(rows, *dimensions)``, of the model's element type.
    """

    places: NDArray[np.int64]
    inputs: NDArray[Any]


@dataclass(frozen=True, slots=True)
class Task:
    """The rows that a worker fills; ``number`` grows from task to task of a loader."""

    number: int
    first_row: int
    rows: int


@dataclass(frozen=True, slots=True)
class FilledRows:
    """The result of a task: the rows that a worker filled.

    Attributes:
        labels: The class of each sample that was loaded, in order; None if it is unknown.
        failed: The rows that were not filled, counted from the first one, each with its failure.
        read_ns: The time to read, summed over the samples.
        preprocess_ns: The time to decode and preprocess, summed over the samples.
        read_bytes: The bytes of the samples as they were read.
    """

    labels: tuple[str | None, ...] = ()
    failed: tuple[tuple[int, InputFailure], ...] = ()
    read_ns: int = 0
    preprocess_ns: int = 0
    read_bytes: int = 0


class SampleFiller:
    """A reader that preprocesses samples into rows. Thread-safe for different rows.

    Args:
        dataset: The samples.
        parameters: The model's input.
        rows: The buffers.
        clock: A monotonic clock in nanoseconds.
    """

    def __init__(
        self,
        dataset: Dataset,
        parameters: InputParameters,
        rows: Rows,
        clock: Callable[[], int] = time.perf_counter_ns,
    ) -> None:
        self._dataset = dataset
        self._preprocessor: Preprocessor = preprocessor_of(parameters)
        self._rows = rows
        self._clock = clock

    def fill(self, task: Task, cancelled: Callable[[], bool] = lambda: False) -> FilledRows:
        """Fills the rows of a task, or fewer once ``cancelled`` returns True.

        Raises:
            DatasetError: The dataset is damaged.
        """
        labels: list[str | None] = []
        failed: list[tuple[int, InputFailure]] = []
        read_ns = preprocess_ns = read_bytes = 0
        for number in range(task.rows):
            if cancelled():
                break
            row = task.first_row + number
            place = int(self._rows.places[row])
            name, stage = str(place), Stage.READ
            begin_ns = middle_ns = self._clock()
            try:
                sample = self._dataset.sample(place)
                name = sample.id
                payload = sample.read()
                stage, middle_ns = Stage.PREPROCESS, self._clock()
                read_bytes += size_of(payload)
                self._preprocessor.write(payload, self._rows.inputs[row])
            except InputError as error:
                failed.append((number, InputFailure(name, stage, str(error))))
            else:
                labels.append(sample.label)
            end_ns = self._clock()
            if stage is Stage.READ:
                middle_ns = end_ns
            read_ns += middle_ns - begin_ns
            preprocess_ns += end_ns - middle_ns
        return FilledRows(tuple(labels), tuple(failed), read_ns, preprocess_ns, read_bytes)


def size_of(payload: Payload) -> int:
    """Returns the bytes of a sample as it was read; 0 for one that is not read here."""
    match payload:
        case EncodedImage():
            return len(payload.content)
        case Pixels() | Tensor():
            return payload.array.nbytes
        case Text():
            return payload.nbytes
        case NamedTensors():
            return sum(array.nbytes for array in payload.arrays.values())
        case Url():
            return 0
