"""The origin of a model's input, which maps the model's outputs back to the image or the text."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True, slots=True)
class ImageGeometry:
    """The way of an image into the input of a model: it is resized, and a part of it is cropped.

    Attributes:
        width: The width of the image, in pixels.
        height: The height of the image, in pixels.
        scale_x: The width after resizing, divided by ``width``.
        scale_y: The height after resizing, divided by ``height``.
        left: Where the crop begins, in pixels of the resized image; negative where it is padded.
        top: Likewise from the top.
        input_width: The width of the model's input, in pixels.
        input_height: The height of the model's input, in pixels.
    """

    width: int
    height: int
    scale_x: float
    scale_y: float
    left: float
    top: float
    input_width: int
    input_height: int

    def to_image(self, boxes: NDArray[np.float64], *, clipped: bool = True) -> NDArray[np.float64]:
        """Returns boxes of the input in pixels of the image.

        Args:
            boxes: float64, n × 4: left, top, right and bottom in pixels of the model's input.
            clipped: Whether they end at the borders of the image.
        """
        scale = np.array([self.scale_x, self.scale_y] * 2)
        offset = np.array([self.left, self.top] * 2)
        found: NDArray[np.float64] = (boxes + offset) / scale
        if clipped:
            np.clip(found, 0.0, np.array([self.width, self.height] * 2, np.float64), out=found)
        return found


@dataclass(frozen=True, slots=True, eq=False)
class TokenizedText:
    """A text as a model takes it.

    Attributes:
        text: The text that contains the answers: the second text of a pair, or the only one.
        offsets: int64, tokens × 2; where each token begins and ends in ``text``; -1 for tokens outside of it.
    """

    text: str
    offsets: NDArray[np.int64] = field(repr=False)


Origin: TypeAlias = ImageGeometry | TokenizedText
"""What is known of one input beside its tensor."""
