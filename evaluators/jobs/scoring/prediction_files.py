"""The interface of a file, or a folder, with the predictions of another tool."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import ClassVar

from inferometer.agent.tasks.predictions import Predictions
from inferometer.evaluators.datasets.base import Dataset, Sample
from inferometer.manifests.errors import DatasetError, printable, suggestion


class PredictionFile(ABC):
    """The predictions of a dataset's samples, by their ids.

    Args:
        path: The file or the folder.
        dataset: The whole dataset.
        labels: The names of the classes in the order of their numbers; empty takes the dataset's.

    Attributes:
        labels: The names of the classes, in the order that the predictions count them.
        scores: The scores that such predictions determine; None means all of the task.

    Raises:
        DatasetError: It cannot be read, or is damaged; the message names the entry.
    """

    scores: ClassVar[frozenset[str] | None] = None

    def __init__(self, path: Path, dataset: Dataset, labels: Sequence[str]) -> None:
        self.path = path
        self.labels = tuple(labels)

    def key(self, sample: Sample) -> str:
        """Returns what the predictions of a sample are found by; the default is its id."""
        return sample.id

    @abstractmethod
    def keys(self) -> Collection[str]:
        """Returns the keys of the samples that it has predictions of."""

    @abstractmethod
    def read(self, sample: Sample) -> Predictions | None:
        """Returns the predictions of one row; None if it has none of this sample.

        Raises:
            PredictionError: They cannot be scored, such as a number that is not finite.
            DatasetError: A file of them cannot be read.
        """

    def check(self, dataset: Dataset) -> None:
        """Raises DatasetError if it has predictions of a sample that the dataset lacks."""
        unknown = set(self.keys())
        known = []
        for sample in dataset:
            known.append(key := self.key(sample))
            unknown.discard(key)
        if unknown:
            name = min(unknown)
            more = f", and {len(unknown) - 1} more" if len(unknown) > 1 else ""
            raise DatasetError(
                f'{self.path}: predicts "{printable(name)}"{more}, which dataset {dataset.identity.name} '
                f"does not have; {suggestion(name, known)}"
            )
