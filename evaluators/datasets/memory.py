"""Datasets that are in memory: an array of the caller, and random tensors."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from inferometer.agent.preprocessing.inputs import (
    NamedTensors,
    Tensor,
    Tensors,
    batch_size,
    dtype_of,
)
from inferometer.evaluators.datasets.base import Dataset, DatasetIdentity, Sample
from inferometer.evaluators.load.prepared_inputs import synthetic_arrays
from inferometer.manifests.errors import DatasetError, suggestion
from inferometer.manifests.inputs import TensorSpec

_KINDS = "fiub"
_STRINGS = "UO"


class ArrayInputs(Dataset):
    """The samples of an array, without labels, as tensors that are not preprocessed.

    Its checksum is the SHA-256 of the array's content in C order, in the array's byte order.

    Args:
        array: Samples × the shape of the model's input; floats, whole numbers or strings.
        tensor: The tensor that the model takes.

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
        arrays: Samples × the shape of each of the model's inputs, by its name or in the model's order.
        tensors: The tensors that the model takes.

    Raises:
        DatasetError: An array is empty, or the names, shapes or dtypes do not fit the model.
    """

    def __init__(
        self, arrays: Mapping[str, NDArray[Any]] | Sequence[NDArray[Any]], tensors: Sequence[TensorSpec]
    ) -> None:
        names = [each.name for each in tensors]
        if not isinstance(arrays, Mapping):
            if len(arrays) != len(names):
                takes = f"the model takes {len(names)}: {_listed(names)}"
                raise DatasetError(f"found {len(arrays)} inputs; {takes}")
            arrays = dict(zip(names, arrays, strict=True))
        self._arrays = checked_arrays("inputs", arrays, tensors)
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
    """Random tensors of a model's inputs, as ``synthetic_arrays`` draws them, without labels.

    Where memory bounds their number, or more are asked for than it draws, the same ones follow again.

    Args:
        tensors: The tensors that the model takes.
        count: The number of samples.
        seed: Draws the tensors.
        size: The size of dynamic axes; None is what each tensor has for them.
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
        super().__init__(DatasetIdentity("synthetic", source, None, None, count))

    def __iter__(self) -> Iterator[Sample]:
        for index in range(len(self)):
            yield Sample(str(index), payload_of(self._arrays, index % self._drawn))


def payload_of(arrays: Tensors, index: int) -> Tensor | NamedTensors:
    """Returns one input of arrays with the batch as their first axis."""
    if len(arrays) == 1:
        return Tensor(next(iter(arrays.values()))[index])
    return NamedTensors({name: array[index] for name, array in arrays.items()})


def checked_arrays(
    where: object, arrays: Mapping[str, NDArray[Any]], tensors: Sequence[TensorSpec]
) -> dict[str, NDArray[Any]]:
    """Returns the arrays of a model's inputs in its order.

    Raises:
        DatasetError: The message begins with ``where``. A name, a shape or a dtype does not fit the model,
            or the arrays differ in length.
    """
    names = [each.name for each in tensors]
    for name in (*names, *arrays):
        if name not in arrays:
            raise DatasetError(f'{where}: has no array "{name}"; {suggestion(name, list(arrays))}')
        if name not in names:
            raise DatasetError(f'{where}: has the array "{name}"; the model takes {_listed(names)}')
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
    """Returns whether an array can be what the model takes without loss; strings are checked one by one."""
    dtype = dtype_of(tensor)
    if dtype.hasobject:
        return array.dtype.kind in _STRINGS
    return array.dtype.kind in _KINDS and np.can_cast(
        array.dtype, dtype, "same_kind" if dtype.kind == "f" else "safe"
    )


def _content(array: NDArray[Any]) -> memoryview:
    """Returns the bytes of an array, in C order and its own byte order; for strings, those of their JSON."""
    if array.dtype.kind in _STRINGS:
        return memoryview(json.dumps(array.tolist(), default=str).encode())
    return np.ascontiguousarray(array).data


def _listed(names: Sequence[str]) -> str:
    return ", ".join(f'"{name}"' for name in names)


def _sizes(shape: tuple[int, ...]) -> str:
    return ", ".join(map(str, shape))
