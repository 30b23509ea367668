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
    FilePath,
    Layer,
    Name,
    OutputType,
    Part,
    VersionText,
    check_constraint,
    check_version,
    leave_out_empty,
)
from manifests.inputs import ColorMode, Layout, ModelInput
from manifests.original import any_size_where_none_is_given
from manifests.versions import Constraint


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


class FrameworkRequirement(Part):
    """The framework that a model runs in, and the versions of it that will do."""

    name: Name
    version: Annotated[VersionText, Field(default="*")]

    _constraint = field_validator("version")(check_constraint)


class OutputParameters(Part):
    """How a model's output is read.

    ``probabilities_layer`` is the output's name or its index; ``labels`` are the classes' names in the order
    of the model's scores. Those in the file at ``features_url``, a path or a URL, one in each line, go before
    them. The fields after ``element_type`` describe outputs of the types that have no
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


class ModelOutput(Part):
    """The output of a model: ``classification`` is ranked classes, ``raw`` the tensors as they are.

    ``feature`` is another word for classification. The other types can be listed, but not opened.
    """

    type: OutputType
    description: str = ""
    parameters: OutputParameters = OutputParameters()


class ModelFiles(Part):
    """Where a model's graph and weights are: paths relative to the manifest, with their checksums.

    They may be URLs, or relative to the URL or path ``base_url``. With ``is_archive`` that is an archive, and
    paths and checksums are of files in it.
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
    """A labelled dataset: a folder of class folders; or a zip of the same or an ``.npz``, also at a URL."""

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
