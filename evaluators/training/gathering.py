"""The exchange of losses and failures between the ranks of a training run."""

from __future__ import annotations

import json
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from inferometer.agent.inference.results import InputFailure, Stage
from inferometer.agent.training.trainer import Trainer

_MOST_FAILURES = 10_000
"""The maximum number of failures that a rank sends to the others."""


def gathered_losses(trainer: Trainer, losses: NDArray[np.float64]) -> NDArray[np.float64]:
    """Returns float64, (ranks, steps): the losses of every rank, bit for bit."""
    gathered: NDArray[np.float64] = np.ascontiguousarray(trainer.gather(losses.view(np.int64))).view(
        np.float64
    )
    return gathered


def gathered_failures(trainer: Trainer, failures: Sequence[InputFailure]) -> tuple[InputFailure, ...]:
    """Returns the failures of every rank, those of rank 0 first, and each input once."""
    if trainer.options.rank.count == 1:
        return tuple(failures)
    told = [(each.input_id, each.stage.value, each.message) for each in failures[:_MOST_FAILURES]]
    mine = np.frombuffer(json.dumps(told).encode(), np.uint8).astype(np.int64)
    longest = int(trainer.gather(np.array([len(mine)], np.int64)).max())
    padded = np.full(longest, ord(" "), np.int64)
    padded[: len(mine)] = mine
    found: dict[str, InputFailure] = {}
    for row in trainer.gather(padded):
        for input_id, stage, message in json.loads(row.astype(np.uint8).tobytes()):
            found.setdefault(input_id, InputFailure(input_id, Stage(stage), message))
    return tuple(found.values())
