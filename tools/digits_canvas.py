"""Canvases with handwritten digits, and their ground truth: boxes, masks, and the canvas without noise."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image
from sklearn.datasets import load_digits

Array = NDArray[Any]

SIDE = 64
DIGITS = (1, 5)
"""The minimum and maximum number of digits on a canvas."""
DIGIT_PIXELS = (14, 24)
"""The minimum and maximum number of pixels along a side of a digit."""
INK = 60
"""Pixels brighter than this belong to a digit; the brightest value is 255."""
HELD_OUT = 0.25
_ATTEMPTS = 20


@dataclass(frozen=True)
class Canvas:
    """A canvas.

    Attributes:
        pixels: uint8, 64 × 64.
        boxes: int64, digits × 4: left, top, right and bottom of the ink, in pixels.
        digits: int64, digits; 0…9.
        mask: uint8, 64 × 64: 0 for the background, otherwise the digit plus one.
    """

    pixels: Array
    boxes: Array
    digits: Array
    mask: Array


class Canvases:
    """Draws canvases with digits from one part of scikit-learn's digits.

    Args:
        part: ``training``, or ``validation`` for those that training does not see.
        seed: The seed for the choice of digits, their places and their sizes.
    """

    def __init__(self, part: str, seed: int) -> None:
        source = load_digits()
        chosen = np.zeros(len(source.target), bool)
        random = np.random.default_rng(20180501)  # as tools/train_digits_cnn.py splits them
        for label in range(10):
            members = random.permutation(np.flatnonzero(source.target == label))
            chosen[members[: round(HELD_OUT * len(members))]] = True
        if part == "training":
            chosen = ~chosen
        self._images = np.rint(source.images[chosen] * 255 / 16).astype(np.uint8)
        self._labels = source.target[chosen]
        self._random = np.random.default_rng(seed)

    def draw(self) -> Canvas:
        """Returns the next canvas; its digits do not overlap."""
        random = self._random
        pixels, mask = np.zeros((SIDE, SIDE), np.uint8), np.zeros((SIDE, SIDE), np.uint8)
        places: list[tuple[int, int, int]] = []
        boxes, digits = [], []
        for _ in range(random.integers(DIGITS[0], DIGITS[1] + 1)):
            place = self._free_place(places)
            if place is None:
                continue
            places.append(place)
            x, y, side = place
            chosen = random.integers(len(self._labels))
            glyph = Image.fromarray(self._images[chosen]).resize((side, side), Image.Resampling.BILINEAR)
            ink = np.asarray(glyph)
            pixels[y : y + side, x : x + side] = ink
            mask[y : y + side, x : x + side][ink > INK] = self._labels[chosen] + 1
            rows, columns = np.nonzero(ink > INK)
            boxes.append((x + columns.min(), y + rows.min(), x + columns.max() + 1, y + rows.max() + 1))
            digits.append(self._labels[chosen])
        return Canvas(pixels, np.array(boxes, np.int64), np.array(digits, np.int64), mask)

    def _free_place(self, taken: Sequence[tuple[int, int, int]]) -> tuple[int, int, int] | None:
        """Returns left, top and side of a square that overlaps no other; None if none was found."""
        for _ in range(_ATTEMPTS):
            side = int(self._random.integers(DIGIT_PIXELS[0], DIGIT_PIXELS[1] + 1))
            x, y = (int(self._random.integers(0, SIDE - side + 1)) for _ in range(2))
            if all(x + side <= a or a + s <= x or y + side <= b or b + s <= y for a, b, s in taken):
                return x, y, side
        return None


def noisy(pixels: Array, random: np.random.Generator, deviation: float) -> Array:
    """Returns uint8 images with clipped Gaussian noise of a standard ``deviation`` in grey levels."""
    noise = random.normal(0.0, deviation, pixels.shape)
    return np.clip(np.rint(pixels + noise), 0, 255).astype(np.uint8)
