"""The schema of model, framework and dataset manifests, and of a model's outputs.

All are frozen pydantic models that reject unknown fields: a misspelt field is an error instead of a setting
without effect.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field, PrivateAttr, field_validator, model_validator

from inferometer.manifests.errors import ConfigurationError
from inferometer.manifests.fields import (
    Checksum,
    FilePath,
    ImageRange,
    Layer,
    Name,
    OutputType,
    Part,
    PerChannel,
    VersionText,
    any_size_where_none_is_given,
    check_constraint,
    check_version,
    with_fields_spelt,
)
from inferometer.manifests.inputs import (
    AxisSizes,
    ColorMode,
    Layout,
    ModelInput,
    TensorParameters,
    TensorSpec,
)
from inferometer.manifests.versions import Constraint


class Transform(str, Enum):
    """The function that converts the model's scores to probabilities."""

    NONE = "none"
    SOFTMAX = "softmax"
    SIGMOID = "sigmoid"


class BoxFormat(str, Enum):
    """The order of the four numbers of a box."""

    XYXY = "xyxy"
    """Left, top, right, bottom."""
    YXYX = "yxyx"
    """Top, left, bottom, right, as in TensorFlow."""
    XYWH = "xywh"
    """Left, top, width, height, as in COCO."""
    CXCYWH = "cxcywh"
    """The coordinates of the centre, then width and height, as in YOLO."""


class BoxUnits(str, Enum):
    """The units of the coordinates of boxes."""

    PIXELS = "pixels"
    """Pixels of the model's input."""
    RELATIVE = "relative"
    """Fractions of the input's width and height, from 0 to 1."""


class MaskFrame(str, Enum):
    """The area that the mask of an object covers."""

    BOX = "box"
    """The box of the object, as in Mask R-CNN."""
    INPUT = "input"
    """The model's input."""


class Loss(str, Enum):
    """The loss with which a model is trained."""

    CROSS_ENTROPY = "cross_entropy"
    """The cross-entropy between the softmax over the classes and the index of the correct class."""
    CTC = "ctc"
    """Connectionist temporal classification over time steps; class 0 is the blank."""


Backend = Literal[
    "",
    "recordio",
    "caffe_lmdb",
    "image_folder",
    "npz",
    "zip",
    "ilsvrc2012_validation",
    "cifar10",
    "mnist",
    "coco",
    "voc",
    # semantic segmentation, image enhancement, regression
    "mask_folder",
    "voc_segmentation",
    "paired_folder",
    "values_csv",
    # rows of inputs, and texts
    "table",
    "jsonl",
    "csv",
    "squad",
]
"""The format of a dataset; empty if the dataset's files show it."""


class Manifest(Part):
    """The base class of manifests."""

    _source: Path | None = PrivateAttr(default=None)

    @property
    def source(self) -> Path | None:
        """The file of the manifest; relative paths in it refer to its folder."""
        return self._source


class FrameworkRequirement(Part):
    """The framework that a model requires, and its accepted versions."""

    name: Name
    version: Annotated[VersionText, Field(default="*")]

    _constraint = field_validator("version")(check_constraint)


_WHOLE_NUMBER = re.compile(r"-?\d+", re.ASCII)


class OutputParameters(Part):
    """The interpretation of a model's output.

    ``probabilities_layer`` is the output's name or its index; ``labels`` are the class names in the order of
    the model's scores. If ``features_url``, a path or a URL, names a file with one label per line, it takes
    precedence. A classification with a ``classes_layer`` takes the class of each input from that output, and
    has no scores. The fields after it are for tasks other than classification.

    ``positive_label`` is the class, out of two, for which text classification reports F1. ``start_layer`` and
    ``end_layer`` are the outputs with the scores of each token as the first and the last of an answer, which
    has at most ``max_answer_length`` tokens; see ``agent.tasks.vectors`` for ``no_answer_threshold``.
    ``embedding_layer`` is the output with the embedding.
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
    # object detection and instance segmentation; from scale_width on in MLModelScope's notation
    count_layer: Layer | None = None
    box_format: BoxFormat | None = None
    box_units: BoxUnits | None = None
    class_offset: int = 0
    score_threshold: float = Field(default=0.0, ge=0, le=1)
    iou_threshold: float | None = Field(default=None, ge=0, le=1)
    max_detections: int = Field(default=100, ge=1)
    mask_frame: MaskFrame = MaskFrame.BOX
    mask_threshold: float = Field(default=0.5, allow_inf_nan=False)
    scale_width: int | None = Field(default=None, ge=1)
    scale_height: int | None = Field(default=None, ge=1)
    xmin_index: int | None = Field(default=None, ge=0, le=3)
    ymin_index: int | None = Field(default=None, ge=0, le=3)
    xmax_index: int | None = Field(default=None, ge=0, le=3)
    ymax_index: int | None = Field(default=None, ge=0, le=3)
    background_index: int | None = None
    average_precision: Literal["coco", "lvis", "voc"] | None = None
    # semantic segmentation; masks_layer, layout and class_offset belong to it too
    masks_interpolation: Literal["nearest", "bilinear"] = "nearest"
    masks_threshold: Annotated[float, Field(allow_inf_nan=False)] | None = None
    # image enhancement; layout and color_mode belong to it too
    image_layer: Layer = 0
    image_range: ImageRange = None
    mean: PerChannel = (0.0,)
    scale: PerChannel = (1.0,)
    score_border: Annotated[int, Field(ge=0)] = 0
    score_channels: Literal["RGB", "Y"] = "RGB"
    # regression
    values_layer: Layer = 0
    # text_classification
    positive_label: str = ""
    # multilabel_classification
    label_threshold: float = Field(default=0.5, ge=0, le=1)
    # question_answering
    start_layer: Layer = 0
    end_layer: Layer = 1
    max_answer_length: Annotated[int, Field(ge=1)] = 30
    no_answer_threshold: Annotated[float, Field(allow_inf_nan=False)] | None = None
    # embedding
    embedding_layer: Layer = 0

    _spelt = model_validator(mode="before")(with_fields_spelt)

    def class_index(self, name: str | int) -> int | None:
        """Returns the index of a class that a model itself names; None if the labels do not have it.

        A number is a label if all labels are numbers, as in models of scikit-learn; otherwise it is an index.
        """
        labels = self.labels
        if isinstance(name, str) or (labels and all(map(_WHOLE_NUMBER.fullmatch, labels))):
            return labels.index(str(name)) if str(name) in labels else None
        return name if 0 <= name < (len(labels) or 2**63) else None

    @property
    def scores_per_class(self) -> bool:
        """Whether a model returns a score for each class instead of the class for each box."""
        return self.classes_layer is None or self.classes_layer == self.probabilities_layer


_CORNERS = {BoxFormat.XYXY: (0, 1, 2, 3), BoxFormat.YXYX: (1, 0, 3, 2)}


@dataclass(frozen=True, slots=True)
class BoxNotation:
    """The notation in which a model returns boxes.

    Attributes:
        format: The order of the four numbers.
        corners: For boxes given by two corners, the positions of left, top, right and bottom.
        units: The units of the coordinates.
        stated: Whether the manifest states the units; if not, boxes that contradict them are rejected.
        frame: The width and height to which pixels refer; None means those of the model's input.
    """

    format: BoxFormat
    corners: tuple[int, int, int, int]
    units: BoxUnits
    stated: bool
    frame: tuple[int, int] | None

    @classmethod
    def of(cls, parameters: OutputParameters) -> BoxNotation:
        """Returns the notation that a manifest describes.

        Omitted fields follow MLModelScope's notation. Its ``xmin_index`` to ``ymax_index`` give the order,
        and ``scale_width`` and ``scale_height`` the size to which pixels refer; if only the order is given,
        boxes are relative. TensorFlow's ``detection_boxes`` are relative and begin with y. Other boxes are
        xyxy: in pixels if there is a separate ``classes_layer``, as in GluonCV's models, otherwise relative,
        as in MLModelScope's SSD models for PyTorch and ONNX Runtime.
        """
        places = [
            getattr(parameters, f"{name}_index") for name in ("xmin", "ymin", "xmax", "ymax")
        ]  # where MLModelScope omits one, it is that of yxyx
        ordered = any(place is not None for place in places)
        tensorflow = str(parameters.boxes_layer).startswith("detection_boxes")
        style = parameters.box_format or (BoxFormat.YXYX if tensorflow else BoxFormat.XYXY)
        corners = _CORNERS.get(style, (0, 1, 2, 3))
        if ordered and parameters.box_format is None:
            style, default = BoxFormat.XYXY, _CORNERS[BoxFormat.YXYX]
            chosen = [d if p is None else p for p, d in zip(places, default, strict=True)]
            corners = (chosen[0], chosen[1], chosen[2], chosen[3])
        frame = None
        if parameters.scale_width and parameters.scale_height:
            frame = (parameters.scale_width, parameters.scale_height)
        units = BoxUnits.PIXELS
        if frame is None and (ordered or tensorflow or parameters.scores_per_class):
            units = BoxUnits.RELATIVE
        stated = parameters.box_units is not None or frame is not None
        return cls(style, corners, parameters.box_units or units, stated, frame)


class ModelOutput(Part):
    """The output of a model, whose ``type`` is the model's task: see ``docs/tasks.md``.

    ``classification`` means ranked classes, ``raw`` unprocessed tensors. MLModelScope's names are synonyms;
    ``feature``, for example, means classification. A model of an unknown task can be listed, but not opened.
    """

    type: OutputType
    description: str = ""
    parameters: OutputParameters = OutputParameters()


class ModelFiles(Part):
    """The paths of a model's graph and weights, relative to the manifest, with their checksums.

    They may be URLs, or relative to the URL or path ``base_url``. With ``is_archive``, ``base_url`` is an
    archive, and paths and checksums refer to its content. ``architecture`` names a model in code, which
    requires only weights; alongside a graph, it is used for training, and predictions use the graph.
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


class ModelTraining(Part):
    """The training of a model; a model whose output is a classification does not need this."""

    loss: Loss = Loss.CROSS_ENTROPY


HOOKS = (
    "before_preprocess",
    "preprocess",
    "after_preprocess",
    "before_postprocess",
    "postprocess",
    "after_postprocess",
)
"""The fields that contain code."""


INFERRED = "manifest"
"""The attribute that says from what a manifest was inferred."""


class ModelManifest(Manifest):
    """A model: its framework, files, inputs and output.

    A ``hidden`` model is found only by its name. The fields from ``before_preprocess`` on contain code, which
    is never run: a model with any of them can be listed, but not opened.
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
    training: ModelTraining = ModelTraining()
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

    @model_validator(mode="after")
    def _answers_in_windows(self) -> ModelManifest:
        overlaps = {getattr(each.parameters, "window_overlap", None) for each in self.inputs}
        if overlaps != {None} and (len(self.inputs) > 1 or self.output.type != "question_answering"):
            raise ValueError("window_overlap requires a model for question_answering with only one input")
        return self

    @property
    def tensors(self) -> tuple[TensorSpec, ...]:
        """The tensors for all inputs, in order."""
        return tuple(tensor for each in self.inputs for tensor in each.parameters.tensors)

    def with_sizes(self, sizes: Mapping[str, tuple[AxisSizes | None, ...]]) -> ModelManifest:
        """Returns a copy with the sizes allowed for the axes of its tensors, by the tensors' names."""
        if not sizes:
            return self
        inputs = tuple(
            each.model_copy(
                update={"parameters": each.parameters.with_sizes(sizes[each.parameters.input_layer])}
            )
            if isinstance(each.parameters, TensorParameters) and each.parameters.input_layer in sizes
            else each
            for each in self.inputs
        )
        return self.model_copy(update={"inputs": inputs})

    @property
    def inferred(self) -> object:
        """From what the manifest was inferred; None for a manifest that was written by hand."""
        return self.attributes.get(INFERRED)

    @property
    def has_own_precision(self) -> bool:
        """Whether the model's file contains its graph, in which case the file determines the precision."""
        return self.model.graph_path is not None

    @property
    def loss(self) -> Loss:
        """The loss with which the model is trained."""
        return self.training.loss

    @property
    def generates(self) -> bool:
        """Whether it is a language model, which ``agent.generation`` opens, and which predicts nothing."""
        return self.output.type == "generation"

    def require_predictions(self) -> None:
        """Raises ConfigurationError if the model generates text."""
        if self.generates:
            raise ConfigurationError(
                f"{self.source}: model {self.name} {self.version} generates text and makes no predictions; "
                "measure it with agent measure generation, or serve it with agent serve --http_port"
            )

    def runs_in(self, framework_version: str | None) -> bool:
        """Returns whether the model runs in this version of its framework; None means not installed."""
        return framework_version is not None and Constraint(self.framework.version).allows(framework_version)


class FrameworkManifest(Manifest):
    """A framework: its supported versions and its container images."""

    kind: Literal["framework"]
    name: Name
    version: VersionText
    description: str = ""
    references: tuple[str, ...] = ()
    license: str = ""
    container: dict[str, dict[str, str]] = Field(default_factory=dict)

    _constraint = field_validator("version")(check_constraint)


class DatasetManifest(Manifest):
    """A labelled dataset: a folder or a file, also at a URL, in a format that ``docs/datasets.md`` describes.

    The path is omitted if nobody may distribute the dataset: ``obtain`` then says how a user gets it, and the
    configuration or an option says where it is.
    """

    kind: Literal["dataset"]
    name: Name
    version: VersionText = "1.0"
    category: Name = "vision"
    description: str = ""
    references: tuple[str, ...] = ()
    license: str = ""
    path: str = ""
    checksum: Checksum = ""
    backend: Backend = ""
    obtain: str = ""

    _version = field_validator("version")(check_version)

    def at(self, path: Path) -> DatasetManifest:
        """Returns the manifest with the path at which a user has placed the dataset."""
        return self.model_copy(update={"path": str(path.absolute()), "checksum": ""})

    @model_validator(mode="after")
    def _has_a_place(self) -> DatasetManifest:
        if bool(self.path) == bool(self.obtain):
            raise ValueError("either path or obtain is required: where it is, or how a user gets it")
        return self
