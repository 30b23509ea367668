"""Rounds: how many batches are prepared, or sent, before the first of them is predicted."""

from __future__ import annotations

BATCHES_AHEAD = 2
"""Batches that are prepared together, at the least."""
INPUTS_AHEAD = 256
"""Inputs that are prepared together, where the batches are small enough for more than ``BATCHES_AHEAD``."""
BYTES_AHEAD = 64 * 1024 * 1024
"""Memory that their tensors may take, unless ``BATCHES_AHEAD`` of them take more."""


def round_size(tensor_bytes: int, batch_size: int) -> int:
    """Returns the number of batches that are prepared together.

    Args:
        tensor_bytes: The memory that one preprocessed input takes.
        batch_size: Inputs in a batch.
    """
    inputs = min(INPUTS_AHEAD, BYTES_AHEAD // tensor_bytes)
    return max(BATCHES_AHEAD, inputs // max(1, batch_size))
