"""The words of the commands that measure again, as far as kinds share them."""

from __future__ import annotations

from collections.abc import Iterator

from inferometer.agent.inference.results import LOCAL_AGENT
from inferometer.evaluators.evaluation import Evaluation
from inferometer.evaluators.kinds.kind import SYNTHETIC, Again, are_short
from inferometer.evaluators.kinds.registry import kind_of


def again(evaluation: Evaluation) -> Again:
    """Returns the command that measures an evaluation again, with all that it does not repeat or requires.

    It names the model's version, what ran it and every option that differs from its default.
    """
    found = kind_of(evaluation).again(evaluation)
    notes = tuple(_notes(evaluation))
    return Again(found.words, (*notes, *found.notes) if found.words else (*found.notes, *notes))


def _notes(evaluation: Evaluation) -> Iterator[str]:
    system, dataset = evaluation.system, evaluation.dataset
    if evaluation.process is not None:
        yield "It is one process of a group of --repeat; the command measures one more."
    if system.agent != LOCAL_AGENT:
        yield "It ran on a served agent, which may have other models and another load now."
    if dataset.version is None and dataset.category != SYNTHETIC:
        yield "The dataset has no manifest: its path is the one on the machine that ran the command."
    if dataset.sample_ids is not None and not are_short(dataset.sample_ids):
        yield (
            f"FILE must have the ids of the {dataset.size} samples, one a line, which "
            f"agent info evaluation show {evaluation.id} -f json gives."
        )
