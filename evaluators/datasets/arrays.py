"""Datasets of arrays: the caller's arrays, random tensors, and the arrays in an ``.npz``.

An ``.npz`` contains images or tensors in one NumPy array, and labels in another.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.lib.npyio import NpzFile
from numpy.typing import NDArray

from inferometer.agent.preprocessing.inputs import (
    STRING_CHARACTERS,
    NamedTensors,
    Payload,
    Pixels,
    Tensor,
    Tensors,
    batch_size,
    dtype_of,
    element_bytes,
    quoted,
)
from inferometer.evaluators.datasets.base import Dataset, DatasetIdentity, LoadedDataset, Sample, TargetValues
from inferometer.evaluators.statistics import random_state
from inferometer.manifests.errors import (
    ConfigurationError,
    DatasetError,
    explained,
    printable_name,
    suggestion,
)
from inferometer.manifests.inputs import TensorSpec

MAX_BYTES = 64 * 1024 * 1024
"""The maximum memory of the inputs, unless a single input takes more."""
SYNTHETIC_INPUTS = 64
_BELOW_ONE = 1 - 2.0**-11
"""The largest number below 1 that float16 holds, so no element type rounds up to 1."""

_KINDS = "fiub"
_STRINGS = "UO"


class ArrayInputs(Dataset):
    """The samples of an array, without labels, as tensors that are not preprocessed.

    Its checksum is the SHA-256 of the array's content in C order, in the array's byte order.

    Args:
        array: Samples × the shape of the model's input; floats, whole numbers or strings.
        tensor: The model's input tensor.

    Raises:
        DatasetError: The array is empty, or its shape or dtype do not fit the model.
    """

    def __init__(self, array: NDArray[Any], tensor: TensorSpec) -> None:
        wanted = f"inputs of {tensor.element_type.value} (samples, {_sizes(tensor.written)})"
        found = f"inputs are {array.dtype} of shape ({_sizes(array.shape)})"
        if not tensor.takes(array.shape[1:]) or not array.size:
            raise DatasetError(f"{found}; the model takes {wanted}")
        if not _converts(array, tensor):
            raise DatasetError(f"{found}; the model takes {wanted}, and no other type converts without loss")
        self._array = array
        content = hashlib.sha256(_content(array))
        super().__init__(
            DatasetIdentity("array", "inputs in memory", None, f"sha256:{content.hexdigest()}", len(array))
        )

    def __iter__(self) -> Iterator[Sample]:
        for index, sample in enumerate(self._array):
            yield Sample(str(index), Tensor(sample))


class NamedArrayInputs(Dataset):
    """The samples of several arrays, without labels, as tensors that are not preprocessed.

    Its checksum is the SHA-256 of the arrays' names and contents in C order.

    Args:
        arrays: Samples × the input's shape, for each of the model's inputs: by name or in the model's order.
        tensors: The model's input tensors.

    Raises:
        DatasetError: An array is empty, or the names, shapes or dtypes do not fit the model.
    """

    def __init__(
        self, arrays: Mapping[str, NDArray[Any]] | Sequence[NDArray[Any]], tensors: Sequence[TensorSpec]
    ) -> None:
        names = [each.name for each in tensors]
        if not isinstance(arrays, Mapping):
            if len(arrays) != len(names):
                takes = f"the model takes {len(names)}: {quoted(names)}"
                raise DatasetError(f"found {len(arrays)} inputs; {takes}")
            arrays = dict(zip(names, arrays, strict=True))
        self._arrays = _checked_arrays("inputs", arrays, tensors)
        content = hashlib.sha256()
        for name, array in self._arrays.items():
            content.update(f"{name} {array.dtype} {array.shape}\n".encode())
            content.update(_content(array))
        count = len(self._arrays[names[0]])
        super().__init__(
            DatasetIdentity("array", "inputs in memory", None, f"sha256:{content.hexdigest()}", count)
        )

    def __iter__(self) -> Iterator[Sample]:
        for index in range(len(self)):
            yield Sample(str(index), payload_of(self._arrays, index))


class SyntheticDataset(Dataset):
    """Random tensors for a model's inputs, drawn by ``synthetic_arrays``, without labels.

    If memory limits their number, or more are requested than are drawn, the same tensors repeat.

    Args:
        tensors: The model's input tensors.
        count: The number of samples.
        seed: The seed of the tensors.
        size: The size of dynamic axes; None means each tensor's own size.
    """

    def __init__(self, tensors: Sequence[TensorSpec], count: int, seed: int, size: int | None = None) -> None:
        self._arrays = synthetic_arrays(tensors, seed, size=size)
        self._drawn = batch_size(self._arrays)
        noun = "synthetic tensor" if len(self._arrays) == 1 else "synthetic input"
        sizes = {
            found
            for each in tensors
            for found, fixed in zip(each.sized(size), each.dimensions, strict=True)
            if fixed is None
        }
        dynamic = f", dynamic axes of {', '.join(map(str, sorted(sizes)))}" if sizes else ""
        source = f"{self._drawn} {noun}{'' if self._drawn == 1 else 's'}, seed {seed}{dynamic}"
        super().__init__(DatasetIdentity.synthetic(source, count))

    def __iter__(self) -> Iterator[Sample]:
        for index in range(len(self)):
            yield Sample(str(index), payload_of(self._arrays, index % self._drawn))


def _checked_arrays(
    where: object, arrays: Mapping[str, NDArray[Any]], tensors: Sequence[TensorSpec]
) -> dict[str, NDArray[Any]]:
    """Returns the arrays for a model's inputs, in the model's order."""
    names = [each.name for each in tensors]
    for name in (*names, *arrays):
        if name not in arrays:
            raise DatasetError(f'{where}: has no array "{name}"; {suggestion(name, list(arrays))}')
        if name not in names:
            raise DatasetError(f'{where}: has the array "{name}"; the model takes {quoted(names)}')
    for each in tensors:
        array = arrays[each.name]
        found = f"{where}: {each.name} is {array.dtype} of shape ({_sizes(array.shape)})"
        wanted = f"{each.element_type.value} (samples, {_sizes(each.written)})"
        if not array.size or not each.takes(array.shape[1:]) or not _converts(array, each):
            raise DatasetError(f"{found}; the model takes {wanted}")
    sizes = {name: len(arrays[name]) for name in names}
    if len(set(sizes.values())) > 1:
        counted = ", ".join(f"{size} of {name}" for name, size in sizes.items())
        raise DatasetError(f"{where}: the arrays differ in length: {counted}")
    return {name: arrays[name] for name in names}


def _converts(array: NDArray[Any], tensor: TensorSpec) -> bool:
    """Returns whether an array converts to the model's type without loss; strings are checked one by one."""
    dtype = dtype_of(tensor)
    if dtype.hasobject:
        return array.dtype.kind in _STRINGS
    return array.dtype.kind in _KINDS and np.can_cast(
        array.dtype, dtype, "same_kind" if dtype.kind == "f" else "safe"
    )


def _content(array: NDArray[Any]) -> memoryview:
    """Returns the bytes of an array, in C order and its own byte order; strings are converted to JSON."""
    if array.dtype.kind in _STRINGS:
        return memoryview(json.dumps(array.tolist(), default=str).encode())
    return np.ascontiguousarray(array).data


def _sizes(shape: tuple[int, ...]) -> str:
    return ", ".join(map(str, shape))


_TENSORS = "inputs"
_SAMPLES = (_TENSORS, "images", "x", "data")
_LABELS = ("labels", "y")
_TARGETS = "targets"
_LARGEST_ELEMENT_BYTES = 8
_LEAST_LIMIT_BYTES = 256 * 1024 * 1024
_MOST_INFLATION = 100
"""The maximum number of bytes of an array per byte of its file; the limit above is always allowed."""


class ArraysDataset(LoadedDataset):
    """Images or tensors, and labels, in arrays. Samples have the order of the arrays, and their index as id.

    ``images`` (or ``x``, or ``data`` as in DLBS) with uint8 elements contains decoded images, which are
    preprocessed: N × height × width (grey), N × height × width × 1 (grey) or N × height × width × 3 (RGB).
    With floating-point elements it contains tensors, which are not preprocessed: N × the shape of the
    model's input. ``inputs`` instead contains tensors of any element type. The optional ``labels`` (or ``y``)
    contains N integers or texts, and the optional ``targets`` N or N × k numbers. Nothing is unpickled.

    For a model with several inputs, each array has the name of its input. The array of a model's only input
    may also have the input's name, if no array has one of the names above.

    The arguments are those of ``LoadedDataset``.

    Raises:
        DatasetError: The file is not an ``.npz``, is damaged, or its arrays are not as above.
    """

    backend = "npz"

    def _open(self, path: Path) -> int:
        arrays, labels, targets = _load(path, self._tensors)
        named = any(each.name in arrays and each.name not in _SAMPLES for each in self._tensors)
        if named or len(arrays) > 1:
            arrays = _checked_arrays(path, arrays, self._tensors)
            count = len(next(iter(arrays.values())))
            self._payload: Callable[[int], Payload] = partial(payload_of, arrays)
        else:
            [(array_name, samples)] = arrays.items()
            rows, payload = _payloads(array_name, samples, path)
            count = len(rows)
            self._payload = lambda index: payload(rows[index])
        self._labels = None if labels is None else _texts(labels, count, path)
        self._targets = None if targets is None else _targets_of(targets, count, path)
        return count

    def sample(self, index: int) -> Sample:
        """Returns a sample; its data is in memory."""
        label = None if self._labels is None else self._labels[index]
        truth = None if self._targets is None else TargetValues(self._targets[index])
        return Sample(str(index), self._payload(index), label, truth=truth)


def _load(
    path: Path, tensors: Sequence[TensorSpec]
) -> tuple[dict[str, NDArray[Any]], NDArray[Any] | None, NDArray[Any] | None]:
    """Reads the samples with the names of their arrays and, if there are any, the labels and the targets."""
    with opened_arrays(path) as content:
        named = [name for name in _SAMPLES if name in content.files]
        inputs = [each.name for each in tensors]
        labels = next((name for name in _LABELS if name in content.files and name not in inputs), None)
        if len(inputs) > 1:
            beside = {labels, None if _TARGETS in inputs else _TARGETS}
            named = [name for name in content.files if name not in beside]
        elif not named and inputs and inputs[0] in content.files:
            named = inputs
        elif len(named) != 1:
            found = ", ".join(map(printable_name, content.files)) or "none"
            wanted = "has no array" if not named else "needs one array of"
            raise DatasetError(f"{path}: {wanted} images (or x, data) or inputs; it has: {found}")
        samples = {name: read_array(content, name) for name in named}
        targets = (
            read_array(content, _TARGETS) if _TARGETS in content.files and _TARGETS not in named else None
        )
        return samples, None if labels is None else read_array(content, labels), targets


@contextmanager
def opened_arrays(path: Path) -> Iterator[NpzFile]:
    """Opens an ``.npz``, whose arrays ``read_array`` reads.

    Raises:
        DatasetError: It cannot be read, is not an ``.npz``, or proves to be damaged, even once it is open.
    """
    try:
        with explained(DatasetError, f"{path}: cannot be read"), path.open("rb") as file:
            content = np.load(file, allow_pickle=False)
            if not isinstance(content, NpzFile):
                raise DatasetError(f"{path}: is a single array; accepted: an .npz, of arrays with names")
            yield content
    except DatasetError:
        raise
    except Exception as error:
        # NumPy parses headers with Python's parser, which raises SyntaxError, TokenError and more
        raise DatasetError(f"{path}: is not an .npz of plain arrays, or is damaged") from error


def read_array(content: NpzFile, name: str) -> NDArray[Any]:
    """Reads an array, unless it inflates to far more bytes than its file holds.

    At most the size that the zip declares is read; if that is too small, the array is incomplete.

    Raises:
        DatasetError: The array is too large, or is not an array.
    """
    archive: Any = content.zip  # which is there while it is open
    for info in archive.infolist():
        most_bytes = max(_LEAST_LIMIT_BYTES, _MOST_INFLATION * info.compress_size)
        if info.filename in {name, f"{name}.npy"} and info.file_size > most_bytes:
            raise DatasetError(
                f"{archive.filename}: {printable_name(name)} has {info.file_size} bytes when unpacked; "
                f"accepted: {most_bytes}"
            )
    array = content[name]
    if not isinstance(array, np.ndarray):
        raise DatasetError(f"{archive.filename}: {printable_name(name)} is not an array")
    return array


def _payloads(
    name: str, samples: NDArray[Any], path: Path
) -> tuple[NDArray[Any], Callable[[NDArray[Any]], Payload]]:
    """Checks the array of the samples; returns it and the type of a sample's payload."""
    if name == _TENSORS and samples.dtype.kind == "U":
        samples = samples.astype(object)
    found = f"{path}: {name} are {samples.dtype} of shape {list(samples.shape)}"
    if samples.ndim and not len(samples):
        raise DatasetError(f"{path}: holds no {name}")
    if 0 in samples.shape:
        raise DatasetError(f"{found}, which is empty")
    if name == _TENSORS:
        kinds, accepted = "fiubO", "float32 (also 16, 64), whole numbers, bool or texts"
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
    """Checks the shape of decoded images; removes the last axis of grey images."""
    if samples.ndim == 4 and samples.shape[3] == 1:
        return samples[..., 0]
    if samples.ndim == 3 or (samples.ndim == 4 and samples.shape[3] == 3):
        return samples
    raise DatasetError(
        f"{found}; accepted for uint8: pixels, N × height × width, also with × 1 or × 3 at the end; "
        f"tensors are called {_TENSORS}"
    )


def _texts(labels: NDArray[Any], count: int, path: Path) -> list[str]:
    """Returns the labels as text, one for each of the ``count`` samples."""
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


def _targets_of(values: NDArray[Any], samples: int, path: Path) -> NDArray[np.float64]:
    """Returns the targets of the samples as float64, samples × k."""
    if (
        values.dtype.kind not in "fiub"
        or values.ndim not in {1, 2}
        or len(values) != samples
        or not values.size
    ):
        raise DatasetError(
            f"{path}: targets are {values.dtype} of shape {list(values.shape)}; accepted for {samples} "
            "samples: numbers, N or N × k"
        )
    targets = values.reshape(samples, -1).astype(np.float64)
    if len(wrong := np.flatnonzero(~np.isfinite(targets).all(axis=1))):
        raise DatasetError(f"{path}: a target of sample {wrong[0]} is not a finite number")
    return targets


def synthetic_arrays(
    tensors: Sequence[TensorSpec],
    seed: int | Sequence[int],
    *,
    count: int = SYNTHETIC_INPUTS,
    max_bytes: int = MAX_BYTES,
    size: int | None = None,
) -> dict[str, NDArray[Any]]:
    """Returns random tensors by name, like ``synthetic_tensors``; dynamic axes have ``size`` or their own.

    Raises:
        ConfigurationError: An axis cannot have that size.
    """
    for each in tensors:
        for fixed, axis in zip(each.dimensions, each.axes, strict=True):
            if size is not None and fixed is None and size not in axis:
                raise ConfigurationError(
                    f'sequence_length is {size}; the model\'s "{each.name}" takes {axis}'
                )
    shapes = {each.name: each.sized(size) for each in tensors}
    one_bytes = sum(math.prod(shapes[each.name]) * element_bytes(each) for each in tensors)
    count = min(count, max(1, max_bytes // one_bytes))
    random = random_state(seed)
    drawn = {each.name: np.empty((count, *shapes[each.name]), dtype_of(each)) for each in tensors}
    for batch in drawn.values():
        for tensor in batch:  # one by one: float64 of all of them would take twice the memory
            if batch.dtype.hasobject:
                letters = random.randint(ord("a"), ord("z") + 1, (tensor.size, STRING_CHARACTERS))
                texts = [bytes(row).decode() for row in letters.astype(np.uint8)]
                tensor[...] = np.array(texts, object).reshape(tensor.shape)
            elif batch.dtype.kind == "f":
                tensor[...] = np.minimum(random.random_sample(tensor.shape), _BELOW_ONE)
            else:
                whole = np.iinfo(batch.dtype) if batch.dtype in (np.int8, np.uint8) else None
                ends = (whole.min, whole.max + 1) if whole else (0, 2)
                tensor[...] = random.randint(*ends, tensor.shape)
    return drawn


def payload_of(batch: Tensors, index: int = 0) -> Tensor | NamedTensors:
    """Returns a row of a batch, such as a prepared input, as the data of one input."""
    arrays = {name: array[index] for name, array in batch.items()}
    return NamedTensors(arrays) if len(arrays) > 1 else Tensor(*arrays.values())
