"""The inputs of a model: images and texts, which are preprocessed, or tensors.

``InputParameters`` is either. Both have ``dimensions`` without the batch, ``element_type`` and
``input_layer``, which are all that the prediction requires.
"""

from __future__ import annotations

import math
from enum import Enum
from typing import Annotated, Literal, TypeAlias

from pydantic import Field, PrivateAttr, field_validator, model_validator

from inferometer.manifests.fields import (
    DYNAMIC_AXIS,
    MAX_TENSOR_ELEMENTS,
    Dimensions,
    InputLayer,
    Part,
    PerChannel,
    TensorDimensions,
)
from inferometer.manifests.original import FIRST_INPUT, full_dimensions
from inferometer.manifests.tensor_specs import DYNAMIC_SIZE as DYNAMIC_SIZE
from inferometer.manifests.tensor_specs import AxisSizes as AxisSizes
from inferometer.manifests.tensor_specs import TensorElementType as TensorElementType
from inferometer.manifests.tensor_specs import TensorSpec as TensorSpec
from inferometer.manifests.text_inputs import TextParameters as TextParameters


class Layout(str, Enum):
    """The order of an image's axes: channel, height, width."""

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
    """The part of an image that is cropped."""

    CENTER = "center"
    TOPLEFT = "topleft"
    NONE = "none"


class Interpolation(str, Enum):
    """The resampling filter of an image."""

    NEAREST = "nearest"
    BILINEAR = "bilinear"
    BICUBIC = "bicubic"
    LANCZOS = "lanczos"


class Decoder(str, Enum):
    """The library that decodes and resizes images, which influences the pixels."""

    PILLOW = "pillow"
    OPENCV = "opencv"


ANY_SIZE_SIDE = 224
"""The height and width of synthetic images for a model that takes images of any size."""


class ImageParameters(Part):
    """How an encoded image becomes a model's input tensor.

    ``dimensions`` leaves out the batch and follows ``layout``. The image is decoded, brought to
    ``color_mode``, resized and cropped, and becomes ``(pixel - mean) / scale`` with pixels in 0…255;
    ``mean`` and ``scale`` are one number, or one for red, green and blue each, in this order for every
    ``color_mode``, as in MLModelScope. With ``element_type`` uint8 the pixels stay unchanged, and there is
    neither. ``decoder`` is the library for all steps up to the crop.

    ``dimensions`` may be one number n, for three channels of n × n, and empty for images of any size, which
    keep theirs. With ``max_dimension``, which replaces ``dimensions``, an image is resized so that its longer
    side has that length, and keeps its aspect ratio. Under ``layout: HWC``, dimensions that begin with the
    channels are read as MLModelScope reads them: as CHW.
    ``input_layer`` is a name or a number; 0, the first input, is called ``data``.
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
        """The one tensor that an image becomes."""
        name, element_type = self.input_layer, TensorElementType(self.element_type.value)
        if not self.any_size:
            return (TensorSpec(name, element_type, self.dimensions),)
        chw = self.layout is Layout.CHW
        dimensions = (self.channels, None, None) if chw else (None, None, self.channels)
        return (TensorSpec(name, element_type, dimensions, same_size=True, dynamic_size=self.height),)

    @property
    def any_size(self) -> bool:
        """Whether the height and width are each image's own, or follow from ``max_dimension``."""
        return not self.dimensions or self.max_dimension is not None

    @property
    def channels(self) -> int:
        """The number of channels."""
        return 1 if self.color_mode is ColorMode.GRAY else 3

    @property
    def height(self) -> int:
        """The height in pixels; of images of any size, that of synthetic ones."""
        if self.any_size:
            return self.max_dimension or ANY_SIZE_SIDE
        return self.dimensions[1 if self.layout is Layout.CHW else 0]

    @property
    def width(self) -> int:
        """The width in pixels; of images of any size, that of synthetic ones."""
        if self.any_size:
            return self.max_dimension or ANY_SIZE_SIDE
        return self.dimensions[2 if self.layout is Layout.CHW else 1]

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
            raise ValueError(f"scale is {list(self.scale)}; it divides, so that it may not hold 0")
        if self.element_type is ElementType.UINT8 and (any(self.mean) or set(self.scale) != {1.0}):
            raise ValueError(
                f"element_type uint8 takes the pixels as they are; mean is {list(self.mean)} and scale "
                f"{list(self.scale)}; allowed: 0 and 1, or another element_type"
            )
        return self


class TensorParameters(Part):
    """A tensor that the model receives unchanged: features, a spectrogram, token numbers.

    ``dimensions`` leaves out the batch; -1 is a dynamic axis, whose size may differ by batch. There is no
    preprocessing, and therefore no further fields.
    """

    dimensions: TensorDimensions
    element_type: TensorElementType = TensorElementType.FLOAT32
    input_layer: InputLayer = FIRST_INPUT
    _sizes: tuple[AxisSizes | None, ...] = PrivateAttr(default=())

    @property
    def tensors(self) -> tuple[TensorSpec, ...]:
        """The one tensor."""
        dimensions = tuple(None if size == DYNAMIC_AXIS else size for size in self.dimensions)
        return (TensorSpec(self.input_layer, self.element_type, dimensions, sizes=self._sizes),)

    def with_sizes(self, sizes: tuple[AxisSizes | None, ...]) -> TensorParameters:
        """Returns the same with the sizes that each axis may have, which the model's file states."""
        changed = self.model_copy()
        changed._sizes = sizes
        return changed

    @field_validator("dimensions")
    @classmethod
    def _fits_into_memory(cls, value: tuple[int, ...]) -> tuple[int, ...]:
        if (elements := math.prod(size for size in value if size != DYNAMIC_AXIS)) > MAX_TENSOR_ELEMENTS:
            raise ValueError(f"has {elements} elements together; allowed: {MAX_TENSOR_ELEMENTS}")
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
"""One input of a model; its ``type`` determines its parameters."""
