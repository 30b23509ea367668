"""The schema of model, framework and dataset manifests.

All are frozen pydantic models that refuse fields which they do not know: a misspelt field is an error, not a
setting that silently has no effect.
"""

from __future__ import annotations

from enum import Enum
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, PrivateAttr, field_validator, model_validator

from manifests.fields import (
    Checksum,
    Dimensions,
    FilePath,
    InputLayer,
    Layer,
    Name,
    OutputType,
    PerChannel,
    VersionText,
    check_constraint,
    check_version,
    leave_out_empty,
)
from manifests.original import FIRST_INPUT, any_size_where_none_is_given, full_dimensions
from manifests.versions import Constraint


class Layout(str, Enum):
    """The order of an image's axes: channel, height, width."""

    CHW = "CHW"
    HWC = "HWC"


class ColorMode(str, Enum):
    """What the channels of an image are."""

    RGB = "RGB"
    BGR = "BGR"
    GRAY = "GRAY"


class ElementType(str, Enum):
    """The dtype of a model's input."""

    FLOAT32 = "float32"
    FLOAT16 = "float16"
    UINT8 = "uint8"


class CropMethod(str, Enum):
    """Which part of an image is taken."""

    CENTER = "center"
    NONE = "none"


class Interpolation(str, Enum):
    """How an image is resampled."""

    NEAREST = "nearest"
    BILINEAR = "bilinear"
    BICUBIC = "bicubic"
    LANCZOS = "lanczos"


class Transform(str, Enum):
    """What turns the model's scores into probabilities."""

    NONE = "none"
    SOFTMAX = "softmax"


class Manifest(BaseModel):
    """What every manifest has."""

    model_config = ConfigDict(frozen=True, extra="forbid", str_strip_whitespace=True)
    _empty_is_left_out = model_validator(mode="before")(leave_out_empty)
    _source: Path | None = PrivateAttr(default=None)

    @property
    def source(self) -> Path | None:
        """The file that the manifest was read from; relative paths in it are relative to its folder."""
        return self._source


class _Part(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", str_strip_whitespace=True)
    _empty_is_left_out = model_validator(mode="before")(leave_out_empty)


class FrameworkRequirement(_Part):
    """The framework that a model runs in, and the versions of it that will do."""

    name: Name
    version: Annotated[VersionText, Field(default="*")]

    _constraint = field_validator("version")(check_constraint)


class ImageParameters(_Part):
    """How an encoded image becomes a model's input tensor.

    ``dimensions`` leaves out the batch and follows ``layout``. The image is decoded, brought to
    ``color_mode``, resized and cropped, and becomes ``(pixel - mean) / scale`` with pixels in 0…255;
    ``mean`` and ``scale`` are one number, or one per channel in the order of ``color_mode``. With
    ``element_type`` uint8 the pixels stay as they are, and there is neither.

    ``dimensions`` may be one number n, for three channels of n × n, and empty for images of any size, which
    nothing here can open. Nor can it open ``max_dimension``, nor dimensions that begin with the channels
    under ``layout: HWC``, as some of MLModelScope's manifests have them: ``agent.requirements`` says so.
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
    max_dimension: Annotated[int, Field(ge=1)] | None = None
    input_layer: InputLayer = FIRST_INPUT

    _three_dimensions = model_validator(mode="before")(full_dimensions)

    @property
    def channels(self) -> int:
        """The number of channels."""
        return self.dimensions[0] if self.layout is Layout.CHW else self.dimensions[2]

    @property
    def height(self) -> int:
        """The height in pixels."""
        return self.dimensions[1] if self.layout is Layout.CHW else self.dimensions[0]

    @property
    def width(self) -> int:
        """The width in pixels."""
        return self.dimensions[2] if self.layout is Layout.CHW else self.dimensions[1]

    @property
    def channels_first(self) -> bool:
        """Whether ``dimensions`` begin with the channels although ``layout`` is HWC."""
        wanted = 1 if self.color_mode is ColorMode.GRAY else 3
        return self.layout is Layout.HWC and self.dimensions[:1] == (wanted,) != self.dimensions[2:]

    @field_validator("dimensions")
    @classmethod
    def _three_or_any(cls, value: tuple[int, ...]) -> tuple[int, ...]:
        if len(value) not in {0, 3}:
            raise ValueError(f"has {len(value)} items; allowed: 3 items, without the batch, or one number")
        return value

    @model_validator(mode="after")
    def _consistent(self) -> ImageParameters:
        wanted = 1 if self.color_mode is ColorMode.GRAY else 3
        if self.dimensions and not self.channels_first and self.channels != wanted:
            raise ValueError(
                f"dimensions {list(self.dimensions)} in layout {self.layout.value} have {self.channels} "
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


class ModelInput(_Part):
    """One input of a model."""

    type: Literal["image"]
    description: str = ""
    parameters: ImageParameters


class OutputParameters(_Part):
    """How a model's output is read.

    ``probabilities_layer`` is the output's name or its index; ``labels`` are the classes' names in the order
    of the model's scores. The file at ``features_url``, with a label in each line, replaces them when it lies
    beside the manifest. The fields after ``element_type`` describe outputs of the types that have no
    postprocessing here.
    """

    probabilities_layer: Layer = 0
    probabilities_transform: Transform = Transform.NONE
    labels: tuple[str, ...] = ()
    features_url: str = ""
    features_checksum: Checksum = ""
    element_type: str = ""
    classes_layer: Layer | None = None
    boxes_layer: Layer | None = None
    masks_layer: Layer | None = None
    dimensions: tuple[int, ...] = ()
    layout: Layout | None = None
    color_mode: ColorMode | None = None


class ModelOutput(_Part):
    """The output of a model: ``classification`` is ranked classes, ``raw`` the tensors as they are.

    ``feature`` is another word for classification. The other types can be listed, but not opened.
    """

    type: OutputType
    description: str = ""
    parameters: OutputParameters = OutputParameters()


class ModelFiles(_Part):
    """Where a model's graph and weights are: paths relative to the manifest, with their checksums.

    They may be URLs, or relative to the URL ``base_url``; the file then has to lie beside the manifest.
    ``architecture`` names a model built in code, which then needs weights only.
    """

    architecture: Name | None = None
    base_url: str = ""
    graph_path: FilePath = None
    graph_checksum: Checksum = ""
    weights_path: FilePath = None
    weights_checksum: Checksum = ""
    is_archive: bool = False

    @model_validator(mode="after")
    def _something(self) -> ModelFiles:
        if not (self.architecture or self.graph_path):
            raise ValueError("needs graph_path, or architecture for a model that is built in code")
        return self


class ModelManifest(Manifest):
    """A model: the framework it needs, its files, its inputs and its output.

    A ``hidden`` one is found by its name only. The fields from ``before_preprocess`` on hold code, which is
    never run: a model with any of them can be listed, but not opened.
    """

    kind: Literal["model"] = "model"
    name: Name
    version: VersionText = "1.0"
    framework: FrameworkRequirement
    description: str = ""
    references: tuple[str, ...] = ()
    license: str = ""
    inputs: tuple[ModelInput, ...] = Field(min_length=1)
    output: ModelOutput
    model: ModelFiles
    dataset: Name | None = None
    container: dict[str, dict[str, str]] = Field(default_factory=dict)
    attributes: dict[str, Any] = Field(default_factory=dict)
    hidden: bool = False
    before_preprocess: str = ""
    preprocess: str = ""
    after_preprocess: str = ""
    before_postprocess: str = ""
    postprocess: str = ""
    after_postprocess: str = ""

    _any_size = model_validator(mode="before")(any_size_where_none_is_given)
    _version = field_validator("version")(check_version)

    def runs_in(self, framework_version: str | None) -> bool:
        """Whether the model runs in this version of its framework; None, not installed, runs nothing."""
        return framework_version is not None and Constraint(self.framework.version).allows(framework_version)


class FrameworkManifest(Manifest):
    """A framework: the versions of it that are supported and the container images that hold it."""

    kind: Literal["framework"]
    name: Name
    version: VersionText
    description: str = ""
    references: tuple[str, ...] = ()
    license: str = ""
    container: dict[str, dict[str, str]] = Field(default_factory=dict)

    _constraint = field_validator("version")(check_constraint)


class DatasetManifest(Manifest):
    """A labelled dataset: a folder of class folders, a zip of the same, or an ``.npz``."""

    kind: Literal["dataset"]
    name: Name
    version: VersionText = "1.0"
    category: Name = "vision"
    description: str = ""
    references: tuple[str, ...] = ()
    license: str = ""
    path: str
    checksum: Checksum = ""

    _version = field_validator("version")(check_version)
