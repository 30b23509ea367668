"""What decodes the images of a model's input: the interface of each library that can."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from agent.image_fit import MAX_PIXELS
from manifests.inputs import ImageParameters


class ImageDecoder(ABC):
    """Decodes images and fits them to one model's input. Thread-safe.

    Pixels come out as uint8, height × width × 3 in the order red, green, blue, or height × width × 1 for a
    model that takes grey. An image is not turned as its EXIF data say: torchvision does not, either.

    Args:
        parameters: The manifest's description of the input.
        max_pixels: The largest image that is decoded or resized to.
    """

    def __init__(self, parameters: ImageParameters, max_pixels: int = MAX_PIXELS) -> None:
        self._parameters = parameters
        self._max_pixels = max_pixels

    @property
    @abstractmethod
    def versions(self) -> Mapping[str, str]:
        """The library that decodes and resizes, and the one that it reads JPEG with, by name."""

    @abstractmethod
    def decode(self, content: bytes) -> NDArray[np.uint8]:
        """Returns the fitted pixels of an image file.

        Raises:
            InputError: It is no image of a format that is read, is damaged or too large.
        """

    @abstractmethod
    def fit(self, array: NDArray[np.uint8]) -> NDArray[np.uint8]:
        """Returns the fitted pixels of an image that is decoded already and has passed ``check_pixels``.

        Raises:
            InputError: It is empty, or would be resized to too many pixels.
        """
