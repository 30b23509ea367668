"""One of several processes that train models of the trainers' suite with PyTorch, or another framework.

Args: a JSON object with the fields of ``Rank``, ``directory``, ``out`` and ``runs``, which follow one
another: each with an ``address``, the ``name`` of the model, ``sizes`` (the samples of each rank in a step),
``parts`` (the steps whose parts are timed) and ``steps`` (0 for no end), and perhaps ``framework`` and
``communication``. The results of run N are in
``out``-N.npz. Each step is a line on stdout, and an error too.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from inferometer.agent.training.trainer import OptimizerOptions, Rank, TrainingBatch
from inferometer.manifests.errors import InferometerError
from tests.contract.trainer_fixtures import batch_of, parameters_of, trainer_of


def train(
    directory: Path,
    rank: Rank,
    *,
    name: str,
    sizes: list[int],
    steps: int = 10,
    parts: tuple[int, ...] = (),
    said: bool = False,
    framework: str = "PyTorch",
    communication: str = "gloo",
) -> dict[str, NDArray]:
    """Trains on this rank's part of batches that all ranks share, and returns what there is to compare."""
    start = sum(sizes[: rank.number])
    mine = slice(start, start + sizes[rank.number])
    losses, communicated = [], []
    with trainer_of(
        framework,
        name,
        directory,
        seed=5 + rank.number,  # the parameters of rank 0 count
        rank=rank,
        communication=communication,
        optimizer=OptimizerOptions(learning_rate=0.1),
    ) as trainer:
        step = 0
        while step < steps or not steps:
            whole = batch_of(name, sum(sizes), seed=step)
            batch = TrainingBatch(whole.inputs[mine], whole.targets[mine])
            result = trainer.step(trainer.place(batch), parts=step in parts)
            losses.append(result.loss)
            if result.parts is not None:
                communicated.append(result.parts.communicate_ns)
            step += 1
            if said:
                say(f"step {step}")
        gathered = trainer.gather(np.array([rank.number, len(batch), 2**62 + rank.number]))
        parameters = parameters_of(trainer)
    return {
        "losses": np.array(losses),
        "communicated": np.array(communicated),
        "gathered": gathered,
        **parameters,
    }


def say(line: str) -> None:
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


def main() -> int:
    told = json.loads(sys.argv[1])
    try:
        for number, run in enumerate(told["runs"]):
            rank = Rank(**told["rank"], address=run.pop("address"))
            found = train(Path(told["directory"]), rank, said=True, **run)
            np.savez(f"{told['out']}-{number}.npz", **found)
    except InferometerError as error:
        say(f"{type(error).__name__}: {error}")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
