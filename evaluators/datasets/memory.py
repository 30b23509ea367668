"""Datasets that are in memory: an array of the caller, and random tensors."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from inferometer.agent.preprocessing.inputs import Tensor, numeric_dtype_of
from inferometer.evaluators.datasets.base import Dataset, DatasetIdentity, Sample
from inferometer.evaluators.load.prepared_inputs import synthetic_arrays
from inferometer.manifests.errors import DatasetError
from inferometer.manifests.inputs import InputParameters

_KINDS = "fiu"


class ArrayInputs(Dataset):
    """The samples of an array, without labels, as tensors that are not preprocessed.

    Its checksum is the SHA-256 of the array's content in C order, in the array's byte order.

    Args:
        array: Samples × the shape of the model's input; floats or whole numbers.
        parameters: The model's input.

    Raises:
        DatasetError: The array is empty, or its shape or dtype do not fit the model.
    """

    def __init__(self, array: NDArray[Any], parameters: InputParameters) -> None:
        wanted = f"inputs of {parameters.element_type.value} (samples, {_sizes(parameters.dimensions)})"
        found = f"inputs are {array.dtype} of shape ({_sizes(array.shape)})"
        if array.shape[1:] != parameters.dimensions or not array.size:
            raise DatasetError(f"{found}; the model takes {wanted}")
        dtype = numeric_dtype_of(parameters)
        converts = np.can_cast(array.dtype, dtype, "same_kind" if dtype.kind == "f" else "safe")
        if array.dtype.kind not in _KINDS or not converts:
            raise DatasetError(f"{found}; the model takes {wanted}, and no other type converts without loss")
        self._array = array
        content = hashlib.sha256(np.ascontiguousarray(array).data)
        super().__init__(
            DatasetIdentity("array", "inputs in memory", None, f"sha256:{content.hexdigest()}", len(array))
        )

    def __iter__(self) -> Iterator[Sample]:
        for index, sample in enumerate(self._array):
            yield Sample(str(index), Tensor(sample))


class SyntheticDataset(Dataset):
    """Random tensors of a model's input, as ``synthetic_arrays`` draws them, without labels.

    Where memory bounds their number, or more are asked for than it draws, the same ones follow again.

    Args:
        parameters: The model's input.
        count: The number of samples.
        seed: Draws the tensors.
    """

    def __init__(self, parameters: InputParameters, count: int, seed: int) -> None:
        [self._tensors] = synthetic_arrays(parameters.tensors, seed).values()
        drawn = len(self._tensors)
        source = f"{drawn} synthetic tensor{'' if drawn == 1 else 's'}, seed {seed}"
        super().__init__(DatasetIdentity("synthetic", source, None, None, count))

    def __iter__(self) -> Iterator[Sample]:
        for index in range(len(self)):
            yield Sample(str(index), Tensor(self._tensors[index % len(self._tensors)]))


def _sizes(shape: tuple[int, ...]) -> str:
    return ", ".join(map(str, shape))
