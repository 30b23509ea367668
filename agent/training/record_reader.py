"""The record reader: the interface of a framework's own iterator over a file of images."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from inferometer.agent.closeable import Closeable
from inferometer.manifests.inputs import InputParameters


@dataclass(frozen=True, slots=True)
class RecordOptions:
    """The options of a record reader.

    Attributes:
        batch_size: Samples in a batch; the last one of an epoch may hold fewer.
        threads: The threads that decode.
        prefetch: The batches that are loaded ahead; an iterator that always does so loads at least one.
        shuffle: Whether the order is drawn anew for each epoch, by the framework.
        seed: The seed of that order.
    """

    batch_size: int
    threads: int
    prefetch: int = 1
    shuffle: bool = False
    seed: int = 0


class RecordReader(Closeable):
    """Reads, decodes and preprocesses images as its framework does. A damaged file may end the process.

    Args:
        path: The file.
        count: The number of its records.
        parameters: The model's input.
        options: See ``RecordOptions``.

    Raises:
        ConfigurationError: The framework cannot preprocess as the model requires.
        DatasetError: The file cannot be read.
    """

    @abstractmethod
    def __init__(
        self, path: Path, count: int, parameters: InputParameters, options: RecordOptions
    ) -> None: ...

    @abstractmethod
    def epoch(self, out: NDArray[Any]) -> Iterator[NDArray[np.int64]]:
        """Yields the labels of each batch, int64, (samples,); its inputs are then in rows of ``out``.

        Args:
            out: ``(batch size, *dimensions)``, float32; the same memory for every batch.

        Raises:
            DatasetError: The framework cannot read or decode a record.
        """
