"""Tasks that find objects in images: detection, with boxes, and instance segmentation, with masks."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from inferometer.agent.preprocessing.inputs import ImageGeometry, Tensors
from inferometer.agent.tasks.predictions import (
    Detections,
    Instances,
    PredictedInputs,
    TaskPostprocessor,
    encoded,
    find_layer,
)
from inferometer.manifests.errors import ManifestError, PredictionError
from inferometer.manifests.schema import (
    BoxFormat,
    BoxNotation,
    BoxUnits,
    MaskFrame,
    ModelOutput,
    OutputParameters,
    Transform,
)

_NOT_RELATIVE = 2.0
_NOT_PIXELS = 1.5
_SECOND_OUTPUT = 1
_BOXES = "boxes are N × k × 4"


def corners_of(notation: BoxNotation, boxes: NDArray[np.float64]) -> NDArray[np.float64]:
    """Returns the left, top, right and bottom of boxes, n × 4, in the boxes' own units."""
    if notation.format in (BoxFormat.XYXY, BoxFormat.YXYX):
        return boxes[:, notation.corners]
    begin, size = boxes[:, :2], boxes[:, 2:]
    if notation.format is BoxFormat.CXCYWH:
        begin = begin - size / 2
    return np.concatenate([begin, begin + size], axis=1)


def in_input(
    notation: BoxNotation, corners: NDArray[np.float64], geometry: ImageGeometry
) -> NDArray[np.float64]:
    """Returns boxes, n × 4, in pixels of the model's input.

    Raises:
        PredictionError: The manifest does not state the units, and the boxes contradict the assumed units.
    """
    size = (geometry.input_width, geometry.input_height)
    relative = notation.units is BoxUnits.RELATIVE
    if not notation.stated and len(corners):
        largest = np.abs(corners).max(axis=1)
        if relative and (largest > _NOT_RELATIVE).all():
            raise PredictionError(
                "the model's boxes are not relative to the input; add box_units: pixels to output.parameters"
            )
        if not relative and (largest <= _NOT_PIXELS).all() and min(size) > _NOT_RELATIVE:
            raise PredictionError(
                "the model's boxes are not in pixels; add box_units: relative to output.parameters"
            )
    if relative:
        return corners * np.array(size * 2, np.float64)
    if notation.frame is not None:
        return corners * (np.array(size * 2, np.float64) / np.array(notation.frame * 2, np.float64))
    return corners


def overlaps(box: NDArray[np.float64], others: NDArray[np.float64]) -> NDArray[np.float64]:
    """Returns the intersection over union of a box, 4, with each of n × 4 others; all must have an area."""
    width = np.minimum(box[2], others[:, 2]) - np.maximum(box[0], others[:, 0])
    height = np.minimum(box[3], others[:, 3]) - np.maximum(box[1], others[:, 1])
    shared = np.maximum(width, 0.0) * np.maximum(height, 0.0)
    areas = (others[:, 2] - others[:, 0]) * (others[:, 3] - others[:, 1])
    ratio: NDArray[np.float64] = shared / ((box[2] - box[0]) * (box[3] - box[1]) + areas - shared)
    return ratio


def without_duplicates(
    boxes: NDArray[np.float64], classes: NDArray[np.int64], iou_threshold: float, most: int
) -> Sequence[int]:
    """Returns the indices of the boxes that greedy non-maximum suppression keeps, class by class.

    A box is removed if a kept box of the same class overlaps it by more than ``iou_threshold``. The most
    certain come first, and all have an area. ``most`` is the number of kept boxes at which to stop.
    """
    kept: list[int] = []
    left = np.arange(len(boxes))
    while left.size and len(kept) < most:
        best, left = int(left[0]), left[1:]
        kept.append(best)
        apart = overlaps(boxes[best], boxes[left]) <= iou_threshold
        left = left[apart | (classes[left] != classes[best])]
    return kept


@dataclass(frozen=True, slots=True, eq=False)
class FoundObjects:
    """The objects in one image, the most certain first.

    Attributes:
        places: int64, n; the indices of their boxes among the boxes that the model returns.
        whole: float64, n × 4; their boxes in pixels of the image, which may extend beyond it.
        boxes: float64, n × 4; the same boxes, clipped to the image.
        scores: float64, n.
        classes: int64, n; positions in the model's list of labels.
    """

    places: NDArray[np.int64]
    whole: NDArray[np.float64]
    boxes: NDArray[np.float64]
    scores: NDArray[np.float64]
    classes: NDArray[np.int64]

    def __getitem__(self, part: Any) -> FoundObjects:
        return FoundObjects(
            self.places[part], self.whole[part], self.boxes[part], self.scores[part], self.classes[part]
        )


class ObjectFinder:
    """Finds the objects in the outputs of a batch. Thread-safe.

    An entry is left out if its score is 0 or less or below ``score_threshold``, its class comes before
    ``class_offset`` or is ``background_index``, or its box has no area inside the image. For each image, the
    ``max_detections`` most certain objects across all classes are kept, as in COCO.

    Raises:
        ManifestError: The parameters contradict each other.
    """

    def __init__(self, parameters: OutputParameters) -> None:
        self._parameters = parameters
        self._notation = BoxNotation.of(parameters)
        self._per_class = parameters.scores_per_class
        self._softmax = parameters.probabilities_transform is Transform.SOFTMAX
        self._boxes_layer = _SECOND_OUTPUT if parameters.boxes_layer is None else parameters.boxes_layer
        if self._boxes_layer == parameters.probabilities_layer:
            raise ManifestError(
                f"field output.parameters.boxes_layer: {self._boxes_layer} is the probabilities_layer too; "
                "name the output with the boxes, N × k × 4"
            )
        if parameters.probabilities_transform is Transform.SIGMOID:
            raise ManifestError(
                "field output.parameters.probabilities_transform: sigmoid is only for classifications; "
                "boxes accept none or softmax"
            )
        if self._softmax and not self._per_class:
            raise ManifestError(
                "field output.parameters.probabilities_transform: softmax needs a score for each class; "
                "leave it out beside a classes_layer"
            )

    def __call__(self, tensors: Tensors, inputs: PredictedInputs) -> list[FoundObjects | None]:
        """Returns the objects of each input; None if a number is not finite.

        Raises:
            PredictionError: The outputs do not match the manifest.
        """
        layers = _Layers(tensors, inputs.size)
        boxes = layers.boxes(self._boxes_layer)
        scores = layers.scores(self._parameters.probabilities_layer, boxes.shape[1], self._per_class)
        classes = None if self._per_class else layers.column(self._parameters.classes_layer, boxes.shape[1])
        counts = layers.counts(self._parameters.count_layer, boxes.shape[1])
        if classes is None:
            scores = self._with_background_apart(scores)
        found: list[FoundObjects | None] = []
        for row, count in enumerate(counts):
            geometry = inputs.geometries[row] if inputs.geometries else None
            of_row = None if classes is None else classes[row, :count]
            found.append(self._of_image(boxes[row, :count], scores[row, :count], of_row, geometry))
        return found

    def _with_background_apart(self, scores: NDArray[np.float64]) -> NDArray[np.float64]:
        """Returns the scores for the manifest's labels, N × k × labels."""
        if self._softmax:
            with np.errstate(invalid="ignore"):  # what is not finite stays so, and is reported
                powers = np.exp(scores - scores.max(axis=2, keepdims=True, initial=-np.inf))
                scores = powers / powers.sum(axis=2, keepdims=True)
        offset, labels = self._parameters.class_offset, len(self._parameters.labels)
        if labels and scores.shape[2] - offset != labels:
            raise PredictionError(
                f"the model gives {scores.shape[2]} scores per box and class_offset is {offset}, "
                f"but its manifest has {labels} labels"
            )
        return scores

    def _of_image(
        self,
        boxes: NDArray[np.float64],
        scores: NDArray[np.float64],
        classes: NDArray[np.float64] | None,
        geometry: ImageGeometry | None,
    ) -> FoundObjects | None:
        if not np.isfinite(scores).all() or (classes is not None and not np.isfinite(classes).all()):
            return None
        candidates = (scores > 0) & (scores >= self._parameters.score_threshold)
        places, columns = np.nonzero(candidates if classes is None else candidates[:, np.newaxis])
        values = scores[places, columns] if classes is None else scores[places]
        chosen = columns if classes is None else self._whole(classes[places])
        chosen = chosen - self._parameters.class_offset
        background = self._parameters.background_index
        wanted = (chosen >= 0) & (chosen != (-1 if background is None else background))
        places, values, chosen = places[wanted], values[wanted], chosen[wanted]
        self._check(chosen)
        if not np.isfinite(boxes[places]).all():
            return None
        order = np.argsort(-values, kind="stable")
        found = self._placed(places[order], boxes, values[order], chosen[order], geometry)
        most, threshold = self._parameters.max_detections, self._parameters.iou_threshold
        if threshold is None:
            return found[:most]
        return found[without_duplicates(found.boxes, found.classes, threshold, most)]

    def _whole(self, classes: NDArray[np.float64]) -> NDArray[np.int64]:
        rounded = np.rint(classes)
        if (rounded != classes).any():
            wrong = classes[rounded != classes][0]
            raise PredictionError(f"a class is {wrong:g}; classes are whole numbers")
        return np.clip(rounded, -(2**53), 2**53).astype(np.int64)

    def _check(self, classes: NDArray[np.int64]) -> None:
        labels = len(self._parameters.labels)
        if labels and len(classes) and (largest := int(classes.max())) >= labels:
            offset = self._parameters.class_offset
            raise PredictionError(
                f"the model found class {largest + offset}; its manifest has {labels} labels, from class "
                f"{offset} on; class_offset or the labels are wrong"
            )

    def _placed(
        self,
        places: NDArray[np.int64],
        boxes: NDArray[np.float64],
        scores: NDArray[np.float64],
        classes: NDArray[np.int64],
        geometry: ImageGeometry | None,
    ) -> FoundObjects:
        """Returns the objects with an area in the image; without a geometry, boxes keep the model's units."""
        whole = clipped = corners_of(self._notation, boxes[places])
        if geometry is not None:
            inside = in_input(self._notation, whole, geometry)
            whole, clipped = geometry.to_image(inside, clipped=False), geometry.to_image(inside)
        # as they are kept, so that none loses its area by rounding
        with np.errstate(over="ignore"):  # without an image, a box may be beyond float32, and is infinite
            clipped = clipped.astype(np.float32).astype(np.float64)
        area = (clipped[:, 2] > clipped[:, 0]) & (clipped[:, 3] > clipped[:, 1])
        return FoundObjects(places, whole, clipped, scores, classes)[area]


class _Layers:
    """Reads a batch's outputs by their meaning; for a single image, a model may omit the batch axis."""

    def __init__(self, tensors: Tensors, size: int) -> None:
        self._tensors = tensors
        self._size = size
        self._batched = True

    def named(self, layer: int | str) -> tuple[str, NDArray[np.float64]]:
        """Returns an output as float64, along with its name."""
        name, tensor = find_layer(self._tensors, layer, exactly=True)
        array = tensor.astype(np.float64)
        return name, array if self._batched else array[np.newaxis]

    def boxes(self, layer: int | str) -> NDArray[np.float64]:
        """Returns the boxes, N × k × 4."""
        name, array = self.named(layer)
        if array.ndim == 2 and self._size == 1:
            self._batched = False
            array = array[np.newaxis]
        if array.ndim == 4 and 1 in array.shape[1:3]:
            array = array.squeeze(1 if array.shape[1] == 1 else 2)
        if array.ndim != 3 or len(array) != self._size or 4 not in array.shape[1:]:
            raise self._wrong(name, _BOXES)
        return array if array.shape[2] == 4 else array.transpose(0, 2, 1)

    def scores(self, layer: int | str, boxes: int, per_class: bool) -> NDArray[np.float64]:
        """Returns the scores, N × k, or N × k × classes."""
        if not per_class:
            return self.column(layer, boxes)
        name, array = self.named(layer)
        if array.ndim == 2:
            array = array[:, :, np.newaxis]
        if array.ndim != 3 or len(array) != self._size or boxes not in array.shape[1:]:
            raise self._wrong(name, f"scores of {boxes} boxes are N × {boxes} × classes")
        return array if array.shape[1] == boxes else array.transpose(0, 2, 1)

    def column(self, layer: int | str | None, boxes: int) -> NDArray[np.float64]:
        """Returns an output with one number for each box, N × k."""
        name, array = self.named(layer if layer is not None else 0)
        if array.ndim < 2 or array.shape[:2] != (self._size, boxes) or array.size != self._size * boxes:
            raise self._wrong(name, f"it is N × {boxes}, as there are {boxes} boxes")
        return array.reshape(self._size, boxes)

    def counts(self, layer: int | str | None, boxes: int) -> list[int]:
        """Returns the number of valid boxes for each input."""
        if layer is None:
            return [boxes] * self._size
        name, array = self.named(layer)
        if array.size != self._size:
            raise self._wrong(name, "it is one count for each input")
        counts = array.ravel()
        if not ((counts >= 0) & (counts <= boxes)).all():
            raise PredictionError(f"output {name} has counts outside of 0…{boxes}, the number of boxes")
        return [int(count) for count in counts]

    def _wrong(self, name: str, wanted: str) -> PredictionError:
        return PredictionError(
            f"output {name} has shape {list(self._tensors[name].shape)} for a batch of {self._size}; {wanted}"
            + (", or k × 4 with batch_size 1" if self._size > 1 and wanted == _BOXES else "")
        )


class _ObjectPostprocessor(TaskPostprocessor):
    """Finds objects; their number is limited by ``max_detections``, not by the limit for ranked classes."""

    wants_inputs = True
    takes_unbatched = True

    def __init__(self, output: ModelOutput, feature_limit: int) -> None:
        self._find = ObjectFinder(output.parameters)


class DetectionPostprocessor(_ObjectPostprocessor):
    """Turns the outputs of a detector into objects. Thread-safe.

    Raises:
        ManifestError: The fields of the manifest contradict each other.
    """

    def __call__(self, tensors: Tensors, inputs: PredictedInputs) -> tuple[Detections, NDArray[np.bool_]]:
        """Returns the objects for the valid inputs; see ``TaskPostprocessor``."""
        found = self._find(tensors, inputs)
        objects = [each for each in found if each is not None]
        return detections_of(objects), np.array([each is not None for each in found], np.bool_)


def detections_of(objects: list[FoundObjects]) -> Detections:
    """Returns the objects of several images, in columns."""
    with np.errstate(over="ignore"):  # a score beyond float32 is infinite, which stays the largest
        return Detections(
            np.array([len(each.scores) for each in objects], np.int64),
            np.concatenate([np.zeros((0, 4)), *(each.boxes for each in objects)]).astype(np.float32),
            np.concatenate([np.zeros(0), *(each.scores for each in objects)]).astype(np.float32),
            np.concatenate([np.zeros(0, np.int64), *(each.classes for each in objects)]),
        )


class InstancePostprocessor(_ObjectPostprocessor):
    """Turns the outputs of a model into objects with masks. Thread-safe.

    A mask is resized from the box or the input to the image by bilinear interpolation between the centres of
    its pixels. A pixel of the image belongs to the object if its value is at least ``mask_threshold``, and
    never outside the box or the crop; a box's mask falls to 0 there, as in Mask R-CNN. If there is no
    geometry, the mask keeps its own pixels.

    Raises:
        ManifestError: The manifest has no ``masks_layer``, or its fields contradict each other.
    """

    def __init__(self, output: ModelOutput, feature_limit: int) -> None:
        if output.parameters.masks_layer is None:
            raise ManifestError(
                "field output.parameters.masks_layer: is missing; instance_segmentation requires the output "
                "with the masks"
            )
        super().__init__(output, feature_limit)
        self._layer = output.parameters.masks_layer
        self._frame = output.parameters.mask_frame
        self._threshold = output.parameters.mask_threshold

    def __call__(self, tensors: Tensors, inputs: PredictedInputs) -> tuple[Instances, NDArray[np.bool_]]:
        """Returns the objects for the valid inputs; see ``TaskPostprocessor``."""
        found = self._find(tensors, inputs)
        masks = self._masks(tensors, inputs.size)
        objects: list[FoundObjects] = []
        sizes: list[tuple[int, int]] = []
        contents: list[bytes] = []
        good = np.zeros(len(found), np.bool_)
        for row, each in enumerate(found):
            if each is None:
                continue
            if len(each.places) and int(each.places.max()) >= masks.shape[1]:
                raise PredictionError(f"the model gives {masks.shape[1]} masks for more boxes")
            own = masks[row, each.places].astype(np.float64)
            if not np.isfinite(own).all():
                continue
            good[row] = True
            geometry = inputs.geometries[row] if inputs.geometries else None
            objects.append(each)
            height, width = masks.shape[2:]
            sizes.append((geometry.height, geometry.width) if geometry else (height, width))
            contents += [
                encoded(self._placed(mask, box, geometry)) for mask, box in zip(own, each.whole, strict=True)
            ]
        boxes = detections_of(objects)
        return Instances(
            boxes.counts,
            boxes.boxes,
            boxes.scores,
            boxes.classes,
            np.array(sizes, np.int64).reshape(-1, 2),
            np.array([len(content) for content in contents], np.int64),
            np.frombuffer(b"".join(contents), np.uint8),
        ), good

    def _masks(self, tensors: Tensors, size: int) -> NDArray[Any]:
        """Returns the masks, N × k × height × width."""
        name, array = find_layer(tensors, self._layer, exactly=True)
        shape = list(array.shape)
        if array.ndim == 5 and array.shape[2] == 1:
            array = array[:, :, 0]
        elif size == 1 and array.ndim == 4 and array.shape[1] == 1:  # k × 1 × height × width
            array = array.transpose(1, 0, 2, 3)
        elif size == 1 and array.ndim == 3:
            array = array[np.newaxis]
        if array.ndim != 4 or len(array) != size or 0 in array.shape[2:]:
            raise PredictionError(
                f"output {name} has shape {shape} for a batch of {size}; masks are N × k × height × width"
            )
        return array

    def _placed(
        self, mask: NDArray[np.float64], box: NDArray[np.float64], geometry: ImageGeometry | None
    ) -> NDArray[np.bool_]:
        """Returns an object's pixels in the image."""
        if geometry is None:
            return mask >= self._threshold
        of_box = self._frame is MaskFrame.BOX
        if not of_box:
            frame = np.array([[0, 0, geometry.input_width, geometry.input_height]], np.float64)
            box = geometry.to_image(frame, clipped=False)[0]
        left, top, right, bottom = box
        rows, down = _interpolation((top, bottom), mask.shape[0], geometry.height, falls=of_box)
        columns, across = _interpolation((left, right), mask.shape[1], geometry.width, falls=of_box)
        placed = np.zeros((geometry.height, geometry.width), np.bool_)
        placed[rows, columns] = down @ mask @ across.T >= self._threshold
        return placed


def _interpolation(
    span: tuple[float, float], cells: int, limit: int, *, falls: bool
) -> tuple[slice, NDArray[np.float64]]:
    """Returns the pixels with centres in a span, and their weights for the cells that divide the span.

    The span and the ``limit`` are in pixels of the image. If it ``falls``, values fall to 0 beyond the
    centres of the outer cells, as in Mask R-CNN, which surrounds the mask with zeros; otherwise they stay
    constant.

    Returns:
        The pixels, and the weights as float64, pixels × cells.
    """
    begin, end = span
    first = int(np.clip(np.ceil(begin - 0.5), 0, limit))
    last = int(np.clip(np.ceil(end - 0.5), first, limit))
    places = (np.arange(first, last) + 0.5 - begin) / (end - begin) * cells - 0.5
    if not falls:
        places = np.clip(places, 0, cells - 1)
    weights = np.maximum(0.0, 1.0 - np.abs(places[:, np.newaxis] - np.arange(cells)))
    return slice(first, last), weights
