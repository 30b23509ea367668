"""What a store of evaluations does, whatever database it keeps them in."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

from agent.predictor import Weights
from agent.tracing.span import SpanChunk
from evaluators.evaluation import Evaluation, InputPrediction
from manifests.errors import StoreError

DATASET = "dataset"
"""The kind of an evaluation that is not under load."""


@dataclass(frozen=True, slots=True)
class EvaluationFilter:
    """Which evaluations are asked for; None means any. Names and versions compare whole and without case.

    Attributes:
        framework_version: Without a local part such as ``+cpu`` it means the versions with any such part.
        weights: Where the weights came from.
        limit: The number of evaluations at most, the newest first; None means all.
        include_interrupted: Whether interrupted evaluations are wanted too.
        kind: ``dataset`` for evaluations batch by batch, or the kind of a load; None means any.
        evaluation_id: The one evaluation with this id, or those of the group with this id.
    """

    model_name: str | None = None
    model_version: str | None = None
    framework_name: str | None = None
    framework_version: str | None = None
    architecture: str | None = None
    hostname: str | None = None
    batch_size: int | None = None
    weights: Weights | None = None
    limit: int | None = None
    include_interrupted: bool = False
    evaluation_id: str | None = None
    kind: str | None = None


class EvaluationStore(Protocol):
    """Keeps evaluations."""

    @property
    def location(self) -> str:
        """Where they are kept, for a person to read: a file's path, or an address without its password."""
        ...

    def save(self, evaluation: Evaluation) -> bool:
        """Keeps an evaluation; when it returns the whole is kept, before that nobody finds any of it.

        Saving an evaluation that is kept already changes nothing. Its time is kept to the millisecond.

        Returns:
            Whether it was not kept before.

        Raises:
            StoreError: It could not be kept, or another evaluation has the same id.
        """
        ...

    def find(
        self, wanted: EvaluationFilter, on_unreadable: Callable[[StoreError], None] | None = None
    ) -> Sequence[Evaluation]:
        """Returns the evaluations that are ``wanted``, the newest first, without their predictions.

        One that is damaged, or that a newer version of the program wrote, is told to ``on_unreadable`` and
        left out; without that it is raised.

        Raises:
            StoreError: The database cannot be reached, or holds what cannot be read.
            ConfigurationError: The limit is negative.
        """
        ...

    def ids(self, prefix: str) -> Sequence[str]:
        """Returns the ids of evaluations, and of groups of them, that begin with ``prefix``, sorted.

        Raises:
            StoreError: The database cannot be reached.
        """
        ...

    def predictions(self, evaluation_id: str) -> Sequence[InputPrediction]:
        """Returns the predictions that were kept of an evaluation, in order; empty when none were.

        Raises:
            StoreError: The database cannot be reached, or does not hold the evaluation and its predictions.
        """
        ...

    def spans(self, evaluation_id: str) -> Iterator[SpanChunk]:
        """Yields the spans that were kept of an evaluation's trace, piece by piece; none when it has none.

        Raises:
            StoreError: The database cannot be reached, or does not hold the evaluation and all its spans.
        """
        ...

    def close(self) -> None:
        """Closes the connection; calling it again does nothing."""
        ...
