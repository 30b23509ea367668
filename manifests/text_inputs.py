"""Inputs that are texts: how a text becomes the tensors of a model."""

from __future__ import annotations

from enum import Enum
from typing import Annotated

from pydantic import Field, field_validator, model_validator

from inferometer.manifests.fields import DYNAMIC_AXIS, Checksum, Name, Part
from inferometer.manifests.tensor_specs import TensorElementType, TensorSpec

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
