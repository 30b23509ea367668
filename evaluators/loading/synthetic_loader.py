"""The loader of random inputs and labels, which are drawn once, in memory, and read nothing."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from inferometer.agent.preprocessing.preprocessor import tensor_bytes
from inferometer.evaluators.load.prepared_inputs import synthetic_arrays
from inferometer.evaluators.loading.loader import LoadedBatch, Loader, LoaderOptions
from inferometer.evaluators.statistics import random_state
from inferometer.manifests.errors import ConfigurationError
from inferometer.manifests.inputs import InputParameters

MOST_BATCHES = 8
"""The batches that are drawn; the same ones follow again."""
MOST_BYTES = 256 * 1024 * 1024
"""The most memory of their inputs, unless one batch takes more."""


class SyntheticLoader(Loader):
    """The loader of full batches of random inputs, drawn by ``synthetic_arrays``, and random labels.

    They depend on the seed, the rank and the batch size. The labels are uniform. Loading takes no time,
    because the batches are drawn when the loader is constructed.

    Args:
        parameters: The model's input.
        options: The batch size, the seed and the rank; there are no workers.
        classes: The number of classes.
        batches: The number of batches in an epoch.
        fixed: Whether all batches are the same one.
        label_length: The number of labels of a sample, which then start at 1, as CTC requires; None for one
            label, which starts at 0.

    Raises:
        ConfigurationError: There is no class or no batch, or not enough memory.
    """

    def __init__(
        self,
        parameters: InputParameters,
        options: LoaderOptions,
        *,
        classes: int,
        batches: int,
        fixed: bool = False,
        label_length: int | None = None,
    ) -> None:
        lowest = 0 if label_length is None else 1
        if classes <= lowest or batches < 1:
            raise ConfigurationError(
                f"synthetic data of {classes} classes and {batches} batches cannot be drawn; "
                f"at least {lowest + 1} and 1 are needed"
            )
        size = options.batch_size
        most = 1 if fixed else min(MOST_BATCHES, batches)
        drawn = max(1, min(most, MOST_BYTES // (size * tensor_bytes(parameters))))
        seed = [options.seed, options.rank]
        try:
            most_bytes = drawn * size * tensor_bytes(parameters)
            [tensors] = synthetic_arrays(
                parameters.tensors, seed, count=drawn * size, max_bytes=most_bytes
            ).values()
        except MemoryError as error:
            raise ConfigurationError(
                f"a batch of {size} inputs takes {size * tensor_bytes(parameters)} bytes, which cannot be "
                "had; use a smaller batch_size"
            ) from error
        shape = (drawn * size,) if label_length is None else (drawn * size, label_length)
        labels = random_state([*seed, 1]).randint(lowest, classes, shape).astype(np.int64)
        self._batches = batches
        self._drawn = tuple(
            LoadedBatch(tensors[first : first + size], labels[first : first + size])
            for first in range(0, drawn * size, size)
        )

    @property
    def batches(self) -> int:
        """The number of batches in an epoch."""
        return self._batches

    def epoch(self, number: int) -> Iterator[LoadedBatch]:
        """Yields the batches of an epoch, which goes on where the one before it ended."""
        first = number * self._batches
        for place in range(first, first + self._batches):
            yield self._drawn[place % len(self._drawn)]

    def close(self) -> None:
        """Does nothing."""
