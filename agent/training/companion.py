"""Processes that ranks require beside them, such as the servers of MXNet's kvstore."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from inferometer.agent.training.trainer import Rank


@dataclass(frozen=True, slots=True)
class Companion:
    """A process that runs beside ranks.

    Attributes:
        name: The name of the process in messages.
        work: Runs until the ranks tell it to end; pickle can pass it on to the process.
    """

    name: str
    work: Callable[[], None]


CompanionsOf: TypeAlias = Callable[[Rank], Sequence[Companion]]
"""Returns what runs beside a rank, on its host."""
