"""The header of an image file: what it is and how large, before anything is decoded. Pillow reads it."""

from __future__ import annotations

import io
import struct
import zlib

from PIL import Image, UnidentifiedImageError

from agent.image_fit import MAX_PIXELS
from manifests.errors import InputError

# What Pillow's decoders raise on damaged files, and its conversions on modes that they do not know.
PILLOW_ERRORS = (
    ArithmeticError,
    AttributeError,
    EOFError,
    LookupError,
    OSError,
    RuntimeError,
    SyntaxError,
    TypeError,
    ValueError,
    struct.error,
    zlib.error,
)


def open_image(content: bytes, formats: tuple[str, ...], max_pixels: int = MAX_PIXELS) -> Image.Image:
    """Returns an image of which only the header has been read.

    Args:
        content: The file's bytes.
        formats: Pillow's names of the formats that will do.
        max_pixels: The largest image that will do.

    Raises:
        InputError: It is of no such format, is damaged, or has more than ``max_pixels``.
    """
    try:
        image = Image.open(io.BytesIO(content), formats=formats)
    except (Image.DecompressionBombError, Image.DecompressionBombWarning) as error:
        raise InputError(f"image is too large: {error}") from error
    except UnidentifiedImageError as error:
        raise undecodable(content, f"it is none of the formats {', '.join(formats)}") from error
    except PILLOW_ERRORS as error:
        raise undecodable(content, str(error)) from error
    if image.width * image.height > max_pixels:
        raise InputError(f"image of {image.width} × {image.height} pixels; at most {max_pixels} are decoded")
    return image


def undecodable(content: bytes, reason: str) -> InputError:
    """Returns the error of a file that is no whole image."""
    return InputError(f"image of {len(content)} bytes cannot be decoded: {' '.join(reason.split())}")
