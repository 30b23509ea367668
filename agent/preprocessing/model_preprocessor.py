"""A model's preprocessor, which combines the preprocessors of its inputs to create a batch's tensors."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from inferometer.agent.preprocessing.inputs import (
    MAX_PIXELS,
    EncodedImage,
    NamedTensors,
    Origin,
    Payload,
    Tensors,
    Text,
    dtype_of,
    padded,
    quoted,
)
from inferometer.agent.preprocessing.preprocessor import (
    ImagePreprocessor,
    Preprocessor,
    bytes_ahead,
    check_tensor,
    check_text,
    preprocessor_of,
)
from inferometer.manifests.errors import InputError
from inferometer.manifests.inputs import InputParameters, TensorSpec, TextParameters
from inferometer.manifests.schema import ModelManifest


class ModelPreprocessor:
    """Creates the input tensors of one model. Thread-safe.

    Rows of tensors with a fixed shape are written into the batch's memory. Rows of tensors with dynamic axes
    are kept separately and padded to the longest in the batch; one of the model's own inputs, such as an
    attention mask, marks the elements that are not padding.

    Attributes:
        tensors: The tensors that the model takes, in order.
        tensor_bytes: The memory for one input's tensors; approximate with dynamic axes.
        bytes_ahead: The memory to allow for one input that is prepared ahead.
        splits: Whether an input becomes one or more rows of a batch.
    """

    def __init__(self, preprocessors: Sequence[Preprocessor]) -> None:
        self._preprocessors = tuple(preprocessors)
        self.tensors: tuple[TensorSpec, ...] = tuple(
            tensor for each in self._preprocessors for tensor in each.tensors
        )
        self.tensor_bytes = sum(each.tensor_bytes for each in self._preprocessors)
        self.bytes_ahead = bytes_ahead(self.tensors)
        self._names = tuple(each.name for each in self.tensors)
        self._images = {
            each.tensors[0].name: each for each in preprocessors if isinstance(each, ImagePreprocessor)
        }
        self._fixed = tuple(
            (each.name, each.sized(), dtype_of(each)) for each in self.tensors if not each.is_dynamic
        )
        self.splits = any(each.splits for each in self._preprocessors)
        self._padded = len(self._fixed) < len(self.tensors)
        self._takes_pairs = [each[1:] for each in self._fixed] == 2 * [((1,), np.dtype(object))]
        self._same_size = tuple(each.name for each in self.tensors if each.same_size)

    @property
    def libraries(self) -> Mapping[str, str]:
        """The versions of the libraries that affect the tensors' values, by name."""
        return {name: found for each in self._preprocessors for name, found in each.libraries.items()}

    def new_batch(self, size: int) -> dict[str, NDArray[Any]]:
        """Returns memory for those tensors of a batch that have a fixed shape."""
        return {name: np.empty((size, *dimensions), dtype) for name, dimensions, dtype in self._fixed}

    def prepare(self, payload: Payload, batch: Tensors, place: int) -> Tensors | None:
        """Writes an input into its row of a batch, and returns its rows of tensors with dynamic axes, if any.

        Raises:
            InputError: The payload does not fit the model; the row's content is then undefined.
        """
        if isinstance(payload, NamedTensors):
            if self.splits:
                raise InputError("the model divides texts into windows; give texts, not tensors")
            return self._written(self.named(payload.arrays), batch, place)
        if isinstance(payload, Text) and self._takes_pairs:
            return self._written(self._pair(payload), batch, place)
        if len(self._preprocessors) > 1:
            raise InputError(f"the model takes the tensors {quoted(self._names)}; give all of them by name")
        return self._preprocessors[0].prepare(payload, batch, place)

    def origin(self, payload: Payload) -> Origin | None:
        """Returns the origin of a prepared input, or of its encoded image; see ``Preprocessor.origin``."""
        for name, array in payload.arrays.items() if isinstance(payload, NamedTensors) else ():
            if (image := self._images.get(name)) and _is_encoded(array):
                return image.origin(EncodedImage(array.tobytes()))
        return self._preprocessors[0].origin(payload) if len(self._preprocessors) == 1 else None

    def misfits(self, rows: Sequence[Tensors | None]) -> list[str]:
        """Returns, for each input, why it cannot be in a batch with the first; empty if it can.

        Images of any size are not padded: all images in a batch must have the same size. ``rows`` are what
        ``prepare`` returned for each input.
        """
        found = [""] * len(rows)
        for name in self._same_size:
            shapes = [row[name].shape for row in rows if row]
            for place, shape in enumerate(shapes):
                if shape != shapes[0]:
                    found[place] = (
                        f"the input has shape {list(shape)}, and the first of its batch {list(shapes[0])}; "
                        "the model takes images of any size, but of one size in a batch: use batch_size 1"
                    )
        return found

    def assembled(
        self, batch: Tensors, places: Sequence[int] | None, rows: Sequence[Tensors | None]
    ) -> dict[str, NDArray[Any]]:
        """Returns the tensors of a batch, in the model's order.

        ``batch`` has the tensors with a fixed shape, and ``rows`` what ``prepare`` returned for the others.
        ``places`` are the indices of the rows to return; None for all.
        """
        if self.splits:
            return {
                each.name: padded(each, [window for row in rows if row for window in row[each.name]])
                for each in self.tensors
            }
        if places is not None:
            batch = {name: array[places] for name, array in batch.items()}
        if not self._padded:
            return dict(batch)
        return {
            each.name: padded(each, [row[each.name] for row in rows if row])
            if each.is_dynamic
            else batch[each.name]
            for each in self.tensors
        }

    def named(self, batch: Tensors | NDArray[Any]) -> Tensors:
        """Returns tensors by name; a bare array stands for the model's only tensor.

        Raises:
            InputError: The names differ from those of the model's tensors.
        """
        names = self._names
        if isinstance(batch, np.ndarray):
            if len(names) > 1:
                raise InputError(f"found one tensor; the model takes {len(names)}: {quoted(names)}")
            return {names[0]: batch}
        if tuple(batch) != names and set(batch) != set(names):
            takes = f"one tensor, {quoted(names)}" if len(names) == 1 else f"the tensors {quoted(names)}"
            raise InputError(f"found {quoted(batch) or 'no tensor'}; the model takes {takes}")
        return batch

    def checked(self, batch: Tensors | NDArray[Any]) -> dict[str, NDArray[Any]]:
        """Returns a batch in the form that the model requires: names, element types, shapes, C order.

        Raises:
            InputError: The batch is empty, or does not fit the model.
        """
        batch = self.named(batch)
        first = batch[self._names[0]]
        if first.ndim == 0 or not len(first):
            raise InputError("the batch is empty; it needs at least one input")
        size = first.shape[:1]
        if len(self.tensors) == 1:
            return {self._names[0]: check_tensor(first, self.tensors[0], size)}
        return {each.name: _named_check(batch[each.name], each, size) for each in self.tensors}

    def _pair(self, payload: Text) -> Tensors:
        """Returns a pair of texts as the two strings that the model takes."""
        if payload.pair is None:
            raise InputError(f"found one text; the model takes a pair, {quoted(self._names)}")
        pair = payload.text, payload.pair
        return {name: check_text(text) for name, text in zip(self._names, pair, strict=True)}

    def _written(self, arrays: Tensors, batch: Tensors, place: int) -> Tensors | None:
        """Writes tensors into their rows, and encoded images once they are preprocessed.

        Returns the tensors with dynamic axes, which have no rows in ``batch``.
        """
        rows: dict[str, NDArray[Any]] = {}
        for tensor in self.tensors:
            array, image = arrays[tensor.name], self._images.get(tensor.name)
            if image is not None and _is_encoded(array):
                array = image(EncodedImage(array.tobytes()))
            array = _named_check(array, tensor)
            if tensor.is_dynamic:
                rows[tensor.name] = array
            else:
                batch[tensor.name][place] = array
        return rows or None


def model_preprocessor_of(
    manifest: ModelManifest, max_pixels: int = MAX_PIXELS, tokenizers: Mapping[int, Path] | None = None
) -> ModelPreprocessor:
    """Returns the preprocessor for a model; images of more than ``max_pixels`` are rejected.

    ``tokenizers`` are the tokenizer files for text inputs, by the index of the input.
    """
    files = tokenizers or {}
    return ModelPreprocessor(
        [_preprocessor(each.parameters, max_pixels, files.get(n)) for n, each in enumerate(manifest.inputs)]
    )


def _preprocessor(parameters: InputParameters, max_pixels: int, tokenizer: Path | None) -> Preprocessor:
    if not isinstance(parameters, TextParameters) or tokenizer is None:
        return preprocessor_of(parameters, max_pixels)
    # the library that it needs is an extra
    from inferometer.agent.preprocessing.text_preprocessor import TextPreprocessor

    return TextPreprocessor(parameters, tokenizer)


def _is_encoded(array: NDArray[Any]) -> bool:
    """Returns whether an array for an image is the content of its file: uint8, bytes."""
    return array.dtype == np.uint8 and array.ndim == 1


def _named_check(array: NDArray[Any], tensor: TensorSpec, batch: tuple[int, ...] = ()) -> NDArray[Any]:
    try:
        return check_tensor(array, tensor, batch)
    except InputError as error:
        raise InputError(f'input "{tensor.name}": {error}') from error
