"""Datasets of pairs: an image in one folder, and its ground truth in a file of the same name in another.

That of image enhancement has two images in a pair; ``masks`` has those of segmentation.
"""

from __future__ import annotations

import os
from abc import abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import NamedTuple

import numpy as np
from PIL import Image

from inferometer.agent.preprocessing.image_decoder import PILLOW_ERRORS, open_image
from inferometer.agent.preprocessing.pillow_decoder import FORMATS, in_mode
from inferometer.evaluators.datasets.base import Dataset, DatasetIdentity, Sample
from inferometer.evaluators.datasets.folder import is_image, printable, read_image
from inferometer.evaluators.datasets.truths import TargetImage, Truth
from inferometer.manifests.errors import DatasetError, InputError, one_line

INPUTS, TARGETS = "inputs", "targets"
_GREY_MODES = ("1", "L", "LA", "I", "F")


class Pair(NamedTuple):
    """The files of one sample.

    Attributes:
        name: The name of the sample: the image's path in its folder.
        image: The image.
        truth: The ground truth.
    """

    name: str
    image: Path
    truth: Path


class PairsDataset(Dataset):
    """Images with their ground truth in another file. Both are read later, on demand.

    Args:
        identity: The identity of the dataset.
        pairs: The files, in order.
    """

    def __init__(self, identity: DatasetIdentity, pairs: Sequence[Pair]) -> None:
        super().__init__(identity)
        self._pairs = pairs

    def __iter__(self) -> Iterator[Sample]:
        return map(self.sample, range(len(self)))

    def sample(self, index: int) -> Sample:
        """Returns a sample, which is read later."""
        pair = self._pairs[index]
        return Sample(printable(pair.name), partial(read_image, pair.image), truth=self.truth(pair.truth))

    @abstractmethod
    def truth(self, path: Path) -> Callable[[], Truth]:
        """Returns what reads the truth in a file, and raises DatasetError if it cannot be read."""

    def files(self) -> Iterator[Path]:
        """Returns the files of the images and of their ground truth."""
        return (path for pair in self._pairs for path in (pair.image, pair.truth))


class PairedFolderDataset(PairsDataset):
    """A folder with ``inputs`` and ``targets``: images of the same path up to the suffix.

    A target is grey or in colour, as its file is; 16 bits become 8, and transparency is dropped. Its size is
    that of the model's output, such as twice the input's.

    The arguments are those of ``MaskFolderDataset``.

    Raises:
        DatasetError: An input has no target, or a target no input.
    """

    backend = "paired_folder"

    def __init__(
        self,
        root: Path,
        category: str,
        *,
        checksum: str | None = None,
        name: str | None = None,
        version: str | None = None,
    ) -> None:
        pairs = paired(root, INPUTS, TARGETS)
        super().__init__(DatasetIdentity(category, name or str(root), version, checksum, len(pairs)), pairs)

    def truth(self, path: Path) -> Callable[[], Truth]:
        """Returns the function that reads a target."""
        return partial(read_target, path)


def paired(root: Path, images: str, truths: str) -> list[Pair]:
    """Returns the pairs of two folders, in the order of the names; hidden files are ignored.

    Args:
        root: The dataset.
        images: The folder of the images in it.
        truths: The folder with a file of the same path, up to the suffix, for each of them.

    Raises:
        DatasetError: A folder cannot be read, an image has no partner, or a name stands for two files.
    """
    firsts, seconds = _by_stem(root / images, is_image), _by_stem(root / truths, _is_shown)
    if not firsts:
        raise DatasetError(f"{root / images}: holds no images")
    for stem, path in firsts.items():
        if stem not in seconds:
            raise DatasetError(
                f"{path}: there is no {truths}/{printable(stem)}.*; each image requires what is true of it"
            )
    if alone := sorted(seconds.keys() - firsts.keys()):
        raise DatasetError(f"{seconds[alone[0]]}: there is no image {images}/{printable(alone[0])}.*")
    return [
        Pair(path.relative_to(root / images).as_posix(), path, seconds[stem])
        for stem, path in sorted(firsts.items())
    ]


def _by_stem(folder: Path, accepted: Callable[[str], bool]) -> dict[str, Path]:
    """Returns the files of a folder by their path without the suffix."""

    def refuse(error: OSError) -> None:
        raise DatasetError(
            f"{error.filename or folder}: cannot be read: {error.strerror or error}"
        ) from error

    found: dict[str, Path] = {}
    for place, folders, names in os.walk(folder, onerror=refuse):
        folders.sort()
        for path in _accepted(folder, Path(place), sorted(names), accepted):
            stem = path.relative_to(folder).with_suffix("").as_posix()
            if stem in found:
                raise DatasetError(
                    f"{path}: has the name of {found[stem].name}; one file for each name is allowed"
                )
            found[stem] = path
    return found


def _accepted(
    root: Path, place: Path, names: Iterable[str], accepted: Callable[[str], bool]
) -> Iterator[Path]:
    paths = (place / name for name in names)
    return (path for path in paths if accepted(path.relative_to(root).as_posix()))


def _is_shown(path: str) -> bool:
    return not any(part.startswith(".") for part in path.split("/"))


def read_target(path: Path) -> TargetImage:
    """Reads the image that a model should make.

    Raises:
        DatasetError: The file cannot be read, or is not an image.
    """
    try:
        image = open_image(read_image(path).content, FORMATS)
        image.load()
        grey = image.mode in _GREY_MODES or image.mode.startswith("I;16")
        pixels = np.array(in_mode(image, "L" if grey else "RGB"))
    except OSError as error:
        raise DatasetError(f"target {path}: cannot be read: {error.strerror or error}") from error
    except (InputError, Image.DecompressionBombError, *PILLOW_ERRORS) as error:
        raise DatasetError(f"target {path}: {one_line(error)}") from error
    return TargetImage(pixels[..., np.newaxis] if grey else pixels)
