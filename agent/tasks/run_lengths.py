"""COCO's compressed run lengths of masks: column by column, as ``pycocotools.mask`` has them.

They are written here too, because an agent that makes masks does not require pycocotools.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

_BITS = 5
_MORE = 0x20
_FIRST = 48
_MOST_CHARACTERS = 13


def encoded(mask: NDArray[np.bool_]) -> bytes:
    """Returns the compressed run lengths of a mask, height × width."""
    pixels = np.ravel(mask, order="F")
    if not pixels.size:
        return b""
    changes = np.flatnonzero(pixels[1:] != pixels[:-1]) + 1
    ends = np.concatenate([[0], changes, [pixels.size]])
    counts = np.diff(ends)
    return compressed(np.concatenate([[0], counts]) if pixels[0] else counts)


def compressed(counts: Sequence[int] | NDArray[np.int64]) -> bytes:
    """Returns run lengths, the first of pixels outside the mask, as COCO's text.

    Source: ``rleToString`` in ``maskApi.c`` of the COCO API. From the third length on the difference to the
    length before the last one is kept, in groups of five bits, the lowest first.
    """
    lengths = np.asarray(counts, np.int64)
    values = lengths.copy()
    values[3:] -= lengths[1:-2]
    characters = np.zeros((len(values), _MOST_CHARACTERS), np.uint8)
    used = np.zeros(characters.shape, np.bool_)
    active = np.ones(len(values), np.bool_)
    for place in range(_MOST_CHARACTERS):
        bits = values & 0x1F
        values >>= _BITS
        more = np.where(bits & 0x10, values != -1, values != 0)
        characters[:, place] = (bits | np.where(more, _MORE, 0)) + _FIRST
        used[:, place] = active
        active &= more
        if not active.any():
            break
    return characters[used].tobytes()


def decoded(content: bytes, height: int, width: int) -> NDArray[np.bool_]:
    """Returns the mask, height × width, of compressed run lengths.

    Raises:
        ValueError: They are damaged, or of a mask of another size.
    """
    counts = _lengths(content, height * width)
    inside = np.arange(len(counts)) % 2 == 1
    pixels: NDArray[Any] = np.repeat(inside, counts)
    return pixels.reshape((height, width), order="F")


def _lengths(content: bytes, pixels: int) -> list[int]:
    """Returns the run lengths of COCO's text, which fill the pixels (``rleFrString`` in ``maskApi.c``)."""
    counts: list[int] = []
    value = shift = 0
    for character in content:
        bits = character - _FIRST
        if not 0 <= bits < 2 * _MORE:
            raise ValueError("run lengths have a character that none has")
        value |= (bits & 0x1F) << shift
        shift += _BITS
        if bits & _MORE:
            if shift > _BITS * _MOST_CHARACTERS:
                raise ValueError("a run length has too many characters")
            continue
        if bits & 0x10:
            value -= 1 << shift
        counts.append(value + counts[-2] if len(counts) > 2 else value)
        value = shift = 0
    if shift:
        raise ValueError("run lengths end in the middle of a number")
    if any(count < 0 for count in counts) or sum(counts) != pixels:
        raise ValueError(f"run lengths do not fill the {pixels} pixels of the mask")
    return counts


def areas(contents: Sequence[bytes], height: int, width: int) -> list[int]:
    """Returns the pixels in each mask, height × width.

    Raises:
        ValueError: Run lengths are damaged, or of a mask of another size, which pycocotools does not check.
    """
    pixels = height * width
    return [sum(itertools.islice(_lengths(content, pixels), 1, None, 2)) for content in contents]
