"""The schema of model, framework and dataset manifests.

All are frozen pydantic models that refuse fields which they do not know: a misspelt field is an error, not a
setting that silently has no effect.
"""

from __future__ import annotations

from enum import Enum
from pathlib import Path
from typing import Annotated, Any, Literal

from packaging.version import Version
from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    PrivateAttr,
    field_validator,
    model_validator,
)

from manifests.versions import Constraint, InvalidConstraintError


def _version_text(value: object) -> object:
    """YAML reads ``1.0`` as a number; a version is text."""
    return str(value) if isinstance(value, int | float) and not isinstance(value, bool) else value


def _check_version(value: str) -> str:
    try:
        Version(value)
    except ValueError:  # InvalidVersion, or a number too long for int
        raise ValueError("a version is written like 1.0 or 2.1.3") from None
    return value


def _check_constraint(value: str) -> str:
    try:
        Constraint(value)
    except InvalidConstraintError as error:
        raise ValueError(str(error)) from None
    return value


def _one_or_three(value: object) -> object:
    return (value,) if isinstance(value, int | float) else value


Name = Annotated[
    str,
    Field(min_length=1, max_length=200),
    BeforeValidator(lambda v: v.strip() if isinstance(v, str) else v),
]
VersionText = Annotated[str, BeforeValidator(_version_text)]
PerChannel = Annotated[
    tuple[Annotated[float, Field(allow_inf_nan=False)], ...], BeforeValidator(_one_or_three)
]
Checksum = Annotated[str, Field(pattern=r"^(sha256:[0-9a-fA-F]{64}|[0-9a-fA-F]{32})?$")]


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
    _source: Path | None = PrivateAttr(default=None)

    @property
    def source(self) -> Path | None:
        """The file that the manifest was read from; relative paths in it are relative to its folder."""
        return self._source


class _Part(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", str_strip_whitespace=True)


class FrameworkRequirement(_Part):
    """The framework that a model runs in, and the versions of it that will do."""

    name: Name
    version: Annotated[VersionText, Field(default="*")]

    _constraint = field_validator("version")(_check_constraint)


class ImageParameters(_Part):
    """How an encoded image becomes a model's input tensor.

    ``dimensions`` leaves out the batch and follows ``layout``. The image is decoded, brought to
    ``color_mode``, resized and cropped, and becomes ``(pixel - mean) / scale`` with pixels in 0…255;
    ``mean`` and ``scale`` are one number, or one per channel in the order of ``color_mode``. With
    ``element_type`` uint8 the pixels stay as they are, and there is neither.
    """

    dimensions: tuple[Annotated[int, Field(ge=1, le=16384)], ...] = Field(min_length=3, max_length=3)
    layout: Layout = Layout.CHW
    color_mode: ColorMode = ColorMode.RGB
    element_type: ElementType = ElementType.FLOAT32
    mean: PerChannel = (0.0,)
    scale: PerChannel = (1.0,)
    keep_aspect_ratio: bool = False
    crop_method: CropMethod = CropMethod.CENTER
    crop_ratio: float = Field(default=1.0, gt=0.0, le=1.0)
    interpolation: Interpolation = Interpolation.BILINEAR
    input_layer: Name = "data"

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

    @model_validator(mode="after")
    def _consistent(self) -> ImageParameters:
        wanted = 1 if self.color_mode is ColorMode.GRAY else 3
        if self.channels != wanted:
            raise ValueError(
                f"dimensions {list(self.dimensions)} in layout {self.layout.value} have {self.channels} "
                f"channels, but color_mode {self.color_mode.value} has {wanted}"
            )
        for field in ("mean", "scale"):
            if len(getattr(self, field)) not in {1, self.channels}:
                raise ValueError(
                    f"{field} has {len(getattr(self, field))} values; allowed: 1 or {self.channels}"
                )
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
    of the model's scores.
    """

    probabilities_layer: int | str = 0
    probabilities_transform: Transform = Transform.NONE
    labels: tuple[str, ...] = ()


class ModelOutput(_Part):
    """The output of a model: ``classification`` is ranked classes, ``raw`` the tensors as they are."""

    type: Literal["classification", "raw"]
    description: str = ""
    parameters: OutputParameters = OutputParameters()


class ModelFiles(_Part):
    """Where a model's graph and weights are: paths relative to the manifest, with their checksums.

    ``architecture`` names a model built in code, which then needs weights only.
    """

    architecture: Name | None = None
    graph_path: str | None = None
    graph_checksum: Checksum = ""
    weights_path: str | None = None
    weights_checksum: Checksum = ""

    @model_validator(mode="after")
    def _something(self) -> ModelFiles:
        if not (self.architecture or self.graph_path):
            raise ValueError("needs graph_path, or architecture for a model that is built in code")
        return self


class ModelManifest(Manifest):
    """A model: the framework it needs, its files, its inputs and its output."""

    kind: Literal["model"] = "model"
    name: Name
    version: VersionText = "1.0"
    framework: FrameworkRequirement
    description: str = ""
    references: tuple[str, ...] = ()
    license: str = ""
    inputs: tuple[ModelInput, ...] = Field(min_length=1, max_length=1)
    output: ModelOutput
    model: ModelFiles
    dataset: Name | None = None
    container: dict[str, dict[str, str]] = Field(default_factory=dict)
    attributes: dict[str, Any] = Field(default_factory=dict)

    _version = field_validator("version")(_check_version)

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

    _constraint = field_validator("version")(_check_constraint)


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

    _version = field_validator("version")(_check_version)
