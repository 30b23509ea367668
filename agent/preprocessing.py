"""Preprocessing: an image becomes the input tensor that the manifest describes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from agent.decoding import check_pixels, open_decoder
from agent.image_fit import MAX_PIXELS
from agent.inputs import EncodedImage, Payload, Pixels, Tensor, Url
from agent.preprocessor import Preprocessor
from manifests.errors import InputError
from manifests.inputs import ColorMode, ElementType, ImageParameters, Layout


class ImagePreprocessor(Preprocessor):
    """Turns images into input tensors.

    The order is: decode, convert to red, green and blue or to grey, resize, crop, ``(pixel - mean) / scale``
    on 0…255, ``color_mode``, layout, element type. With ``keep_aspect_ratio`` the image is resized until it
    just covers the target divided by ``crop_ratio``; without, both sides are brought to that size.
    ``crop_method`` says which part is then taken; ``none`` resizes the whole image to the target.

    Args:
        parameters: The manifest's description of the input.
        max_pixels: The largest image that is decoded or resized to.

    Raises:
        FrameworkUnavailableError: The library that the manifest's ``decoder`` names is not installed.
    """

    def __init__(self, parameters: ImageParameters, max_pixels: int = MAX_PIXELS) -> None:
        super().__init__(parameters)
        self._decoder = open_decoder(parameters, max_pixels)
        self._floats = parameters.element_type is not ElementType.UINT8
        self._chw = parameters.layout is Layout.CHW
        channels = 1 if parameters.color_mode is ColorMode.GRAY else 3
        self._mean = np.broadcast_to(np.asarray(parameters.mean, np.float32), (channels,))
        self._scale = np.broadcast_to(np.asarray(parameters.scale, np.float32), (channels,))
        # where the model's channels are among red, green and blue
        self._order = (2, 1, 0) if parameters.color_mode is ColorMode.BGR else tuple(range(channels))

    @property
    def libraries(self) -> Mapping[str, str]:
        """The versions of what decodes and resizes, which change a model's accuracy."""
        return self._decoder.versions

    def write(self, payload: Payload, out: NDArray[Any]) -> None:
        """Writes the input tensor for an image.

        Raises:
            InputError: It is no image, is too large, or is a tensor of another shape; see ``Preprocessor``.
        """
        match payload:
            case EncodedImage():
                self._normalise(self._decoder.decode(payload.content), out)
            case Pixels():
                self._normalise(self._decoder.fit(check_pixels(payload.array)), out)
            case Tensor():
                out[...] = self.check(payload.array, self.dimensions)
            case Url():
                raise InputError(f"{payload.address} has to be fetched before it is preprocessed")

    def _normalise(self, pixels: NDArray[np.uint8], out: NDArray[Any]) -> None:
        """Makes the tensor of pixels in red, green and blue, or grey; height × width × channels."""
        if not self._floats:
            ordered = pixels[:, :, self._order]
            out[...] = ordered.transpose(2, 0, 1) if self._chw else ordered
            return
        tensor = out if out.dtype == np.float32 else np.empty(self.dimensions, np.float32)
        planes = tensor if self._chw else tensor.transpose(2, 0, 1)
        # a plane at a time takes a sixth of what the whole image does: nothing is copied to be turned round
        for plane, channel in zip(planes, self._order, strict=True):
            np.subtract(pixels[:, :, channel], self._mean[channel], out=plane, dtype=np.float32)
            np.divide(plane, self._scale[channel], out=plane)
        if tensor is not out:
            with np.errstate(over="ignore"):
                out[...] = tensor
