"""Instance segmentation: the objects of a model's outputs with the pixels of each in the image."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from inferometer.agent.preprocessing.inputs import Tensors
from inferometer.agent.preprocessing.origins import ImageGeometry
from inferometer.agent.tasks.layers import find_layer
from inferometer.agent.tasks.object_detection import FoundObjects, ObjectFinder, detections_of
from inferometer.agent.tasks.postprocessing import PredictedInputs, TaskPostprocessor
from inferometer.agent.tasks.predictions import Instances
from inferometer.agent.tasks.run_lengths import encoded
from inferometer.manifests.errors import ManifestError, PredictionError
from inferometer.manifests.schema import MaskFrame, ModelOutput


class InstancePostprocessor(TaskPostprocessor):
    """Turns the outputs of a model into objects with masks. Thread-safe.

    A mask is resized with bilinear interpolation between the centres of its pixels, from the box or from the
    input to the image, and a pixel of the image belongs to the object from ``mask_threshold`` on. Outside of
    the box, or of what was cropped, none does; the mask of a box falls to 0 there, as in Mask R-CNN. Without
    a geometry, a mask stays in its own pixels.

    Args:
        output: The output of the manifest.
        feature_limit: Not used; see ``DetectionPostprocessor``.

    Raises:
        ManifestError: The manifest has no ``masks_layer``, or contradicts itself.
    """

    wants_inputs = True
    takes_unbatched = True

    def __init__(self, output: ModelOutput, feature_limit: int) -> None:
        del feature_limit
        if output.parameters.masks_layer is None:
            raise ManifestError(
                "field output.parameters.masks_layer: is missing; instance_segmentation requires the output "
                "with the masks"
            )
        self._layer = output.parameters.masks_layer
        self._frame = output.parameters.mask_frame
        self._threshold = output.parameters.mask_threshold
        self._find = ObjectFinder(output.parameters)

    def __call__(self, tensors: Tensors, inputs: PredictedInputs) -> tuple[Instances, NDArray[np.bool_]]:
        """Returns the objects of the valid inputs; see ``TaskPostprocessor``."""
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
        """Returns the pixels of an object in the image."""
        if geometry is None:
            return mask >= self._threshold
        if self._frame is MaskFrame.BOX:
            left, top, right, bottom = box
        else:
            frame = np.array([[0, 0, geometry.input_width, geometry.input_height]], np.float64)
            left, top, right, bottom = geometry.to_image(frame, clipped=False)[0]
        of_box = self._frame is MaskFrame.BOX
        rows, down = _interpolation((top, bottom), mask.shape[0], geometry.height, falls=of_box)
        columns, across = _interpolation((left, right), mask.shape[1], geometry.width, falls=of_box)
        placed = np.zeros((geometry.height, geometry.width), np.bool_)
        placed[rows, columns] = down @ mask @ across.T >= self._threshold
        return placed


def _interpolation(
    span: tuple[float, float], cells: int, limit: int, *, falls: bool
) -> tuple[slice, NDArray[np.float64]]:
    """Returns the pixels whose centres lie in a span, and their weights on the cells that it is divided into.

    Args:
        span: Its begin and end, in pixels of the image.
        cells: The number of cells.
        limit: The number of pixels of the image.
        falls: Whether the values fall to 0 beyond the centres of the outer cells, as those of Mask R-CNN,
            which surrounds the mask with zeros; else they stay.

    Returns:
        The pixels, and float64, pixels × cells.
    """
    begin, end = span
    first = int(np.clip(np.ceil(begin - 0.5), 0, limit))
    last = int(np.clip(np.ceil(end - 0.5), first, limit))
    places = (np.arange(first, last) + 0.5 - begin) / (end - begin) * cells - 0.5
    if not falls:
        places = np.clip(places, 0, cells - 1)
    weights = np.maximum(0.0, 1.0 - np.abs(places[:, np.newaxis] - np.arange(cells)))
    return slice(first, last), weights
