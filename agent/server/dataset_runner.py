"""What the ``Dataset`` method needs of whoever starts the server: something that evaluates.

An agent knows of no dataset. The program that puts the parts together gives the server a ``DatasetRunner``.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from agent.session import Session


@dataclass(frozen=True, slots=True)
class DatasetOrder:
    """What a client asks to be evaluated.

    Attributes:
        dataset_name: None means the one that the model's manifest names.
        dataset_category: None means any.
        batch_size: Inputs in one batch, at least 1.
        partition_list_size: Inputs in one part of the dataset.
        num_file_parts: Parts to evaluate; -1 means all.
        warmup_num_file_parts: Parts that are run first, without being measured.
        feature_limit: The number of best classes kept for each input; 0 means all.
        fail_on_error: Whether the first failed input stops the evaluation.
    """

    dataset_name: str | None
    dataset_category: str | None
    batch_size: int
    partition_list_size: int
    num_file_parts: int
    warmup_num_file_parts: int
    feature_limit: int
    fail_on_error: bool


class DatasetRunner(Protocol):
    """Evaluates an open model over a dataset. Several calls may run at once, each with its own session."""

    def __call__(
        self,
        session: Session,
        order: DatasetOrder,
        on_progress: Callable[[int, int], None],
        stop_requested: Callable[[], bool],
    ) -> str:
        """Runs to the end, or until it is asked to stop.

        Args:
            session: The model; the caller closes it.
            order: What to evaluate.
            on_progress: To be told, after every batch, how many inputs are done, of how many.
            stop_requested: To be asked after every batch; once it says yes, nobody wants the answer any more.

        Returns:
            The evaluation as JSON, as the store keeps it.

        Raises:
            InferscopeError: The evaluation cannot be made.
        """
        ...
