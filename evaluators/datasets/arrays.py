"""A dataset in an ``.npz``: images as one NumPy array, labels as another."""

from __future__ import annotations

import zipfile
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from agent.inputs import Payload, Pixels, Tensor
from evaluators.datasets.base import Dataset, DatasetIdentity, Sample
from manifests.errors import DatasetError

_IMAGES = ("images", "x")
_LABELS = ("labels", "y")
_LARGEST_FLOAT_BYTES = 8


class ArraysDataset(Dataset):
    """Images and labels in arrays. The order is the arrays', and a sample's id is its index.

    ``images`` (or ``x``) is uint8, N × height × width (grey), N × height × width × 1 (grey) or
    N × height × width × 3 (RGB), and gives decoded images that are preprocessed; or it is floating-point,
    N × the shape of the model's input, and gives tensors that are not. ``labels`` (or ``y``), which may be
    missing, holds N whole numbers or texts. Nothing is unpickled.

    Args:
        path: The file.
        category: Such as ``vision``.
        checksum: ``sha256:…`` of the file.
        name: What the dataset is called; None gives the path.
        version: The manifest's version, where there is one.

    Raises:
        DatasetError: The file is no ``.npz``, is damaged, or its arrays are not as above.
    """

    def __init__(
        self,
        path: Path,
        category: str,
        *,
        checksum: str,
        name: str | None = None,
        version: str | None = None,
    ) -> None:
        images, labels = _load(path)
        self._images, self._payload = _payloads(images, path)
        self._labels = None if labels is None else _texts(labels, len(images), path)
        super().__init__(DatasetIdentity(category, name or str(path), version, checksum, len(images)))

    def __iter__(self) -> Iterator[Sample]:
        for index, image in enumerate(self._images):
            label = None if self._labels is None else self._labels[index]
            yield Sample(str(index), self._payload(image), label)


def _load(path: Path) -> tuple[NDArray[Any], NDArray[Any] | None]:
    """Reads the images and, where there are any, the labels."""
    try:
        content = np.load(path, allow_pickle=False)
        if not isinstance(content, np.lib.npyio.NpzFile):
            raise DatasetError(f"{path}: is a single array; accepted: an .npz with images and labels")
        with content:
            images = next((name for name in _IMAGES if name in content.files), None)
            labels = next((name for name in _LABELS if name in content.files), None)
            if images is None:
                raise DatasetError(
                    f"{path}: has no array images (or x); it has: {', '.join(content.files) or 'none'}"
                )
            return content[images], None if labels is None else content[labels]
    except OSError as error:
        raise DatasetError(f"{path}: cannot be read: {error.strerror or error}") from error
    except (
        ValueError,
        EOFError,
        KeyError,
        MemoryError,
        RuntimeError,
        zipfile.BadZipFile,
        zlib.error,
    ) as error:
        raise DatasetError(
            f"{path}: is no .npz of plain arrays, or a damaged one: {_one_line(error)}"
        ) from error


def _payloads(images: NDArray[Any], path: Path) -> tuple[NDArray[Any], Callable[[NDArray[Any]], Payload]]:
    """Checks the images; returns them and what makes one of them an input's data."""
    found = f"{path}: images are {images.dtype} of shape {list(images.shape)}"
    if images.ndim and not len(images):
        raise DatasetError(f"{path}: holds no images")
    if 0 in images.shape:
        raise DatasetError(f"{found}, which is empty")
    if images.dtype == np.uint8:
        if images.ndim == 4 and images.shape[3] == 1:
            return images[..., 0], Pixels
        if images.ndim == 3 or (images.ndim == 4 and images.shape[3] == 3):
            return images, Pixels
        raise DatasetError(
            f"{found}; accepted for uint8: N × height × width, also with × 1 or × 3 at the end"
        )
    if images.dtype.kind == "f" and images.dtype.itemsize <= _LARGEST_FLOAT_BYTES:
        if images.ndim < 2:
            raise DatasetError(f"{found}; accepted for float: N × the shape of the model's input")
        return images.astype(images.dtype.newbyteorder("="), copy=False), Tensor
    raise DatasetError(
        f"{found}; accepted: uint8 pixels, or float32 (also 16, 64) tensors as the model takes"
    )


def _texts(labels: NDArray[Any], count: int, path: Path) -> list[str]:
    """The labels as text, one for each of the ``count`` images."""
    if labels.shape not in {(count,), (count, 1)}:
        raise DatasetError(f"{path}: labels have shape {list(labels.shape)}, but there are {count} images")
    if labels.dtype.kind in "iuU":
        return [str(label) for label in labels.ravel().tolist()]
    if labels.dtype.kind == "S":
        try:
            return [label.decode("utf-8") for label in labels.ravel().tolist()]
        except UnicodeDecodeError as error:
            raise DatasetError(f"{path}: labels are bytes that are not UTF-8") from error
    raise DatasetError(f"{path}: labels are {labels.dtype}; accepted: whole numbers or texts")


def _one_line(error: BaseException) -> str:
    return " ".join(str(error).split())
