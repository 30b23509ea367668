"""The order of an epoch: which samples are in which batch of which rank."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from inferometer.evaluators.loading.loader import LoaderOptions
from inferometer.evaluators.statistics import random_state
from inferometer.manifests.errors import DatasetError


class EpochOrder:
    """Divides the samples of an epoch among batches and ranks.

    The order is that of the dataset, or one that ``seed`` and the epoch's number draw, and depends on nothing
    else. It is cut into pieces of ``ranks * batch_size`` samples, and each piece into one batch for each
    rank, so that several ranks see in a step what one rank with a larger batch would. The last piece is
    smaller: the sizes of its batches differ by one at the most. What is too little of it to give every rank
    a sample, ``ranks - 1`` samples at the most, is left out of this epoch.

    Args:
        count: The samples of the dataset.
        options: Their batches, ranks and order.

    Raises:
        DatasetError: There are fewer samples than ranks.
    """

    def __init__(self, count: int, options: LoaderOptions) -> None:
        if count < options.ranks:
            raise DatasetError(
                f"the dataset has {count} samples, and {options.ranks} ranks need one each; use fewer ranks"
            )
        self._count = count
        self._options = options
        self._piece = options.batch_size * options.ranks
        whole, rest = divmod(count, self._piece)
        self.batches = whole + (rest >= options.ranks)
        """The number of batches of each rank."""

    def of(self, epoch: int) -> Iterator[NDArray[np.int64]]:
        """Yields the places of the samples of each batch of this rank; int64, (samples,)."""
        options = self._options
        if options.shuffle:
            order = random_state([options.seed, epoch]).permutation(self._count)
        else:
            order = np.arange(self._count)
        for number in range(self.batches):
            piece = order[number * self._piece : (number + 1) * self._piece]
            yield np.array_split(piece, options.ranks)[options.rank].astype(np.int64, copy=False)
