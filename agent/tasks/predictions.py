"""Predictions in columns, and the interface of the postprocessing that creates them from outputs.

Also contains the run-length encoding of masks, and ``find_layer``, which finds the output that a manifest
names. A task has one class in this package, for the agent, and one in ``evaluators.tasks`` that scores the
predictions against a dataset: an agent knows nothing about datasets.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any, ClassVar, Protocol, TypeAlias

import numpy as np
from numpy.typing import NDArray
from typing_extensions import Self

from inferometer.agent.preprocessing.inputs import ImageGeometry, Origin, Tensors, TokenizedText
from inferometer.manifests.errors import PredictionError
from inferometer.manifests.schema import ModelOutput

Columns: TypeAlias = Mapping[str, NDArray[Any]]
NO_CLASS = -1
"""A pixel to which a model assigns none of its labels, such as a background without a label."""
UNSEEN = -2
"""A pixel that the model did not see, because preprocessing cropped it away."""


class Predictions:
    """The predictions for a batch's inputs, in the order of the inputs.

    A subclass is a frozen dataclass whose fields are its columns.

    Attributes:
        kind: The name that identifies the subclass in messages and in a store.
        counted_by: For each column that has any number of entries for an input, the column with these
            numbers, or with the heights and widths whose products they are; other columns have one entry.
    """

    kind: ClassVar[str]
    counted_by: ClassVar[Mapping[str, str]] = {}

    def __len__(self) -> int:
        """Returns the number of inputs, which is the length of the first column."""
        return len(getattr(self, fields(self)[0].name))  # type: ignore[arg-type]

    def row(self, place: int) -> Self:
        """Returns the predictions for a single input; raises IndexError if there is no such input."""
        if not 0 <= place < len(self):
            raise IndexError(f"input {place} of {len(self)} {self.kind}")
        return type(self)(
            **{name: column[self._entries(name, place)] for name, column in self.columns().items()}
        )

    def _entries(self, name: str, place: int) -> slice:
        """Returns where a column has the entries of an input."""
        if name not in self.counted_by:
            return slice(place, place + 1)
        counts, owners = getattr(self, self.counted_by[name]), self._entries(self.counted_by[name], place)
        if counts.ndim == 2:  # heights and widths
            counts = counts.prod(axis=1)
        return slice(int(counts[: owners.start].sum()), int(counts[: owners.stop].sum()))

    def columns(self) -> Columns:
        """Returns the columns by name."""
        return {field.name: getattr(self, field.name) for field in fields(self)}  # type: ignore[arg-type]

    @classmethod
    def of_columns(cls, columns: Columns) -> Self:
        """Returns predictions built from columns; raises ValueError if these do not fit together."""
        wanted = [field.name for field in fields(cls)]  # type: ignore[arg-type]
        if missing := [name for name in wanted if name not in columns]:
            raise ValueError(f"{cls.kind} lack the column {missing[0]}")
        if scalars := [name for name in wanted if not columns[name].ndim]:
            raise ValueError(f"the column {scalars[0]} of {cls.kind} is a single number")
        found = cls(**{name: columns[name] for name in wanted})
        found.check()
        return found

    def check(self) -> None:
        """Raises ValueError if the columns do not fit together."""


@dataclass(frozen=True, slots=True, eq=False)
class Classifications(Predictions):
    """The best classes for each input, the most probable first.

    Attributes:
        indices: int64, inputs × k; indices into the model's list of labels.
        probabilities: float32, inputs × k, after the manifest's transform; NaN if the model names only the
            class.
    """

    kind: ClassVar[str] = "classifications"
    indices: NDArray[np.int64]
    probabilities: NDArray[np.float32]

    def check(self) -> None:
        """Raises ValueError if the columns do not fit together."""
        if self.indices.ndim != 2 or self.indices.shape != self.probabilities.shape:
            raise ValueError("the classes and their probabilities differ in number")


@dataclass(frozen=True, slots=True, eq=False)
class RawOutputs:
    """The unprocessed output tensors, each with the batch as its first axis, or one for the whole batch."""

    tensors: Tensors


@dataclass(frozen=True, slots=True, eq=False)
class Detections(Predictions):
    """The objects detected in each image, the most certain first.

    Attributes:
        counts: int64, inputs; how many objects were detected in each image.
        boxes: float32, objects × 4; left, top, right and bottom in pixels of the original image.
        scores: float32, objects; 0…1.
        classes: int64, objects; indices into the model's list of labels.
    """

    kind: ClassVar[str] = "detections"
    counted_by: ClassVar[Mapping[str, str]] = dict.fromkeys(("boxes", "scores", "classes"), "counts")
    counts: NDArray[np.int64]
    boxes: NDArray[np.float32]
    scores: NDArray[np.float32]
    classes: NDArray[np.int64]

    def check(self) -> None:
        """Raises ValueError if the columns do not fit together."""
        total = _total(self.counts)
        if {len(self.boxes), len(self.scores), len(self.classes)} != {total}:
            raise ValueError(f"the columns of {total} detections differ in length")
        if self.boxes.shape != (total, 4):
            raise ValueError(f"boxes of shape {list(self.boxes.shape)}; a box has four numbers")


@dataclass(frozen=True, slots=True, eq=False)
class Instances(Predictions):
    """The objects detected in each image, the most certain first, with each object's pixels.

    Attributes:
        counts: int64, inputs; how many objects were detected in each image.
        boxes: float32, objects × 4; as in ``Detections``.
        scores: float32, objects; 0…1.
        classes: int64, objects; indices into the model's list of labels.
        sizes: int64, inputs × 2; the height and width of the masks, which are those of the original image.
        mask_lengths: int64, objects; the number of bytes of each mask.
        masks: uint8; the masks' compressed run lengths, as in COCO, one after another; see ``encoded``.
    """

    kind: ClassVar[str] = "instances"
    counted_by: ClassVar[Mapping[str, str]] = {
        **Detections.counted_by,
        "mask_lengths": "counts",
        "masks": "mask_lengths",
    }
    counts: NDArray[np.int64]
    boxes: NDArray[np.float32]
    scores: NDArray[np.float32]
    classes: NDArray[np.int64]
    sizes: NDArray[np.int64]
    mask_lengths: NDArray[np.int64]
    masks: NDArray[np.uint8]

    @property
    def detections(self) -> Detections:
        """The objects without their masks."""
        return Detections(self.counts, self.boxes, self.scores, self.classes)

    def run_lengths(self) -> list[bytes]:
        """Returns the compressed run lengths of each object's mask, as in COCO, in order."""
        ends = np.cumsum(self.mask_lengths)
        content = self.masks.tobytes()
        starts = ends - self.mask_lengths
        return [content[start:end] for start, end in zip(starts.tolist(), ends.tolist(), strict=True)]

    def check(self) -> None:
        """Raises ValueError if the columns do not fit together."""
        self.detections.check()
        if len(self.sizes) != len(self.counts) or len(self.mask_lengths) != len(self.scores):
            raise ValueError(f"the columns of {len(self.scores)} masks differ in length")
        if int(self.mask_lengths.sum()) != len(self.masks):
            raise ValueError(f"{len(self.masks)} bytes do not fit the lengths of the masks")


@dataclass(frozen=True, slots=True, eq=False)
class ClassMaps(Predictions):
    """The class of each pixel of each image.

    Attributes:
        sizes: int64, inputs × 2; the height and width of each map, which are those of the original image.
        pixels: int32; the pixels of one map after another, row by row: indices into the model's labels,
            ``NO_CLASS`` or ``UNSEEN``.
    """

    kind: ClassVar[str] = "class_maps"
    counted_by: ClassVar[Mapping[str, str]] = {"pixels": "sizes"}
    sizes: NDArray[np.int64]
    pixels: NDArray[np.int32]

    def map(self, place: int) -> NDArray[np.int32]:
        """Returns the map of one image as a height × width array."""
        found: NDArray[np.int32] = self.row(place).pixels.reshape(tuple(self.sizes[place]))
        return found

    def check(self) -> None:
        """Raises ValueError if the columns do not fit together."""
        if self.sizes.ndim != 2 or self.sizes.shape[1] != 2 or (self.sizes < 0).any():
            raise ValueError("the sizes of the maps are not heights and widths")
        if int(self.sizes.prod(axis=1).sum()) != len(self.pixels):
            raise ValueError(f"{len(self.pixels)} pixels do not fit the sizes of the maps")


@dataclass(frozen=True, slots=True, eq=False)
class Images(Predictions):
    """An output image for each input image.

    Attributes:
        pixels: float32, inputs × height × width × channels (red, green, blue, or grey), 0…1; float64 if they
            are read from another tool's file.
    """

    kind: ClassVar[str] = "images"
    pixels: NDArray[np.floating[Any]]


@dataclass(frozen=True, slots=True, eq=False)
class Values(Predictions):
    """Numbers for each input: the values of a regression, or an embedding.

    float32; float64 if the model, or another tool, returns numbers that float32 cannot represent.
    """

    kind: ClassVar[str] = "values"
    values: NDArray[np.floating[Any]]


@dataclass(frozen=True, slots=True, eq=False)
class Texts(Predictions):
    """A text for each input, such as an answer.

    Attributes:
        counts: int64, inputs; the number of bytes of each text in UTF-8.
        characters: uint8; the texts in UTF-8, one after another.
    """

    kind: ClassVar[str] = "texts"
    counted_by: ClassVar[Mapping[str, str]] = {"characters": "counts"}
    counts: NDArray[np.int64]
    characters: NDArray[np.uint8]

    @classmethod
    def of(cls, texts: Iterable[str]) -> Texts:
        """Returns predictions for texts."""
        encoded = [text.encode("utf-8") for text in texts]
        counts = np.array([len(each) for each in encoded], np.int64)
        return cls(counts, np.frombuffer(b"".join(encoded), np.uint8))

    def text(self, place: int) -> str:
        """Returns the text for one input as a string."""
        return self.row(place).characters.tobytes().decode("utf-8", "replace")

    def check(self) -> None:
        """Raises ValueError if the columns do not fit together."""
        if _total(self.counts) != len(self.characters):
            raise ValueError(f"{len(self.characters)} bytes do not fit the lengths of the texts")


def _total(counts: NDArray[np.int64]) -> int:
    if counts.ndim != 1 or (counts < 0).any():
        raise ValueError("the counts are not numbers of entries")
    return int(counts.sum())


Outputs: TypeAlias = Predictions | RawOutputs
"""The result of postprocessing a model's outputs."""


_BITS = 5
_MORE = 0x20
_FIRST = 48
_MOST_CHARACTERS = 13


def encoded(mask: NDArray[np.bool_]) -> bytes:
    """Returns the compressed run lengths of a mask, height × width."""
    pixels = np.ravel(mask, order="F")
    if not pixels.size:
        return b""
    changes = np.flatnonzero(pixels[1:] != pixels[:-1]) + 1
    ends = np.concatenate([[0], changes, [pixels.size]])
    counts = np.diff(ends)
    return compressed(np.concatenate([[0], counts]) if pixels[0] else counts)


def compressed(counts: Sequence[int] | NDArray[np.int64]) -> bytes:
    """Returns run lengths, beginning with pixels outside the mask, in COCO's text form.

    Source: ``rleToString`` in ``maskApi.c`` of the COCO API. From the third length on, each is stored as its
    difference from the length two places before, in groups of five bits, the lowest first.
    """
    lengths = np.asarray(counts, np.int64)
    values = lengths.copy()
    values[3:] -= lengths[1:-2]
    characters = np.zeros((len(values), _MOST_CHARACTERS), np.uint8)
    used = np.zeros(characters.shape, np.bool_)
    active = np.ones(len(values), np.bool_)
    for place in range(_MOST_CHARACTERS):
        bits = values & 0x1F
        values >>= _BITS
        more = np.where(bits & 0x10, values != -1, values != 0)
        characters[:, place] = (bits | np.where(more, _MORE, 0)) + _FIRST
        used[:, place] = active
        active &= more
        if not active.any():
            break
    return characters[used].tobytes()


def decoded(content: bytes, height: int, width: int) -> NDArray[np.bool_]:
    """Returns the mask, height × width, that compressed run lengths encode.

    Raises:
        ValueError: The run lengths are damaged, or encode a mask of another size.
    """
    counts = _lengths(content, height * width)
    inside = np.arange(len(counts)) % 2 == 1
    pixels: NDArray[Any] = np.repeat(inside, counts)
    return pixels.reshape((height, width), order="F")


def _lengths(content: bytes, pixels: int) -> list[int]:
    """Decodes run lengths, which fill the pixels, from COCO's text (``rleFrString`` in ``maskApi.c``)."""
    counts: list[int] = []
    value = shift = 0
    for character in content:
        bits = character - _FIRST
        if not 0 <= bits < 2 * _MORE:
            raise ValueError("run lengths have an invalid character")
        value |= (bits & 0x1F) << shift
        shift += _BITS
        if bits & _MORE:
            if shift > _BITS * _MOST_CHARACTERS:
                raise ValueError("a run length has too many characters")
            continue
        if bits & 0x10:
            value -= 1 << shift
        counts.append(value + counts[-2] if len(counts) > 2 else value)
        value = shift = 0
    if shift:
        raise ValueError("run lengths end in the middle of a number")
    if any(count < 0 for count in counts) or sum(counts) != pixels:
        raise ValueError(f"run lengths do not fill the {pixels} pixels of the mask")
    return counts


def areas(contents: Sequence[bytes], height: int, width: int) -> list[int]:
    """Returns the number of pixels in each mask, height × width.

    Raises:
        ValueError: Run lengths are damaged, or of a mask of another size (which pycocotools does not check).
    """
    pixels = height * width
    return [sum(itertools.islice(_lengths(content, pixels), 1, None, 2)) for content in contents]


@dataclass(frozen=True, slots=True)
class PredictedInputs:
    """The information about a batch's inputs that postprocessing uses in addition to the outputs.

    Attributes:
        size: The number of inputs.
        geometries: How each image became an input; None for an input that is not an image; empty if no input
            is. If there is no geometry, coordinates are those of the model's input.
        texts: The text of each input and the offsets of its tokens, if it has a text.
    """

    size: int
    geometries: Sequence[ImageGeometry | None] = ()
    texts: Sequence[TokenizedText | None] = ()

    @property
    def rows(self) -> int:
        """The number of rows of the outputs: one for each input, and one for each further window."""
        return self.size + sum(len(text.further) for text in self.texts if text is not None)

    @classmethod
    def of(cls, size: int, origins: Sequence[Origin | None]) -> PredictedInputs:
        """Returns the information about inputs, given the origin of each."""
        return cls(
            size,
            tuple(each if isinstance(each, ImageGeometry) else None for each in origins),
            tuple(each if isinstance(each, TokenizedText) else None for each in origins),
        )


class TaskPostprocessor(Protocol):
    """Creates predictions from a model's outputs. Thread-safe. Implementations inherit from it.

    Attributes:
        wants_inputs: Whether it uses the geometries and texts of the inputs, which are otherwise not kept.
        takes_unbatched: Whether the outputs for a batch of one input may lack the batch axis. Such outputs
            are not checked beforehand.
        invalid_row: The reason reported for an input whose row is invalid.
    """

    wants_inputs: ClassVar[bool] = False
    takes_unbatched: ClassVar[bool] = False
    invalid_row: ClassVar[str] = "the model's output is not a finite number"

    def __call__(self, tensors: Tensors, inputs: PredictedInputs) -> tuple[Outputs, NDArray[np.bool_]]:
        """Returns the predictions for a batch's valid rows, and a mask of these rows.

        The mask has an entry for each input, which is false if an output cannot be a prediction, for example
        if it is not a finite number.

        Args:
            tensors: The outputs, each with the batch as its first axis; this is checked beforehand, except as
                described for ``takes_unbatched``.
            inputs: Information about the inputs.

        Raises:
            PredictionError: The outputs do not match the manifest.
        """


class PostprocessorType(Protocol):
    """The type of the registry's entries: a class or function that creates postprocessors."""

    def __call__(self, output: ModelOutput, feature_limit: int) -> TaskPostprocessor:
        """Returns a model's postprocessor; ``feature_limit`` limits how much is kept, and 0 keeps all.

        Raises:
            ManifestError: The manifest lacks ``output.parameters`` that the task requires.
        """


OF_WHOLE_BATCH: NDArray[Any] = np.empty((), np.object_)
"""Stands for an output of the whole batch, such as a loss, which is no prediction for any input."""
_UNNAMED = re.compile(r"output\d+")


def find_layer(
    tensors: Tensors, layer: int | str, *, exactly: bool = False, kinds: str = "biuf"
) -> tuple[str, NDArray[Any]]:
    """Finds an output and returns its name and its elements.

    Any name matches a model's only output, or the first output if the outputs have no names: PyTorch's
    programs have none, but MLModelScope's manifests name them anyway. A task with several outputs finds them
    ``exactly``, since such names do not distinguish them.

    Args:
        tensors: The outputs; unnamed outputs are called ``output0``, ``output1``, …
        layer: The output's name, or its index from 0.
        exactly: Whether a name matches only the output with that name.
        kinds: NumPy's letters for the kinds of accepted dtypes; numbers by default.

    Raises:
        PredictionError: The output does not exist, has another dtype, or belongs to the whole batch.
    """
    names = list(tensors)
    if isinstance(layer, int):
        if not 0 <= layer < len(names):
            raise PredictionError(f"the model has no output number {layer}; it has {len(names)}")
        layer = names[layer]
    if layer not in tensors:
        stands_for_first = len(names) == 1 or (names and all(map(_UNNAMED.fullmatch, names)))
        if exactly or not stands_for_first:
            raise PredictionError(f'the model has no output "{layer}"; it has: {", ".join(names)}')
        layer = names[0]
    tensor: NDArray[Any] = tensors[layer]
    if tensor is OF_WHOLE_BATCH:
        raise PredictionError(
            f"output {layer} is for the whole batch; predictions require a row per input; for a model that "
            "accepts one input at a time, use batch_size 1"
        )
    if tensor.dtype.kind not in kinds:
        raise PredictionError(f"output {layer} has element type {tensor.dtype}; predictions are numbers")
    return layer, tensor
