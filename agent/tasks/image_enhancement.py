"""Image enhancement: an image for each image, such as a denoised or a larger one."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from inferometer.agent.preprocessing.inputs import Tensors
from inferometer.agent.tasks.layers import find_layer
from inferometer.agent.tasks.postprocessing import PredictedInputs, TaskPostprocessor
from inferometer.agent.tasks.predictions import Images
from inferometer.manifests.errors import ManifestError, PredictionError
from inferometer.manifests.inputs import ColorMode, Layout
from inferometer.manifests.schema import ModelOutput

_CHANNELS = (1, 3)


class ImageEnhancement(TaskPostprocessor):
    """Makes images, 0…1, of an output with one or three channels. Thread-safe.

    The output is N × channels × height × width, or N × height × width × channels with ``layout: HWC``, in the
    order of ``color_mode``; its height and width may be any. A pixel is ``value × scale + mean``, the inverse
    of an input's ``(pixel - mean) / scale``. ``image_range`` says which of these are black and white, by
    default 0 and 1 for floats, and 0 and the largest number for whole numbers up to 16 bits. What is beyond
    is clipped.

    Raises:
        ManifestError: ``mean`` or ``scale`` do not have one number, or one for each channel.
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
        """Returns the images whose values are finite, and the mask of these rows.

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
            raise PredictionError(f"output {name} is grey, but the manifest has a mean or scale of colours")
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
        """Returns the values of black and white."""
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
