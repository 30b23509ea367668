"""The interface of a dataset: labelled samples in a fixed order, and their ground truths.

A label is a class; the predictions of tasks other than classification are scored against other ground truths.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from hashlib import sha256
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from inferometer.agent.preprocessing.inputs import Input
from inferometer.manifests.errors import DatasetError, printable, suggestion
from inferometer.manifests.inputs import TensorSpec

IGNORED_CLASS = -1
"""The class of pixels that are ignored in a class map; PASCAL VOC and Cityscapes store 255 for it."""


@dataclass(frozen=True, slots=True)
class RunLengths:
    """A mask as COCO encodes it.

    Attributes:
        height: The height in pixels.
        width: The width in pixels.
        counts: COCO's compressed run lengths, column by column.
    """

    height: int
    width: int
    counts: bytes


@dataclass(frozen=True, slots=True)
class Polygons:
    """A mask as the polygons around its parts, which are filled by COCO's rules.

    Attributes:
        rings: For each polygon, alternating x and y, in pixels of the image.
    """

    rings: tuple[tuple[float, ...], ...]


@dataclass(frozen=True, slots=True)
class Federated:
    """The classes that LVIS lists for an image in addition to its objects, by name.

    Attributes:
        absent: The classes that were found to have no object in the image.
        incomplete: The classes of which not all objects are annotated.
        frequencies: The frequency of each class in the training images: ``r``, ``c`` or ``f`` (rare, common
            or frequent), empty if unknown; the same for all images.
    """

    absent: frozenset[str]
    incomplete: frozenset[str]
    frequencies: Mapping[str, str]


@dataclass(frozen=True, slots=True, eq=False)
class Objects:
    """The objects in an image; an image without objects has a ground truth, too.

    Attributes:
        height: The height of the image, in pixels.
        width: The width of the image, in pixels.
        boxes: float64, objects × 4: left, top, width and height in pixels, as in COCO.
        classes: The name of each object's class.
        areas: float64, objects; in pixels; COCO uses them to distinguish small from large objects.
        crowds: bool, objects; whether each is a crowd, which a prediction neither hits nor misses.
        masks: The mask of each object; None if there are only boxes.
        image: COCO's id of the image, by which its evaluation orders images; None keeps the dataset's order.
        ignored: bool, objects; whether each is marked ``difficult`` or ``ignore``, which COCO's AP does not
            consider; None if the dataset marks none.
        federated: Which classes were annotated, for LVIS; None means all classes.
    """

    height: int
    width: int
    boxes: NDArray[np.float64]
    classes: tuple[str, ...]
    areas: NDArray[np.float64]
    crowds: NDArray[np.bool_]
    masks: tuple[RunLengths | Polygons, ...] | None = None
    image: int | str | None = None
    ignored: NDArray[np.bool_] | None = None
    federated: Federated | None = None


@dataclass(frozen=True, slots=True, eq=False)
class ClassMap:
    """The class of each pixel of an image.

    Attributes:
        pixels: int32, height × width; indices in the dataset's list of classes; ``IGNORED_CLASS`` for pixels
            that are ignored.
        classes: The names of the dataset's classes; empty if it has none.
    """

    pixels: NDArray[np.int32]
    classes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class UnreadClassMap:
    """A class map that is read when it is called; the names of its classes are available before that."""

    read: Callable[[], ClassMap]
    classes: tuple[str, ...] = ()

    def __call__(self) -> ClassMap:
        """Reads the class map; raises DatasetError if it cannot be read."""
        return self.read()


@dataclass(frozen=True, slots=True, eq=False)
class TargetImage:
    """The image that a model should produce from its input.

    Attributes:
        pixels: uint8, height × width × channels (red, green, blue, or one grey channel).
    """

    pixels: NDArray[np.uint8]


@dataclass(frozen=True, slots=True, eq=False)
class TargetValues:
    """Numbers: the targets of a regression, the embedding from a reference model, or 1 for each right class.

    Attributes:
        values: float64, k.
        names: The names of the numbers; empty if they have none.
    """

    values: NDArray[np.float64]
    names: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class ClassNames:
    """The classes of an input that can have any number of them."""

    names: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class AcceptedAnswers:
    """The right answers to a question; having none means that the text does not answer it."""

    texts: tuple[str, ...]


Truth: TypeAlias = Objects | ClassMap | TargetImage | TargetValues | ClassNames | AcceptedAnswers


URLS = "urls"
_SYNTHETIC = "synthetic"
_FEW_IDS = 5
_CHECKSUM_DIGITS = 12


@dataclass(frozen=True, slots=True)
class Sample(Input):
    """An input and its class or other ground truth.

    Attributes:
        label: The name of the class; None if it is unknown.
        label_is_index: Whether ``label`` is the decimal index of the class instead, from 0, as in formats
            that store no names.
        truth: The ground truth of a task other than classification, or a function that reads it; None if it
            is unknown.
    """

    label: str | None = None
    label_is_index: bool = False
    truth: Truth | Callable[[], Truth] | None = None

    def read_truth(self) -> Truth | None:
        """Returns the truth, reading it first if necessary; raises DatasetError if it cannot be read."""
        return self.truth() if callable(self.truth) else self.truth


@dataclass(frozen=True, slots=True)
class DatasetIdentity:
    """The identity of a dataset.

    Attributes:
        category: The category, such as ``vision``.
        name: The manifest's name; without a manifest, the path.
        version: The manifest's version; None without a manifest.
        checksum: ``sha256:…`` of the dataset's only file; None for a folder.
        size: The number of its samples.
        sample_ids: The ids of its samples, in order, if it is only a part of a dataset; None otherwise.
    """

    category: str
    name: str
    version: str | None
    checksum: str | None
    size: int
    sample_ids: tuple[str, ...] | None = None

    @classmethod
    def synthetic(cls, source: str, size: int) -> DatasetIdentity:
        """Returns the identity of samples that are drawn; ``source`` says how, with the seed."""
        return cls(_SYNTHETIC, source, None, None, size)

    @property
    def is_synthetic(self) -> bool:
        """Whether its samples are drawn from a seed."""
        return self.category == _SYNTHETIC

    @property
    def is_of_urls(self) -> bool:
        """Whether its samples are images at the URLs of a file."""
        return self.category == URLS

    @property
    def sample_ids_checksum(self) -> str | None:
        """``sha256:…`` of the ids in UTF-8, each followed by a line feed; None if all samples are chosen."""
        if self.sample_ids is None:
            return None
        text = "".join(f"{each}\n" for each in self.sample_ids)
        return f"sha256:{sha256(text.encode('utf-8', 'backslashreplace')).hexdigest()}"

    @property
    def chosen_samples(self) -> str | None:
        """A short text for the chosen samples: a few ids in full, many by their checksum; None for all."""
        ids, checksum = self.sample_ids, self.sample_ids_checksum
        if ids is None or checksum is None:
            return None
        if len(ids) <= _FEW_IDS:
            return f"{len(ids)} by id: {', '.join(map(printable, ids))}"
        return f"{len(ids)} by id ({short_checksum(checksum)})"


class Dataset(ABC):
    """Labelled samples, in the same order in every run.

    It can be pickled, so that workers in other processes can open its files again.

    Args:
        identity: The identity of the dataset, with its size.

    Attributes:
        backend: The name of its format; see ``opening.BACKENDS``.
        labels_are_indices: Whether its labels are indices of classes; see ``Sample``.
    """

    backend: str = ""
    labels_are_indices: bool = False

    def __init__(self, identity: DatasetIdentity) -> None:
        self._identity = identity
        self._listed: tuple[Sample, ...] | None = None

    @property
    def identity(self) -> DatasetIdentity:
        """The identity of the dataset."""
        return self._identity

    def __len__(self) -> int:
        """Returns the number of samples."""
        return self._identity.size

    @abstractmethod
    def __iter__(self) -> Iterator[Sample]:
        """Returns the samples in order. Their data is read later, on demand."""

    def sample(self, index: int) -> Sample:
        """Returns the sample at an index, from 0; its data is read later, on demand. Thread-safe.

        By default, a list of all samples is kept; a dataset with many samples finds a sample by its index.
        """
        if self._listed is None:
            self._listed = tuple(self)
        return self._listed[index]

    def labels(self) -> frozenset[str]:
        """Returns the names of all classes; by default, reads the labels of all samples for this."""
        return frozenset(sample.label for sample in self if sample.label is not None)

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_listed": None}

    def files(self) -> Iterable[Path]:
        """Returns the files that hold the samples; by default none, for samples stored elsewhere."""
        return ()

    def close(self) -> None:  # noqa: B027 - most datasets have no open resources
        """Releases open resources; calling it again does nothing."""


class StoredDataset(Dataset):
    """A dataset at a path, whose samples are found by index.

    Args:
        path: The file or the folder.
        category: The category, such as ``vision``.
        checksum: ``sha256:…`` of the file, if it is known.
        name: The name of the dataset; None means ``default_name``, or else the path.
        version: The manifest's version, if there is one.

    Attributes:
        default_name: The name of the dataset if it is published under only one name; otherwise empty.
        is_one_file: Whether a checksum covers the whole dataset.
    """

    default_name: str = ""
    is_one_file: bool = True

    def __init__(
        self,
        path: Path,
        category: str,
        *,
        checksum: str | None = None,
        name: str | None = None,
        version: str | None = None,
    ) -> None:
        self._path = path
        size = self._open(path)
        name = name or self.default_name or str(path)
        checksum = checksum if self.is_one_file else None
        super().__init__(DatasetIdentity(category, name, version, checksum, size))

    @abstractmethod
    def _open(self, path: Path) -> int:
        """Opens the dataset at the path, and returns the number of its samples.

        Raises:
            DatasetError: The dataset is missing, damaged, or not in this format.
        """

    def __iter__(self) -> Iterator[Sample]:
        return map(self.sample, range(len(self)))

    @abstractmethod
    def sample(self, index: int) -> Sample:
        """Returns the sample at an index; see ``Dataset``."""


class LoadedDataset(StoredDataset):
    """A stored dataset that is held in memory. Only its path is pickled; another process reads it again.

    ``tensors`` are the inputs of a model, whose names are those of arrays or columns; empty without a model.
    The other arguments are those of ``StoredDataset``.
    """

    def __init__(
        self, path: Path, category: str, *, tensors: Sequence[TensorSpec] = (), **named: str | None
    ) -> None:
        self._tensors = tuple(tensors)
        super().__init__(path, category, **named)

    def __reduce__(self) -> tuple[Callable[..., Any], tuple[Any, ...]]:
        return reopened, (partial(type(self), tensors=self._tensors), self._path, self.identity)


def reopened(kind: Callable[..., StoredDataset], path: Path, identity: DatasetIdentity) -> StoredDataset:
    """Returns the dataset with an identity, which is opened again as a ``kind``."""
    return kind(
        path, identity.category, checksum=identity.checksum, name=identity.name, version=identity.version
    )


class Subset(Dataset):
    """Some samples of a dataset, in the dataset's order.

    Its name and checksum are those of the whole dataset; its size and ids are its own.

    Args:
        whole: The dataset; closing the subset closes it.
        ids: The ids of the samples.

    Raises:
        DatasetError: No ids are given, or there is an id that no sample has.
    """

    def __init__(self, whole: Dataset, ids: Sequence[str]) -> None:
        self.whole = whole
        wanted = dict.fromkeys(ids)
        found = [(place, sample.id) for place, sample in enumerate(whole) if sample.id in wanted]
        if len(found) < len(wanted) or not wanted:
            raise DatasetError(self._missing(wanted))
        self._places = [place for place, _ in found]
        chosen = tuple(each for _, each in found)
        super().__init__(replace(whole.identity, size=len(chosen), sample_ids=chosen))
        self.backend = whole.backend
        self.labels_are_indices = whole.labels_are_indices

    def __iter__(self) -> Iterator[Sample]:
        return map(self.sample, range(len(self)))

    def sample(self, index: int) -> Sample:
        """Returns the sample at an index of the subset."""
        return self.whole.sample(self._places[index])

    def files(self) -> Iterable[Path]:
        """Returns the files of the whole dataset."""
        return self.whole.files()

    def close(self) -> None:
        """Closes the whole dataset."""
        self.whole.close()

    def _missing(self, wanted: Iterable[str]) -> str:
        known = [sample.id for sample in self.whole]
        found = set(known)
        missing = next((each for each in wanted if each not in found), None)
        if missing is None:
            return f"dataset {self.whole.identity.name}: no sample_ids are given"
        return (
            f'dataset {self.whole.identity.name} has no sample "{printable(missing)}"; '
            f"{suggestion(missing, known)}"
        )


def short_checksum(checksum: str) -> str:
    """Returns the beginning of a checksum, long enough to distinguish two checksums."""
    algorithm, _, digits = checksum.partition(":")
    return f"{algorithm}:{digits[:_CHECKSUM_DIGITS]}" if digits else checksum
