"""The conversion of a sample's data to another format."""

from __future__ import annotations

import hashlib
import io
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from inferometer.agent.preprocessing.image_decoder import PILLOW_ERRORS, open_image, undecodable
from inferometer.agent.preprocessing.inputs import EncodedImage, Payload, Pixels, Tensor, Text
from inferometer.agent.preprocessing.pillow_decoder import FORMATS, in_mode
from inferometer.manifests.errors import ConfigurationError, InputError

_GREY_MODES = frozenset({"1", "L", "LA", "I", "F"})
_DEFAULT_QUALITY = 95
_BEGINNINGS = {
    b"\xff\xd8\xff": ".jpg",
    b"\x89PNG\r\n\x1a\n": ".png",
    b"GIF8": ".gif",
    b"BM": ".bmp",
    b"II*\0": ".tif",
    b"MM\0*": ".tif",
    b"\0\0\0\x0cjP": ".jp2",
    b"\xff\x4f\xff\x51": ".j2k",
}
_PORTABLE = {b"P1": ".pnm", b"P2": ".pnm", b"P3": ".pnm", b"P4": ".pnm", b"P5": ".pgm", b"P6": ".ppm"}
DIGEST_BITS = 256


@dataclass(frozen=True, slots=True)
class Encoding:
    """How images are written.

    Attributes:
        resize: The length of the shorter side in pixels; None leaves the size.
        quality: The quality of JPEG, 1 to 100, in which all images are then written. None keeps the bytes of
            encoded images that are not resized, and else writes JPEG where it was JPEG, and PNG.
        raw: Whether pixels are written, where the format has a choice.

    Raises:
        ConfigurationError: A number is out of range.
    """

    resize: int | None = None
    quality: int | None = None
    raw: bool = False

    def __post_init__(self) -> None:
        for name, value, most in (("resize", self.resize, 16384), ("quality", self.quality, 100)):
            if value is not None and not 1 <= value <= most:
                raise ConfigurationError(f"{name} is {value}; allowed: 1 to {most}")
        if self.raw and self.quality is not None:
            raise ConfigurationError("raw pixels have no quality; leave out one of the two")

    def encoded(self, payload: Payload) -> EncodedImage:
        """Returns an image file of an image; its bytes are kept where neither size nor quality is asked for.

        Raises:
            InputError: It is not an image, or cannot be decoded.
        """
        if isinstance(payload, EncodedImage):
            suffix = suffix_of(payload.content)
            if self.resize is None and self.quality is None:
                return payload
        else:
            suffix = ".png"
        image = self._resized(_image(payload))
        if self.quality is None and suffix != ".jpg":
            return EncodedImage(_saved(image, "PNG"))
        return EncodedImage(_saved(image, "JPEG", quality=self.quality or _DEFAULT_QUALITY))

    def pixels(
        self, payload: Payload, *, square: bool = False, grey: bool | None = None
    ) -> NDArray[np.uint8]:
        """Returns the pixels of an image: height × width if it is grey, else height × width × 3.

        Args:
            payload: The image.
            square: Whether a resized one is also cropped to a square at its centre.
            grey: Whether to convert to grey or colour; None keeps the colours.

        Raises:
            InputError: It is not an image, or cannot be decoded.
        """
        image = self._resized(_image(payload), square=square)
        if grey is not None:
            image = in_mode(image, "L" if grey else "RGB")
        return np.asarray(image)

    def _resized(self, image: Image.Image, *, square: bool = False) -> Image.Image:
        if self.resize is None:
            return image
        short, long = sorted(image.size)
        if not short:
            raise InputError("image is empty")
        if short != self.resize:
            other = self.resize * long // short
            size = (self.resize, other) if image.width <= image.height else (other, self.resize)
            image = image.resize(size, Image.Resampling.BILINEAR)
        if square and image.width != image.height:
            left, top = (image.width - self.resize) // 2, (image.height - self.resize) // 2
            image = image.crop((left, top, left + self.resize, top + self.resize))
        return image


def suffix_of(content: bytes) -> str:
    """Returns the suffix of an image file by its first bytes.

    Raises:
        InputError: The format is not one that can be decoded.
    """
    for beginning, suffix in _BEGINNINGS.items():
        if content.startswith(beginning):
            return suffix
    if content[:2] in _PORTABLE and content[2:3].isspace():
        return _PORTABLE[content[:2]]
    if content[:4] == b"RIFF" and content[8:12] == b"WEBP":
        return ".webp"
    raise undecodable(content, f"it is none of the formats {', '.join(FORMATS)}")


def is_grey(payload: Payload) -> bool:
    """Returns whether an image is grey, by its header.

    Raises:
        InputError: It is not an image, or its header is damaged.
    """
    if isinstance(payload, EncodedImage):
        mode = open_image(payload.content, FORMATS).mode
        return mode in _GREY_MODES or mode.startswith("I;16")
    return isinstance(payload, Pixels) and payload.array.ndim == 2


def _image(payload: Payload) -> Image.Image:
    """Returns the image in grey or in red, green and blue."""
    if isinstance(payload, Pixels):
        return Image.fromarray(payload.array)
    if not isinstance(payload, EncodedImage):
        raise InputError(f"is {type(payload).__name__.lower()} data, and no image")
    image = open_image(payload.content, FORMATS)
    try:
        image.load()
    except (Image.DecompressionBombError, Image.DecompressionBombWarning, *PILLOW_ERRORS) as error:
        raise undecodable(payload.content, str(error)) from error
    return in_mode(image, "L" if is_grey(payload) else "RGB")


def _saved(image: Image.Image, kind: str, **options: Any) -> bytes:
    buffer = io.BytesIO()
    image.save(buffer, kind, **options)
    return buffer.getvalue()


def digest_of(index: int, label: str | None, payload: Payload) -> int:
    """Returns a number of ``DIGEST_BITS`` bits from the place, the label and the data of a sample.

    The sum over all samples, modulo 2 ** ``DIGEST_BITS``, is the checksum of a dataset, which can be
    continued after an interruption.
    """
    if isinstance(payload, EncodedImage):
        head, content = "encoded", payload.content
    elif isinstance(payload, Pixels | Tensor):
        head, content = f"{payload.array.dtype} {payload.array.shape}", payload.array.tobytes()
    elif isinstance(payload, Text):
        head, content = "text", repr(payload).encode("utf-8")
    else:
        raise InputError("is a URL, which has to be fetched before")
    digest = hashlib.sha256(f"{index}\n{label!r}\n{head}\n".encode())
    digest.update(content)
    return int.from_bytes(digest.digest(), "big")


def added(checksum: int, digest: int) -> int:
    """Returns a checksum with the digest of one more sample."""
    return (checksum + digest) % (1 << DIGEST_BITS)
