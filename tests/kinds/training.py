"""Trainings."""

from __future__ import annotations

from collections.abc import Sequence

from inferometer.evaluators.evaluation import Evaluation
from tests.training_evaluations import make_training


def reported(three: Sequence[Evaluation]) -> dict[str, list[Evaluation]]:
    """What each report of the kind has something to draw of."""
    system = three[0].system
    alone, halved = make_training(system), make_training(system, batch_size=16, whole_ms=18.0)
    together = make_training(system, ranks=2, whole_ms=11.0, communicate_ms=1.0)
    weak: list[Evaluation] = [alone, together]
    found = dict.fromkeys(("training", "training_steps", "weak_scaling"), weak)
    return found | {"strong_scaling": [halved, together]}
