"""The alignment of arrays in memory."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

SMALL_BYTES = 16 * 1024
"""Below this a copy by ``tobytes`` is quicker than NumPy's, which lets other threads run meanwhile: to get
the interpreter back takes longer than to copy so little."""


def aligned(array: NDArray[Any]) -> NDArray[Any]:
    """Returns an array in aligned memory, which some frameworks require."""
    if array.flags.aligned:
        return array
    if array.nbytes < SMALL_BYTES:
        return np.frombuffer(array.tobytes(), array.dtype).reshape(array.shape)
    return array.copy()
