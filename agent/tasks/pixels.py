"""Tasks whose output is an image: semantic segmentation, a class for each pixel, and image enhancement."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from inferometer.agent.preprocessing.inputs import ImageGeometry, Tensors
from inferometer.agent.tasks.predictions import (
    NO_CLASS,
    UNSEEN,
    ClassMaps,
    Images,
    PredictedInputs,
    TaskPostprocessor,
    find_layer,
)
from inferometer.manifests.errors import ManifestError, PredictionError
from inferometer.manifests.inputs import ColorMode, Layout
from inferometer.manifests.schema import ModelOutput

_MOST_CLASSES = 65536
_BLOCK_ELEMENTS = 2**22
"""The number of scores that are interpolated at once: 16 MiB."""


class SemanticSegmentation(TaskPostprocessor):
    """Creates class maps from scores for each class, or from a map of class numbers. Thread-safe.

    Scores are N × C × height × width, or N × height × width × C with ``layout: HWC``; the class with the
    highest score is chosen, and the first of equal ones. A map of class numbers is N × height × width,
    optionally with one channel. With ``masks_threshold``, a single channel of scores means class 1 where the
    score is above it, else class 0.

    A map is resized to the size of the image. With ``masks_interpolation: nearest``, each pixel gets the
    class at its centre: the scored classes are the model's own, and no class appears that it did not choose.
    ``bilinear`` interpolates the scores before the highest is chosen, as in many papers. Both treat pixels as
    areas (``align_corners=False``). Pixels that preprocessing cropped away are ``UNSEEN``. If there is no
    geometry, the map has the size of the output.

    ``class_offset`` is subtracted from class numbers; negative results become ``NO_CLASS``.
    """

    wants_inputs = True
    invalid_row = "the model's output has a score that is not finite, or a number of no class"

    def __init__(self, output: ModelOutput, feature_limit: int) -> None:
        parameters = output.parameters
        self._layer = 0 if parameters.masks_layer is None else parameters.masks_layer
        self._channels = 3 if parameters.layout is Layout.HWC else 1
        self._offset = parameters.class_offset
        self._labels = len(parameters.labels)
        self._interpolated = parameters.masks_interpolation == "bilinear"
        self._threshold = parameters.masks_threshold

    def __call__(self, tensors: Tensors, inputs: PredictedInputs) -> tuple[ClassMaps, NDArray[np.bool_]]:
        """Returns the maps for the valid rows, and a mask of these rows.

        A row is valid if its scores are finite, or if its class numbers are integers with labels.

        Raises:
            PredictionError: The output is neither scores nor a map, or its classes do not match the labels.
        """
        name, tensor = find_layer(tensors, self._layer)
        scores = self._scores(name, tensor)
        numbers = self._numbers(name, tensor) if scores is None else None
        good = self._known(numbers) if scores is None else np.isfinite(scores).all(axis=(1, 2, 3))
        geometries = inputs.geometries or (None,) * inputs.size
        found = []
        for row in np.flatnonzero(good).tolist():
            geometry = geometries[row]
            if scores is not None and self._interpolated and geometry is not None:
                found.append(_interpolated(scores[row], geometry))
                continue
            classes = scores[row].argmax(axis=0) if scores is not None else numbers[row]  # type: ignore[index]
            classes = classes.astype(np.int32)
            found.append(classes if geometry is None else _nearest(classes, geometry))
        return self._maps(found), good

    def _maps(self, found: list[NDArray[np.int32]]) -> ClassMaps:
        """Returns the maps in columns, with classes as indices into the list of labels."""
        sizes = np.array([each.shape for each in found], np.int64).reshape(len(found), 2)
        pixels = np.concatenate([each.ravel() for each in found]) if found else np.empty(0, np.int32)
        if self._offset:
            seen = pixels != UNSEEN
            pixels[seen] = np.maximum(pixels[seen] - self._offset, NO_CLASS)
        return ClassMaps(sizes, pixels)

    def _scores(self, name: str, tensor: NDArray[Any]) -> NDArray[Any] | None:
        """Returns the scores as N × C × height × width; None if the output is a map."""
        if tensor.ndim != 4:
            if tensor.ndim == 3 and self._threshold is not None:
                return self._against_threshold(tensor)
            return None
        scores = np.moveaxis(tensor, self._channels, 1)
        if scores.shape[1] == 1:
            return None if self._threshold is None else self._against_threshold(scores[:, 0])
        wanted = self._labels + self._offset
        if self._labels and scores.shape[1] != wanted:
            raise PredictionError(
                f"output {name} of shape {list(tensor.shape)} has {scores.shape[1]} classes; the manifest "
                f"has {self._labels} labels" + (f" and class_offset {self._offset}" if self._offset else "")
            )
        return scores

    def _against_threshold(self, scores: NDArray[Any]) -> NDArray[Any]:
        """Returns the threshold and the scores as the scores of two classes; equal scores give class 0."""
        threshold = np.full_like(scores, self._threshold, np.result_type(scores, np.float32))
        return np.stack([threshold, scores], axis=1)

    def _numbers(self, name: str, tensor: NDArray[Any]) -> NDArray[Any]:
        """Returns class numbers as N × height × width."""
        if tensor.ndim == 4 and tensor.shape[self._channels] == 1:
            return tensor.squeeze(self._channels)
        if tensor.ndim == 3:
            return tensor
        raise PredictionError(
            f"output {name} has shape {list(tensor.shape)}; a segmentation is N × classes × height × width, "
            "or with layout HWC N × height × width × classes, or N × height × width with class numbers"
        )

    def _known(self, numbers: Any) -> NDArray[np.bool_]:
        """Returns, for each map, whether it consists only of valid integer classes."""
        limit = self._labels + self._offset if self._labels else _MOST_CLASSES
        with np.errstate(invalid="ignore"):
            right = (numbers >= 0) & (numbers < limit) & (numbers == np.floor(numbers))
        known: NDArray[np.bool_] = right.all(axis=(1, 2))
        return known


class _Axis(NamedTuple):
    """The position of an image's pixels in a model's output, along one axis.

    Attributes:
        places: float64; the pixels' centres, in pixels of the output, where 0 is the first pixel's centre.
        seen: bool; whether the pixels are in the model's input.
    """

    places: NDArray[np.float64]
    seen: NDArray[np.bool_]


def _axes(geometry: ImageGeometry, height: int, width: int) -> tuple[_Axis, _Axis]:
    """Returns the positions of the image's pixels in an output of this size: rows, then columns."""
    g = geometry
    return (
        _axis(g.height, g.scale_y, g.top, g.input_height, height),
        _axis(g.width, g.scale_x, g.left, g.input_width, width),
    )


def _axis(pixels: int, scale: float, offset: float, input_pixels: int, output_pixels: int) -> _Axis:
    inside = (np.arange(pixels) + 0.5) * scale - offset
    return _Axis(inside * output_pixels / input_pixels - 0.5, (inside >= 0) & (inside < input_pixels))


def _nearest(classes: NDArray[np.int32], geometry: ImageGeometry) -> NDArray[np.int32]:
    rows, columns = _axes(geometry, *classes.shape)
    first, second = (
        np.clip(np.floor(axis.places + 0.5).astype(np.int64), 0, size - 1)
        for axis, size in zip((rows, columns), classes.shape, strict=True)
    )
    return _where_seen(classes[np.ix_(first, second)], rows, columns)


def _interpolated(scores: NDArray[Any], geometry: ImageGeometry) -> NDArray[np.int32]:
    """Interpolates scores, C × height × width, at the image's pixels and returns the highest's class."""
    rows, columns = _axes(geometry, *scores.shape[1:])
    left, right, part = _neighbours(columns, scores.shape[2])
    upper, lower, share = _neighbours(rows, scores.shape[1])
    found = np.empty((geometry.height, geometry.width), np.int32)
    step = max(1, _BLOCK_ELEMENTS // (len(scores) * max(geometry.width, scores.shape[2])))
    for start in range(0, geometry.height, step):
        block = slice(start, start + step)
        above, below = (scores[:, place[block]].astype(np.float32, copy=False) for place in (upper, lower))
        lines = above + (below - above) * share[block, np.newaxis]
        before = lines[:, :, left]
        found[block] = (before + (lines[:, :, right] - before) * part).argmax(axis=0)
    return _where_seen(found, rows, columns)


def _neighbours(axis: _Axis, size: int) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.float32]]:
    """Returns the pixels before and after each place, and its distance from the first as a fraction."""
    places = np.clip(axis.places, 0, size - 1)
    before = np.floor(places).astype(np.int64)
    return before, np.minimum(before + 1, size - 1), (places - before).astype(np.float32)


def _where_seen(classes: NDArray[np.int32], rows: _Axis, columns: _Axis) -> NDArray[np.int32]:
    classes[~rows.seen] = UNSEEN
    classes[:, ~columns.seen] = UNSEEN
    return classes


_CHANNELS = (1, 3)


class ImageEnhancement(TaskPostprocessor):
    """Creates images, 0…1, from an output with one or three channels. Thread-safe.

    The output is N × channels × height × width, or N × height × width × channels with ``layout: HWC``, in the
    order of ``color_mode``; height and width are arbitrary. A pixel is ``value × scale + mean``, the inverse
    of an input's ``(pixel - mean) / scale``. ``image_range`` specifies which values are black and white; by
    default, they are 0 and 1 for floats, and 0 and the largest value for integers of up to 16 bits. Values
    outside the range are clipped.

    Raises:
        ManifestError: ``mean`` or ``scale`` has neither one number nor one for each channel.
    """

    def __init__(self, output: ModelOutput, feature_limit: int) -> None:
        parameters = output.parameters
        self._layer = parameters.image_layer
        self._layout = Layout.CHW if parameters.layout is None else parameters.layout
        self._mode = parameters.color_mode
        self._range = parameters.image_range
        for field in ("mean", "scale"):
            if (count := len(getattr(parameters, field))) not in _CHANNELS:
                raise ManifestError(
                    f"field output.parameters.{field}: has {count} numbers; allowed: 1, or 3 for red, green "
                    "and blue"
                )
        self._mean = np.asarray(parameters.mean, np.float32)
        self._scale = np.asarray(parameters.scale, np.float32)

    def __call__(self, tensors: Tensors, inputs: PredictedInputs) -> tuple[Images, NDArray[np.bool_]]:
        """Returns the images whose values are finite, and a mask of their rows.

        Raises:
            PredictionError: The output is not an image as the manifest describes it.
        """
        name, tensor = find_layer(tensors, self._layer)
        if tensor.ndim != 4 or 0 in tensor.shape[1:]:
            raise self._no_image(name, tensor)
        images = tensor.transpose(0, 2, 3, 1) if self._layout is Layout.CHW else tensor
        channels = images.shape[3]
        allowed = _CHANNELS if self._mode is None else (1,) if self._mode is ColorMode.GRAY else (3,)
        if channels not in allowed:
            raise self._no_image(name, tensor)
        if channels == 1 and max(len(self._mean), len(self._scale)) > 1:
            raise PredictionError(f"output {name} is grey, but the manifest has a mean or scale for colours")
        low, high = self._ends(name, tensor.dtype)
        with np.errstate(over="ignore", invalid="ignore"):
            pixels = np.asarray(images, np.float32, order="C")
            good: NDArray[np.bool_] = np.isfinite(pixels).all(axis=(1, 2, 3))
            pixels = pixels[good]
            if self._mode is ColorMode.BGR:
                pixels = pixels[..., ::-1]
            pixels = (pixels * self._scale + (self._mean - np.float32(low))) / np.float32(high - low)
        return Images(np.clip(pixels, 0, 1, dtype=np.float32)), good

    def _ends(self, name: str, dtype: np.dtype[Any]) -> tuple[float, float]:
        """Returns the values that mean black and white."""
        if self._range is not None:
            return self._range
        if dtype.kind in "bf":
            return 0.0, 1.0
        if dtype.kind == "u" and dtype.itemsize <= 2:
            return 0.0, float(np.iinfo(dtype).max)
        raise PredictionError(
            f"output {name} has element type {dtype}; say in output.parameters.image_range which values are "
            "black and white"
        )

    def _no_image(self, name: str, tensor: NDArray[Any]) -> PredictionError:
        mode = "1 or 3 channels" if self._mode is None else f"color_mode {self._mode.value}"
        return PredictionError(
            f"output {name} has shape {list(tensor.shape)}; an image with {mode} and layout "
            f"{self._layout.value} has four axes, the batch first, and as many channels"
        )
