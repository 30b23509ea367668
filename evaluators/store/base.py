"""What a store of evaluations does, whatever database it keeps them in."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from evaluators.evaluation import Evaluation


@dataclass(frozen=True, slots=True)
class EvaluationFilter:
    """Which evaluations are asked for; None means any. Names compare without case.

    Attributes:
        limit: The number of evaluations at most, the newest first; None means all.
        include_interrupted: Whether interrupted evaluations are wanted too.
    """

    model_name: str | None = None
    model_version: str | None = None
    framework_name: str | None = None
    framework_version: str | None = None
    architecture: str | None = None
    hostname: str | None = None
    batch_size: int | None = None
    limit: int | None = None
    include_interrupted: bool = False


class EvaluationStore(Protocol):
    """Keeps evaluations."""

    def save(self, evaluation: Evaluation) -> None:
        """Keeps an evaluation; when it returns the whole is kept, before that nobody finds any of it.

        Raises:
            StoreError: It could not be kept.
        """
        ...

    def find(self, wanted: EvaluationFilter) -> Sequence[Evaluation]:
        """Returns the evaluations that are ``wanted``, the newest first, without their predictions.

        Raises:
            StoreError: The database cannot be reached, or holds what cannot be read.
        """
        ...

    def close(self) -> None:
        """Closes the connection; calling it again does nothing."""
        ...
