"""A dataset of encoded images, wherever they lie."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator, Sequence
from functools import partial

from agent.inputs import EncodedImage
from evaluators.datasets.base import Dataset, DatasetIdentity, Sample
from evaluators.datasets.layout import Place, printable


class ImageDataset(Dataset):
    """Images that are read one by one, when the pipeline comes to them.

    Args:
        identity: Which dataset this is.
        places: Where its images are, in order.
    """

    def __init__(self, identity: DatasetIdentity, places: Sequence[Place]) -> None:
        super().__init__(identity)
        self._places = places

    def __iter__(self) -> Iterator[Sample]:
        for place in self._places:
            label = None if place.label is None else printable(place.label)
            yield Sample(printable(place.path), partial(self.read, place), label)

    @abstractmethod
    def read(self, place: Place) -> EncodedImage:
        """Reads one image; thread-safe.

        Raises:
            InputError, OSError: It cannot be read.
        """
