"""A dataset in a folder: class folders with encoded images in them, or images alone."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from pathlib import Path

from agent.inputs import EncodedImage
from evaluators.datasets.base import DatasetIdentity
from evaluators.datasets.image_dataset import ImageDataset
from evaluators.datasets.layout import MAX_IMAGE_BYTES, Place, arrange, is_image, too_large
from manifests.errors import DatasetError, InputError


class FolderDataset(ImageDataset):
    """Images in class folders; the folder's name is the label. Images alone are unlabelled.

    The order is by file name without the class folder, then by class. Hidden files and files that are no
    images, by their suffix, are ignored. Links to files and to class folders are followed, links to folders
    inside a class folder are not. The folder is listed once, when the dataset is opened; a file that is gone
    or cannot be read fails as an input.

    Args:
        root: The folder.
        category: Such as ``vision``.
        name: What the dataset is called; None gives the path.
        version: The manifest's version, where there is one.

    Raises:
        DatasetError: The folder cannot be read, or holds no images or some without a class.
    """

    def __init__(
        self, root: Path, category: str, *, name: str | None = None, version: str | None = None
    ) -> None:
        self._root = root
        places = arrange(_image_paths(root), str(root))
        super().__init__(DatasetIdentity(category, name or str(root), version, None, len(places)), places)

    def read(self, place: Place) -> EncodedImage:
        """Reads one image. An ``OSError`` is left to ``Input.read``, which names the input."""
        return read_image(self._root / place.path)


def read_image(path: Path) -> EncodedImage:
    """Reads the file of one image.

    Raises:
        InputError: It is no file, or larger than an image is.
        OSError: It cannot be read.
    """
    status = path.stat()
    if not stat.S_ISREG(status.st_mode):
        raise InputError(f"{path}: is no file that can be read")
    if status.st_size > MAX_IMAGE_BYTES:
        raise too_large(str(path), status.st_size)
    return EncodedImage(path.read_bytes())


def _image_paths(root: Path) -> Iterator[str]:
    """The paths of the images at the top and in the class folders, relative to ``root``."""

    def refuse(error: OSError) -> None:
        raise DatasetError(f"{error.filename or root}: cannot be read: {error.strerror or error}") from error

    try:
        entries = list(os.scandir(root))
        for entry in entries:
            if entry.name.startswith("."):
                continue
            if not entry.is_dir():
                if is_image(entry.name):
                    yield entry.name
                continue
            for folder, _, names in os.walk(entry.path, onerror=refuse):
                inside = Path(folder).relative_to(root).as_posix()
                paths = (f"{inside}/{name}" for name in names)
                yield from (path for path in paths if is_image(path))
    except OSError as error:
        refuse(error)
