"""The inputs of a model (images and texts, which are preprocessed, or tensors) and the resulting tensors.

``InputParameters`` is the type of any of them. All have ``dimensions`` without the batch, ``element_type``
and ``input_layer``; prediction requires nothing else. An input layer is a name or, as in MLModelScope, a
number; MLModelScope's ``dimensions`` may be one number.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from enum import Enum
from typing import Annotated, Literal, TypeAlias

from pydantic import BeforeValidator, Field, PrivateAttr, WithJsonSchema, field_validator, model_validator
from pydantic.functional_validators import AfterValidator

from inferometer.manifests.fields import Checksum, Name, Part, PerChannel, full_dimensions

FIRST_INPUT = "data"
"""The default name of an input."""


def layer_name(value: object) -> object:
    """Returns the name for an input given by its number: ``data`` for the first, ``#1`` for the second."""
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value < 1000:
        return value
    return f"#{value}" if value else FIRST_INPUT


def is_numbered_layer(name: str) -> bool:
    """Returns whether a layer is given by its number and is not the first one."""
    return name[:1] == "#" and name[1:].isdecimal()


MAX_TENSOR_ELEMENTS = 2**28
"""The maximum number of elements in an input: 1 GiB of float32, far more than any model requires."""

DYNAMIC_AXIS = -1
"""The number that stands for a dynamic axis in the dimensions of a tensor."""


def _size_of_axis(value: int) -> int:
    if value < 1 and value != DYNAMIC_AXIS:
        raise ValueError(f"should be at least 1, or {DYNAMIC_AXIS} for a dynamic axis")
    return value


def _list_only(value: object) -> object:
    """Requires a list, because a single number would mean an image's height and width."""
    if not isinstance(value, list | tuple):
        raise ValueError("allowed: a list of whole numbers, without the batch")
    return value


InputLayer = Annotated[
    Name, BeforeValidator(layer_name), WithJsonSchema({"type": ["string", "integer"]}, mode="validation")
]
Dimensions = Annotated[
    tuple[Annotated[int, Field(ge=1, le=16384)], ...],
    WithJsonSchema({"type": ["integer", "array"], "items": {"type": "integer"}}, mode="validation"),
]
TensorDimensions = Annotated[
    tuple[Annotated[int, Field(le=MAX_TENSOR_ELEMENTS), AfterValidator(_size_of_axis)], ...],
    Field(min_length=1, max_length=8),
    BeforeValidator(_list_only),
]


class TensorElementType(str, Enum):
    """The dtype of a tensor input."""

    FLOAT32 = "float32"
    FLOAT16 = "float16"
    UINT8 = "uint8"
    UINT16 = "uint16"
    UINT32 = "uint32"
    INT8 = "int8"
    INT16 = "int16"
    INT32 = "int32"
    INT64 = "int64"
    BOOL = "bool"
    FLOAT64 = "float64"
    STRING = "string"


DYNAMIC_SIZE = 128
"""The size of a dynamic axis if nothing else determines it, for example in synthetic inputs."""


@dataclass(frozen=True, slots=True)
class AxisSizes:
    """The sizes allowed for a dynamic axis, as far as the model's file declares them.

    Attributes:
        least: The smallest size.
        most: The largest size; None means no limit.
        example: An allowed size, if the others are not known, as when only multiples of 8 are allowed.
    """

    least: int = 1
    most: int | None = None
    example: int | None = None

    def __contains__(self, size: int) -> bool:
        return self.least <= size and (self.most is None or size <= self.most)

    def nearest(self, size: int) -> int:
        """Returns the ``example``, or else the allowed size nearest to ``size``."""
        if self.example is not None:
            return self.example
        return max(self.least, size if self.most is None else min(size, self.most))

    def other(self, size: int) -> int:
        """Returns another size than the allowed ``size``: its half if that is allowed, else its double."""
        half = size // 2
        return half if half and half in self and self.example is None else 2 * size

    def __str__(self) -> str:
        return f"{self.least} or more" if self.most is None else f"{self.least} to {self.most}"


@dataclass(frozen=True, slots=True)
class TensorSpec:
    """One of a model's input tensors.

    Attributes:
        name: The tensor's name in the framework: the ``input_layer``.
        element_type: The tensor's dtype.
        dimensions: The shape without the batch; None is a dynamic axis, whose size may vary by batch.
        padding: The value used to pad the shorter inputs of a batch.
        same_size: Whether the inputs of a batch must have one size, as images must; nothing is padded then.
        dynamic_size: The size of dynamic axes in synthetic inputs, or the allowed size nearest to it.
        sizes: The sizes allowed for each axis, as far as known; empty if unknown.
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
        """Whether any axis is dynamic."""
        return None in self.dimensions

    def takes(self, dimensions: tuple[int, ...]) -> bool:
        """Returns whether a shape without the batch is accepted; no dynamic axis may be empty."""
        return dimensions == self.dimensions or (
            len(dimensions) == len(self.dimensions)
            and all(
                size > 0 if wanted is None else size == wanted
                for size, wanted in zip(dimensions, self.dimensions, strict=True)
            )
        )

    def sized(self, size: int | None = None) -> tuple[int, ...]:
        """Returns the shape without the batch, with dynamic axes set to ``size`` or their default size."""
        if size is not None:
            return tuple(size if each is None else each for each in self.dimensions)
        return tuple(
            axis.nearest(self.dynamic_size) if each is None else each
            for each, axis in zip(self.dimensions, self.axes, strict=True)
        )

    def sized_otherwise(self) -> tuple[int, ...]:
        """Returns a copy in which each dynamic axis has another size."""
        return tuple(
            axis.other(axis.nearest(self.dynamic_size)) if each is None else each
            for each, axis in zip(self.dimensions, self.axes, strict=True)
        )

    @property
    def axes(self) -> tuple[AxisSizes, ...]:
        """The sizes allowed for each axis."""
        known = self.sizes if len(self.sizes) == len(self.dimensions) else (None,) * len(self.dimensions)
        return tuple(each or AxisSizes() for each in known)

    @property
    def written(self) -> tuple[int, ...]:
        """The dimensions as written in manifests and messages, with -1 for a dynamic axis."""
        return self.sized(DYNAMIC_AXIS)


MAX_TOKENS = 1_000_000
"""The maximum number of tokens of a text."""


class TextElementType(str, Enum):
    """The dtype of a text's tensors."""

    INT32 = "int32"
    INT64 = "int64"


class Truncation(str, Enum):
    """Which text of a pair loses tokens if the pair is too long; a single text loses its last tokens."""

    LONGEST_FIRST = "longest_first"
    ONLY_SECOND = "only_second"
    NONE = "none"
    """None is truncated: an input that is too long fails."""


class Padding(str, Enum):
    """The length to which the texts of a batch are padded."""

    LONGEST = "longest"
    MAX_LENGTH = "max_length"


class TextLayers(Part):
    """The names of the model's inputs that are made from a text.

    Attributes:
        ids: The input for the numbers of the tokens.
        mask: The input with 1 for each token and 0 for padding; None if the model has none.
        types: The input with 0 for tokens of the first text and 1 for the second; None if the model has none.
    """

    ids: Name
    mask: Name | None = None
    types: Name | None = None

    @model_validator(mode="after")
    def _differ(self) -> TextLayers:
        names = self.names
        if len(set(names)) < len(names):
            raise ValueError(f"two of {', '.join(names)} have the same name; each must be a separate input")
        return self

    @property
    def names(self) -> tuple[str, ...]:
        """The names that are set, in the order ids, mask, types."""
        return tuple(name for name in (self.ids, self.mask, self.types) if name is not None)


class TextParameters(Part):
    """How a text, or a pair of texts, becomes the tensors of a model.

    ``tokenizer`` is a path or a URL, like ``features_url``: a file of the library tokenizers (JSON), or the
    vocabulary of BERT's word pieces, one token per line (``vocab.txt``). For a vocabulary, ``lower_case``
    specifies whether texts are converted to lower case and lose their accents (by default, true). A JSON file
    specifies that itself. ``padding_id`` is the number of the padding token; if omitted, it is the file's own
    padding token, a token ``[PAD]`` or ``<pad>``, or 0.

    With ``window_overlap``, the second text of a pair that is too long becomes several windows of at most
    ``max_length`` tokens, of which each has that many tokens of the second text in common with the next.
    """

    tokenizer: Annotated[str, Field(min_length=1)]
    tokenizer_checksum: Checksum = ""
    lower_case: bool | None = None
    max_length: Annotated[int, Field(ge=1, le=MAX_TOKENS)] = 512
    truncation: Truncation = Truncation.LONGEST_FIRST
    window_overlap: Annotated[int, Field(ge=0)] | None = None
    padding: Padding = Padding.LONGEST
    padding_id: Annotated[int, Field(ge=0)] | None = None
    element_type: TextElementType = TextElementType.INT64
    layers: TextLayers

    @property
    def tensors(self) -> tuple[TensorSpec, ...]:
        """The tensors made from a text: ids, mask and types, as far as the model has them."""
        size = None if self.padding is Padding.LONGEST else self.max_length
        element_type = TensorElementType(self.element_type.value)
        return tuple(TensorSpec(name, element_type, (size,)) for name in self.layers.names)

    @property
    def dimensions(self) -> tuple[int, ...]:
        """The shape of each tensor without the batch; -1 means the length of the longest text of a batch."""
        return (DYNAMIC_AXIS if self.padding is Padding.LONGEST else self.max_length,)

    @property
    def input_layer(self) -> str:
        """The name of the input for the ids."""
        return self.layers.ids

    @model_validator(mode="after")
    def _windows_of_the_second(self) -> TextParameters:
        if self.window_overlap is not None and self.truncation is not Truncation.ONLY_SECOND:
            raise ValueError("window_overlap requires truncation: only_second")
        return self

    @field_validator("layers", mode="before")
    @classmethod
    def _named(cls, value: object) -> object:
        if isinstance(value, str):
            raise ValueError("allowed: names by ids, mask and types, such as {ids: input_ids}")
        return value


class Layout(str, Enum):
    """The order of an image's axes (channel, height and width)."""

    CHW = "CHW"
    HWC = "HWC"


class ColorMode(str, Enum):
    """The channels of an image."""

    RGB = "RGB"
    BGR = "BGR"
    GRAY = "GRAY"


class ElementType(str, Enum):
    """The dtype of a preprocessed image."""

    FLOAT32 = "float32"
    FLOAT16 = "float16"
    UINT8 = "uint8"


class CropMethod(str, Enum):
    """The part of an image to which it is cropped."""

    CENTER = "center"
    TOPLEFT = "topleft"
    NONE = "none"


class Interpolation(str, Enum):
    """The resampling filter used to resize an image."""

    NEAREST = "nearest"
    BILINEAR = "bilinear"
    BICUBIC = "bicubic"
    LANCZOS = "lanczos"


class Decoder(str, Enum):
    """The library that decodes and resizes images, which affects the pixels."""

    PILLOW = "pillow"
    OPENCV = "opencv"


ANY_SIZE_SIDE = 224
"""The height and width of synthetic images for a model that takes images of any size."""


class ImageParameters(Part):
    """How an encoded image becomes a model's input tensor.

    ``dimensions`` leaves out the batch and follows ``layout``. The image is decoded, brought to
    ``color_mode``, resized and cropped, and becomes ``(pixel - mean) / scale`` with pixels in 0…255; ``mean``
    and ``scale`` are a single number or one each for red, green and blue, in this order for every
    ``color_mode``, as in MLModelScope. With ``element_type`` uint8, pixels stay unchanged and neither is
    used. ``decoder`` is the library for all steps up to the crop.

    ``dimensions`` may be a single number n, for three channels of n × n, or empty for images of any size,
    which are not resized. With ``max_dimension``, which replaces ``dimensions``, an image is resized so that
    its longer side has that length; the aspect ratio is kept. Under ``layout: HWC``, dimensions that begin
    with the channels are read as MLModelScope reads them: as CHW. ``input_layer`` is a name or a number; 0,
    the first input, is called ``data``.
    """

    dimensions: Dimensions
    layout: Layout = Layout.CHW
    color_mode: ColorMode = ColorMode.RGB
    element_type: ElementType = ElementType.FLOAT32
    mean: PerChannel = (0.0,)
    scale: PerChannel = (1.0,)
    keep_aspect_ratio: bool = False
    crop_method: CropMethod = CropMethod.CENTER
    crop_ratio: float = Field(default=1.0, gt=0.0, le=1.0)
    interpolation: Interpolation = Interpolation.BILINEAR
    decoder: Decoder = Decoder.PILLOW
    max_dimension: Annotated[int, Field(ge=1)] | None = None
    input_layer: InputLayer = FIRST_INPUT

    _three_dimensions = model_validator(mode="before")(full_dimensions)

    @property
    def tensors(self) -> tuple[TensorSpec, ...]:
        """The single tensor that an image becomes."""
        name, element_type = self.input_layer, TensorElementType(self.element_type.value)
        if not self.any_size:
            return (TensorSpec(name, element_type, self.dimensions),)
        chw = self.layout is Layout.CHW
        dimensions = (self.channels, None, None) if chw else (None, None, self.channels)
        return (TensorSpec(name, element_type, dimensions, same_size=True, dynamic_size=self.height),)

    @property
    def any_size(self) -> bool:
        """Whether height and width are those of each image, or follow from ``max_dimension``."""
        return not self.dimensions or self.max_dimension is not None

    @property
    def channels(self) -> int:
        """The number of channels."""
        return 1 if self.color_mode is ColorMode.GRAY else 3

    @property
    def height(self) -> int:
        """The height in pixels; for images of any size, the height of synthetic images."""
        return self._side(1 if self.layout is Layout.CHW else 0)

    @property
    def width(self) -> int:
        """The width in pixels; for images of any size, the width of synthetic images."""
        return self._side(2 if self.layout is Layout.CHW else 1)

    def _side(self, axis: int) -> int:
        return (self.max_dimension or ANY_SIZE_SIDE) if self.any_size else self.dimensions[axis]

    @field_validator("dimensions")
    @classmethod
    def _three_or_any(cls, value: tuple[int, ...]) -> tuple[int, ...]:
        if len(value) not in {0, 3}:
            raise ValueError(f"has {len(value)} items; allowed: 3 items, without the batch, or one number")
        return value

    @model_validator(mode="after")
    def _consistent(self) -> ImageParameters:
        wanted = self.channels
        if self.dimensions and (found := self.dimensions[0 if self.layout is Layout.CHW else 2]) != wanted:
            raise ValueError(
                f"dimensions {list(self.dimensions)} in layout {self.layout.value} have {found} "
                f"channels, but color_mode {self.color_mode.value} has {wanted}"
            )
        for field in ("mean", "scale"):
            if len(getattr(self, field)) not in {1, wanted}:
                raise ValueError(f"{field} has {len(getattr(self, field))} values; allowed: 1 or {wanted}")
        if any(value == 0 for value in self.scale):
            raise ValueError(f"scale is {list(self.scale)}; it is a divisor, so it must not contain 0")
        if self.element_type is ElementType.UINT8 and (any(self.mean) or set(self.scale) != {1.0}):
            raise ValueError(
                f"element_type uint8 takes the pixels as they are; mean is {list(self.mean)} and scale "
                f"{list(self.scale)}; allowed: 0 and 1, or another element_type"
            )
        return self


class TensorParameters(Part):
    """A tensor that the model receives unchanged: features, a spectrogram, token numbers.

    ``dimensions`` leaves out the batch; -1 is a dynamic axis, whose size may vary between batches. There is
    no preprocessing, so there are no further fields.
    """

    dimensions: TensorDimensions
    element_type: TensorElementType = TensorElementType.FLOAT32
    input_layer: InputLayer = FIRST_INPUT
    _sizes: tuple[AxisSizes | None, ...] = PrivateAttr(default=())

    @property
    def tensors(self) -> tuple[TensorSpec, ...]:
        """The single tensor."""
        dimensions = tuple(None if size == DYNAMIC_AXIS else size for size in self.dimensions)
        return (TensorSpec(self.input_layer, self.element_type, dimensions, sizes=self._sizes),)

    def with_sizes(self, sizes: tuple[AxisSizes | None, ...]) -> TensorParameters:
        """Returns a copy with the sizes allowed for each axis, which the model's file declares."""
        changed = self.model_copy()
        changed._sizes = sizes
        return changed

    @field_validator("dimensions")
    @classmethod
    def _fits_into_memory(cls, value: tuple[int, ...]) -> tuple[int, ...]:
        if (elements := math.prod(size for size in value if size != DYNAMIC_AXIS)) > MAX_TENSOR_ELEMENTS:
            raise ValueError(f"has {elements} elements in total; at most {MAX_TENSOR_ELEMENTS} are allowed")
        return value


InputParameters: TypeAlias = ImageParameters | TensorParameters | TextParameters


class ImageInput(Part):
    """An input of a model that is an image."""

    type: Literal["image"]
    description: str = ""
    parameters: ImageParameters


class TensorInput(Part):
    """An input of a model that is a tensor."""

    type: Literal["tensor"]
    description: str = ""
    parameters: TensorParameters


class TextInput(Part):
    """An input of a model that is a text, or a pair of texts."""

    type: Literal["text"]
    description: str = ""
    parameters: TextParameters


ModelInput = Annotated[ImageInput | TensorInput | TextInput, Field(discriminator="type")]
"""One input of a model, whose ``type`` determines its parameters."""
