"""Boxes as models give them: their notation, their overlap, and the suppression of duplicates."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from inferometer.agent.preprocessing.origins import ImageGeometry
from inferometer.manifests.schema import BoxFormat, BoxUnits, OutputParameters

_CORNERS = {BoxFormat.XYXY: (0, 1, 2, 3), BoxFormat.YXYX: (1, 0, 3, 2)}
_TENSORFLOW_BOXES = "detection_boxes"
_NOT_RELATIVE = 2.0
_NOT_PIXELS = 1.5


@dataclass(frozen=True, slots=True)
class BoxNotation:
    """How a model writes boxes.

    Attributes:
        format: The order of the four numbers.
        corners: For boxes of two corners, the places of left, top, right and bottom.
        units: The units of the coordinates.
        stated: Whether the manifest says so; if not, boxes that contradict it are refused.
        frame: The width and height that pixels refer to; None means those of the model's input.
    """

    format: BoxFormat
    corners: tuple[int, int, int, int]
    units: BoxUnits
    stated: bool
    frame: tuple[int, int] | None

    @classmethod
    def of(cls, parameters: OutputParameters) -> BoxNotation:
        """Returns the notation that a manifest describes.

        What a manifest omits follows from MLModelScope's notation. Its ``xmin_index`` to ``ymax_index`` give
        the order, and ``scale_width`` and ``scale_height`` the size that pixels refer to; with an order but
        no size, boxes are relative. TensorFlow's ``detection_boxes`` are relative and begin with y. Otherwise
        boxes are xyxy: in pixels beside a ``classes_layer`` of their own, as in GluonCV's models, and else
        relative, as in its SSD models for PyTorch and ONNX Runtime.
        """
        places = [
            getattr(parameters, f"{name}_index") for name in ("xmin", "ymin", "xmax", "ymax")
        ]  # where MLModelScope omits one, it is that of yxyx
        ordered = any(place is not None for place in places)
        tensorflow = str(parameters.boxes_layer).startswith(_TENSORFLOW_BOXES)
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
        if frame is None and (ordered or tensorflow or scores_per_class(parameters)):
            units = BoxUnits.RELATIVE
        stated = parameters.box_units is not None or frame is not None
        return cls(style, corners, parameters.box_units or units, stated, frame)

    def corners_of(self, boxes: NDArray[np.float64]) -> NDArray[np.float64]:
        """Returns left, top, right and bottom of boxes, n × 4, in their own units."""
        if self.format in _CORNERS:
            return boxes[:, self.corners]
        begin, size = boxes[:, :2], boxes[:, 2:]
        if self.format is BoxFormat.CXCYWH:
            begin = begin - size / 2
        return np.concatenate([begin, begin + size], axis=1)

    def in_input(self, corners: NDArray[np.float64], geometry: ImageGeometry) -> NDArray[np.float64]:
        """Returns boxes, n × 4, in pixels of the model's input.

        Raises:
            ValueError: The manifest does not state the units, and the boxes contradict those assumed.
        """
        size = (geometry.input_width, geometry.input_height)
        if not self.stated and len(corners):
            largest = np.abs(corners).max(axis=1)
            if self.units is BoxUnits.RELATIVE and (largest > _NOT_RELATIVE).all():
                raise ValueError("are not relative to the input; add box_units: pixels to output.parameters")
            if self.units is BoxUnits.PIXELS and (largest <= _NOT_PIXELS).all() and min(size) > _NOT_RELATIVE:
                raise ValueError("are not in pixels; add box_units: relative to output.parameters")
        if self.units is BoxUnits.RELATIVE:
            return corners * np.array(size * 2, np.float64)
        if self.frame is not None:
            return corners * (np.array(size * 2, np.float64) / np.array(self.frame * 2, np.float64))
        return corners


def scores_per_class(parameters: OutputParameters) -> bool:
    """Returns whether a model gives a score for each class, and no class of each box."""
    return parameters.classes_layer is None or parameters.classes_layer == parameters.probabilities_layer


def overlaps(box: NDArray[np.float64], others: NDArray[np.float64]) -> NDArray[np.float64]:
    """Returns the intersection over union of a box, 4, and others, n × 4; all have an area."""
    width = np.minimum(box[2], others[:, 2]) - np.maximum(box[0], others[:, 0])
    height = np.minimum(box[3], others[:, 3]) - np.maximum(box[1], others[:, 1])
    shared = np.maximum(width, 0.0) * np.maximum(height, 0.0)
    areas = (others[:, 2] - others[:, 0]) * (others[:, 3] - others[:, 1])
    ratio: NDArray[np.float64] = shared / ((box[2] - box[0]) * (box[3] - box[1]) + areas - shared)
    return ratio


def without_duplicates(
    boxes: NDArray[np.float64], classes: NDArray[np.int64], iou_threshold: float, most: int
) -> Sequence[int]:
    """Returns the places that greedy non-maximum suppression keeps, class by class.

    A box goes where one of the same class before it overlaps it by more than ``iou_threshold``.

    Args:
        boxes: float64, n × 4, the most certain first; all have an area.
        classes: int64, n.
        iou_threshold: 0…1.
        most: Stops once so many are kept.
    """
    kept: list[int] = []
    left = np.arange(len(boxes))
    while left.size and len(kept) < most:
        best, left = int(left[0]), left[1:]
        kept.append(best)
        apart = overlaps(boxes[best], boxes[left]) <= iou_threshold
        left = left[apart | (classes[left] != classes[best])]
    return kept
