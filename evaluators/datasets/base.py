"""What a dataset is to an evaluation: labelled samples in a fixed order."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass

from agent.inputs import Input


@dataclass(frozen=True, slots=True)
class Sample(Input):
    """An input and the class that it belongs to.

    Attributes:
        label: The name of the class; None where the dataset does not tell.
    """

    label: str | None = None


@dataclass(frozen=True, slots=True)
class DatasetIdentity:
    """Which dataset an evaluation ran over.

    Attributes:
        category: Such as ``vision``.
        name: The manifest's name, or the path of a dataset that no manifest describes.
        version: The manifest's version; None for a dataset that no manifest describes.
        checksum: ``sha256:…`` of the dataset's one file; None for a folder.
        size: The number of its samples.
    """

    category: str
    name: str
    version: str | None
    checksum: str | None
    size: int


class Dataset(ABC):
    """Labelled samples in an order that is the same in every run.

    Args:
        identity: Which dataset this is, and its size.
    """

    def __init__(self, identity: DatasetIdentity) -> None:
        self._identity = identity

    @property
    def identity(self) -> DatasetIdentity:
        """Which dataset this is."""
        return self._identity

    def __len__(self) -> int:
        """The number of samples."""
        return self._identity.size

    @abstractmethod
    def __iter__(self) -> Iterator[Sample]:
        """The samples in order. Their data is read when their turn comes, not here."""

    def close(self) -> None:  # noqa: B027 - most datasets hold nothing open
        """Frees what the dataset holds open; calling it again does nothing."""
