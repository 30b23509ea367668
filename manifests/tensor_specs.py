"""The tensors that a model takes, and how a text becomes them."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import Annotated

from pydantic import Field, field_validator, model_validator

from inferometer.manifests.fields import DYNAMIC_AXIS, Checksum, Name, Part


class TensorElementType(str, Enum):
    """The dtype of a tensor input."""

    FLOAT32 = "float32"
    FLOAT16 = "float16"
    UINT8 = "uint8"
    INT32 = "int32"
    INT64 = "int64"
    BOOL = "bool"
    FLOAT64 = "float64"
    STRING = "string"


DYNAMIC_SIZE = 128
"""The size that a dynamic axis has where nothing tells one, as in synthetic inputs."""


@dataclass(frozen=True, slots=True)
class AxisSizes:
    """The sizes that a dynamic axis may have, as far as the model's file states them.

    Attributes:
        least: The smallest.
        most: The largest; None sets no limit.
        example: A size that the axis may have, where its others are not known, as of multiples of 8.
    """

    least: int = 1
    most: int | None = None
    example: int | None = None

    def __contains__(self, size: int) -> bool:
        return self.least <= size and (self.most is None or size <= self.most)

    def nearest(self, size: int) -> int:
        """Returns the size that the axis may have and that is nearest to a wanted one."""
        if self.example is not None:
            return self.example
        return max(self.least, size if self.most is None else min(size, self.most))

    def other(self, size: int) -> int:
        """Returns another size than one that the axis may have: half of it, or else twice."""
        half = size // 2
        return half if half and half in self and self.example is None else 2 * size

    def __str__(self) -> str:
        return f"{self.least} or more" if self.most is None else f"{self.least} to {self.most}"


@dataclass(frozen=True, slots=True)
class TensorSpec:
    """One of the tensors that a model takes.

    Attributes:
        name: What the framework knows it by: the ``input_layer``.
        element_type: Its dtype.
        dimensions: Its shape without the batch; None is a dynamic axis, whose size may differ by batch.
        padding: What shorter inputs of a batch are padded with.
        same_size: Whether nothing is padded: all inputs of a batch have one size, as images do.
        dynamic_size: The size of dynamic axes in synthetic inputs, or the nearest that they may have.
        sizes: The sizes that each axis may have, as far as that is known; empty where it is not.
    """

    name: str
    element_type: TensorElementType
    dimensions: tuple[int | None, ...]
    padding: int = 0
    same_size: bool = False
    dynamic_size: int = DYNAMIC_SIZE
    sizes: tuple[AxisSizes | None, ...] = ()

    @property
    def is_dynamic(self) -> bool:
        """Whether an axis is dynamic."""
        return None in self.dimensions

    def takes(self, dimensions: tuple[int, ...]) -> bool:
        """Returns whether a shape without the batch fits; no axis may be empty."""
        return dimensions == self.dimensions or (
            len(dimensions) == len(self.dimensions)
            and all(
                size > 0 if wanted is None else size == wanted
                for size, wanted in zip(dimensions, self.dimensions, strict=True)
            )
        )

    def sized(self, size: int | None = None) -> tuple[int, ...]:
        """Returns the shape without the batch, in which dynamic axes have ``size``, or their own."""
        if size is not None:
            return tuple(size if each is None else each for each in self.dimensions)
        return tuple(
            axis.nearest(self.dynamic_size) if each is None else each
            for each, axis in zip(self.dimensions, self.axes, strict=True)
        )

    def sized_otherwise(self) -> tuple[int, ...]:
        """Returns the same with another size for each dynamic axis."""
        return tuple(
            axis.other(axis.nearest(self.dynamic_size)) if each is None else each
            for each, axis in zip(self.dimensions, self.axes, strict=True)
        )

    @property
    def axes(self) -> tuple[AxisSizes, ...]:
        """The sizes that each axis may have."""
        known = self.sizes if len(self.sizes) == len(self.dimensions) else (None,) * len(self.dimensions)
        return tuple(each or AxisSizes() for each in known)

    @property
    def written(self) -> tuple[int, ...]:
        """The dimensions as manifests and messages have them, with -1 for a dynamic axis."""
        return self.sized(DYNAMIC_AXIS)


MAX_TOKENS = 1_000_000
"""The most tokens of a text."""


class TextElementType(str, Enum):
    """The dtype of a text's tensors."""

    INT32 = "int32"
    INT64 = "int64"


class Truncation(str, Enum):
    """Which of two texts loses tokens where both together have too many; one text loses its last ones."""

    LONGEST_FIRST = "longest_first"
    ONLY_SECOND = "only_second"
    NONE = "none"
    """None: a text that is too long fails."""


class Padding(str, Enum):
    """The length that the texts of a batch are padded to."""

    LONGEST = "longest"
    MAX_LENGTH = "max_length"


class TextLayers(Part):
    """The names of the model's inputs that a text becomes.

    Attributes:
        ids: The numbers of the tokens.
        mask: 1 for each token, and 0 where the text is padded; None if the model takes none.
        types: 0 for the tokens of the first text, 1 for those of the second; None if the model takes none.
    """

    ids: Name
    mask: Name | None = None
    types: Name | None = None

    @model_validator(mode="after")
    def _differ(self) -> TextLayers:
        names = self.names
        if len(set(names)) < len(names):
            raise ValueError(f"two of {', '.join(names)} have the same name; each is an input of its own")
        return self

    @property
    def names(self) -> tuple[str, ...]:
        """The names that are given, in the order ids, mask, types."""
        return tuple(name for name in (self.ids, self.mask, self.types) if name is not None)


class TextParameters(Part):
    """How a text, or a pair of texts, becomes the tensors of a model.

    ``tokenizer`` is a path or a URL, as ``features_url`` is: a file of the library tokenizers (JSON), or
    the vocabulary of BERT's word pieces, one token in a line (``vocab.txt``). Of the latter, ``lower_case``
    says whether texts are brought to lower case and lose their accents; true is the default. A JSON file
    says that itself. ``padding_id`` is the number of the token that texts are padded with; left out, it is
    that of the file's padding, or of a token ``[PAD]`` or ``<pad>``, or 0.
    """

    tokenizer: Annotated[str, Field(min_length=1)]
    tokenizer_checksum: Checksum = ""
    lower_case: bool | None = None
    max_length: Annotated[int, Field(ge=1, le=MAX_TOKENS)] = 512
    truncation: Truncation = Truncation.LONGEST_FIRST
    padding: Padding = Padding.LONGEST
    padding_id: Annotated[int, Field(ge=0)] | None = None
    element_type: TextElementType = TextElementType.INT64
    layers: TextLayers

    @property
    def tensors(self) -> tuple[TensorSpec, ...]:
        """The tensors that a text becomes: ids, mask and types, as far as the model takes them."""
        size = None if self.padding is Padding.LONGEST else self.max_length
        element_type = TensorElementType(self.element_type.value)
        return tuple(TensorSpec(name, element_type, (size,)) for name in self.layers.names)

    @property
    def dimensions(self) -> tuple[int, ...]:
        """The shape of each without the batch; -1 for the length of the longest text of a batch."""
        return (DYNAMIC_AXIS if self.padding is Padding.LONGEST else self.max_length,)

    @property
    def input_layer(self) -> str:
        """The input for the ids."""
        return self.layers.ids

    @field_validator("layers", mode="before")
    @classmethod
    def _named(cls, value: object) -> object:
        if isinstance(value, str):
            raise ValueError("allowed: names by ids, mask and types, such as {ids: input_ids}")
        return value
