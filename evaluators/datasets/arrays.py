"""A dataset in an ``.npz``: images or tensors as one NumPy array, labels as another."""

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

_TENSORS = "inputs"
_SAMPLES = (_TENSORS, "images", "x")
_LABELS = ("labels", "y")
_LARGEST_ELEMENT_BYTES = 8


class ArraysDataset(Dataset):
    """Images or tensors, and labels, in arrays. The order is the arrays', and a sample's id is its index.

    ``images`` (or ``x``) is uint8, N × height × width (grey), N × height × width × 1 (grey) or
    N × height × width × 3 (RGB), and gives decoded images that are preprocessed; or it is floating-point,
    N × the shape of the model's input, and gives tensors that are not. ``inputs``, instead of these, gives
    tensors of any element type, uint8 too. ``labels`` (or ``y``), which may be missing, holds N whole numbers
    or texts. Nothing is unpickled.

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
        array_name, samples, labels = _load(path)
        self._samples, self._payload = _payloads(array_name, samples, path)
        self._labels = None if labels is None else _texts(labels, len(samples), path)
        super().__init__(DatasetIdentity(category, name or str(path), version, checksum, len(samples)))

    def __iter__(self) -> Iterator[Sample]:
        for index, sample in enumerate(self._samples):
            label = None if self._labels is None else self._labels[index]
            yield Sample(str(index), self._payload(sample), label)


def _load(path: Path) -> tuple[str, NDArray[Any], NDArray[Any] | None]:
    """Reads the samples with their array's name and, where there are any, the labels."""
    try:
        content = np.load(path, allow_pickle=False)
        if not isinstance(content, np.lib.npyio.NpzFile):
            raise DatasetError(
                f"{path}: is a single array; accepted: an .npz with images (or inputs) and labels"
            )
        with content:
            named = [name for name in _SAMPLES if name in content.files]
            labels = next((name for name in _LABELS if name in content.files), None)
            if len(named) != 1:
                found = ", ".join(content.files) or "none"
                wanted = "has no array" if not named else "needs one array of"
                raise DatasetError(f"{path}: {wanted} images (or x) or inputs; it has: {found}")
            return named[0], content[named[0]], None if labels is None else content[labels]
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


def _payloads(
    name: str, samples: NDArray[Any], path: Path
) -> tuple[NDArray[Any], Callable[[NDArray[Any]], Payload]]:
    """Checks the array of the samples; returns it and what makes one of them an input's data."""
    found = f"{path}: {name} are {samples.dtype} of shape {list(samples.shape)}"
    if samples.ndim and not len(samples):
        raise DatasetError(f"{path}: holds no {name}")
    if 0 in samples.shape:
        raise DatasetError(f"{found}, which is empty")
    if name == _TENSORS:
        kinds, accepted = "fiu", "float32 (also 16, 64) or whole numbers"
    else:
        kinds, accepted = "f", f"uint8 pixels, or float32 (also 16, 64) tensors; others are called {_TENSORS}"
        if samples.dtype == np.uint8:
            return _pixels(samples, found), Pixels
    if samples.dtype.kind not in kinds or samples.dtype.itemsize > _LARGEST_ELEMENT_BYTES:
        raise DatasetError(f"{found}; accepted: {accepted}")
    if samples.ndim < 2:
        raise DatasetError(f"{found}; accepted for tensors: N × the shape of the model's input")
    return samples.astype(samples.dtype.newbyteorder("="), copy=False), Tensor


def _pixels(samples: NDArray[Any], found: str) -> NDArray[Any]:
    """Checks the shape of decoded images; grey ones lose their last axis."""
    if samples.ndim == 4 and samples.shape[3] == 1:
        return samples[..., 0]
    if samples.ndim == 3 or (samples.ndim == 4 and samples.shape[3] == 3):
        return samples
    raise DatasetError(
        f"{found}; accepted for uint8: pixels, N × height × width, also with × 1 or × 3 at the end; "
        f"tensors are called {_TENSORS}"
    )


def _texts(labels: NDArray[Any], count: int, path: Path) -> list[str]:
    """The labels as text, one for each of the ``count`` samples."""
    if labels.shape not in {(count,), (count, 1)}:
        raise DatasetError(f"{path}: labels have shape {list(labels.shape)}, but there are {count} samples")
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
