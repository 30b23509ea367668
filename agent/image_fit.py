"""How an image is fitted into a model's input: what it is resized to, and the part that is cropped."""

from __future__ import annotations

from dataclasses import dataclass

from manifests.errors import InputError
from manifests.inputs import CropMethod, ImageParameters

MAX_PIXELS = 100_000_000
"""The largest image that is decoded or resized to, unless less is asked for; a small file can claim to hold
a huge one."""


@dataclass(frozen=True, slots=True)
class Fit:
    """Where the model's input lies in an image, in pixels.

    Attributes:
        width: What the whole image is resized to.
        height: What the whole image is resized to.
        left: The first column of the crop, after resizing.
        top: The first row of the crop, after resizing.
    """

    width: int
    height: int
    left: int
    top: int


def fit_image(parameters: ImageParameters, width: int, height: int, max_pixels: int = MAX_PIXELS) -> Fit:
    """Returns how an image of ``width`` × ``height`` pixels becomes the model's input.

    The sizes are torchvision's: ``dimensions / crop_ratio`` is rounded to the nearest, as in its published
    weights (224 / 0.875 is 256, 299 / 0.875 is 342); the longer side is rounded down as in ``Resize``, and
    the centre's margins to even as in ``CenterCrop``.

    Raises:
        InputError: The image is empty, or would be resized to more than ``max_pixels``.
    """
    p = parameters
    if not (width and height):
        raise InputError(f"image of {width} × {height} pixels is empty")
    if p.crop_method is CropMethod.NONE:
        return Fit(p.width, p.height, 0, 0)
    new_width, new_height = round(p.width / p.crop_ratio), round(p.height / p.crop_ratio)
    if p.keep_aspect_ratio:
        if new_width * height >= new_height * width:
            new_height = new_width * height // width
        else:
            new_width = new_height * width // height
    if new_width * new_height > max_pixels:
        raise InputError(
            f"image of {width} × {height} pixels would be resized to {new_width} × {new_height}; "
            f"at most {max_pixels} are held"
        )
    if p.crop_method is CropMethod.TOPLEFT:
        return Fit(new_width, new_height, 0, 0)
    return Fit(new_width, new_height, round((new_width - p.width) / 2), round((new_height - p.height) / 2))
