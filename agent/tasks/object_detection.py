"""Object detection: boxes, scores and classes of a model's outputs, in pixels of each image."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from inferometer.agent.preprocessing.inputs import Tensors
from inferometer.agent.preprocessing.origins import ImageGeometry
from inferometer.agent.tasks.boxes import BoxNotation, scores_per_class, without_duplicates
from inferometer.agent.tasks.layers import find_layer
from inferometer.agent.tasks.postprocessing import PredictedInputs, TaskPostprocessor
from inferometer.agent.tasks.predictions import Detections
from inferometer.manifests.errors import ManifestError, PredictionError
from inferometer.manifests.schema import ModelOutput, OutputParameters, Transform

_SECOND_OUTPUT = 1
_BOXES = "boxes are N × k × 4"


@dataclass(frozen=True, slots=True, eq=False)
class FoundObjects:
    """The objects in one image, the most certain first.

    Attributes:
        places: int64, n; the places of their boxes among those that the model gives.
        whole: float64, n × 4; their boxes in pixels of the image, which may reach beyond it.
        boxes: float64, n × 4; the same, clipped to the image.
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
    ``class_offset`` or is ``background_index``, or its box has no area inside the image. The
    ``max_detections`` most certain ones of an image are kept, of all classes, as COCO counts them.

    Args:
        parameters: The parameters of the manifest.

    Raises:
        ManifestError: They contradict each other.
    """

    def __init__(self, parameters: OutputParameters) -> None:
        self._parameters = parameters
        self._notation = BoxNotation.of(parameters)
        self._per_class = scores_per_class(parameters)
        self._softmax = parameters.probabilities_transform is Transform.SOFTMAX
        self._boxes_layer = _SECOND_OUTPUT if parameters.boxes_layer is None else parameters.boxes_layer
        if self._boxes_layer == parameters.probabilities_layer:
            raise ManifestError(
                f"field output.parameters.boxes_layer: {self._boxes_layer} is the probabilities_layer too; "
                "name the output with the boxes, N × k × 4"
            )
        if self._softmax and not self._per_class:
            raise ManifestError(
                "field output.parameters.probabilities_transform: softmax needs a score for each class; "
                "leave it out beside a classes_layer"
            )

    def __call__(self, tensors: Tensors, inputs: PredictedInputs) -> list[FoundObjects | None]:
        """Returns the objects of each input; None where a number is not finite.

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
        """Returns the scores of the labels, N × k × labels."""
        if self._softmax:
            with np.errstate(invalid="ignore"):  # what is not finite stays so, and is reported
                powers = np.exp(scores - scores.max(axis=2, keepdims=True, initial=-np.inf))
                scores = powers / powers.sum(axis=2, keepdims=True)
        offset, labels = self._parameters.class_offset, len(self._parameters.labels)
        if labels and scores.shape[2] - offset != labels:
            raise PredictionError(
                f"the model gives {scores.shape[2]} scores a box and class_offset is {offset}; its manifest "
                f"has {labels} labels"
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
        chosen = (
            columns if classes is None else self._whole(classes[places])
        ) - self._parameters.class_offset
        wanted = (chosen >= 0) & (chosen != self._background)
        places, values, chosen = places[wanted], values[wanted], chosen[wanted]
        self._check(chosen)
        if not np.isfinite(boxes[places]).all():
            return None
        order = np.argsort(-values, kind="stable")
        return self._distinct(self._placed(places[order], boxes, values[order], chosen[order], geometry))

    @property
    def _background(self) -> int:
        index = self._parameters.background_index
        return -1 if index is None else index

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
        """Returns candidates with an area in the image; without a geometry, boxes keep the model's units."""
        whole = clipped = self._notation.corners_of(boxes[places])
        if geometry is not None:
            try:
                inside = self._notation.in_input(whole, geometry)
            except ValueError as error:
                raise PredictionError(f"the model's boxes {error}") from error
            whole, clipped = geometry.to_image(inside, clipped=False), geometry.to_image(inside)
        # as they are kept, so that none loses its area by rounding
        with np.errstate(over="ignore"):  # without an image, a box may be beyond float32, and is infinite
            clipped = clipped.astype(np.float32).astype(np.float64)
        area = (clipped[:, 2] > clipped[:, 0]) & (clipped[:, 3] > clipped[:, 1])
        return FoundObjects(places, whole, clipped, scores, classes)[area]

    def _distinct(self, found: FoundObjects) -> FoundObjects:
        most, threshold = self._parameters.max_detections, self._parameters.iou_threshold
        if threshold is None:
            return found[:most]
        return found[without_duplicates(found.boxes, found.classes, threshold, most)]


class _Layers:
    """The outputs of a batch, by their meaning; a model of one image may omit the batch axis."""

    def __init__(self, tensors: Tensors, size: int) -> None:
        self._tensors = tensors
        self._size = size
        self._batched = True

    def named(self, layer: int | str) -> tuple[str, NDArray[np.float64]]:
        """Returns an output as float64, and its name."""
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
        """Returns one number for each box, N × k."""
        name, array = self.named(layer if layer is not None else 0)
        if array.ndim < 2 or array.shape[:2] != (self._size, boxes) or array.size != self._size * boxes:
            raise self._wrong(name, f"it is N × {boxes}, as there are {boxes} boxes")
        return array.reshape(self._size, boxes)

    def counts(self, layer: int | str | None, boxes: int) -> list[int]:
        """Returns how many boxes of each input count."""
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


class DetectionPostprocessor(TaskPostprocessor):
    """Turns the outputs of a detector into objects. Thread-safe.

    ``max_detections`` bounds how many are kept of an image; the feature limit, which is about ranked classes,
    does not.

    Args:
        output: The output of the manifest.
        feature_limit: Not used.

    Raises:
        ManifestError: The manifest contradicts itself.
    """

    wants_inputs = True
    takes_unbatched = True

    def __init__(self, output: ModelOutput, feature_limit: int) -> None:
        del feature_limit
        self._find = ObjectFinder(output.parameters)

    def __call__(self, tensors: Tensors, inputs: PredictedInputs) -> tuple[Detections, NDArray[np.bool_]]:
        """Returns the objects of the valid inputs; see ``TaskPostprocessor``."""
        found = self._find(tensors, inputs)
        objects = [each for each in found if each is not None]
        return detections_of(objects), np.array([each is not None for each in found], np.bool_)


def detections_of(objects: list[FoundObjects]) -> Detections:
    """Returns the objects of several images in columns."""
    boxes = [each.boxes for each in objects] or [np.zeros((0, 4))]
    scores = [each.scores for each in objects] or [np.zeros(0)]
    classes = [each.classes for each in objects] or [np.zeros(0, np.int64)]
    with np.errstate(over="ignore"):  # a score beyond float32 is infinite, which stays the largest
        return Detections(
            np.array([len(each.scores) for each in objects], np.int64),
            np.concatenate(boxes).astype(np.float32),
            np.concatenate(scores).astype(np.float32),
            np.concatenate(classes).astype(np.int64),
        )
