"""The job: work that yields evaluations, which every front end runs in the same way."""

from __future__ import annotations

from collections.abc import Callable, Generator
from dataclasses import dataclass
from enum import Enum, auto
from typing import Any, Generic, Protocol, TypeVar

from inferometer.evaluators.evaluation import Evaluation
from inferometer.evaluators.running.resources import JobCallbacks, JobResources


class Shown(Enum):
    """The way in which a job shows its progress."""

    BAR = auto()
    LOAD = auto()
    """A line for one run under load after the other."""
    PROBES = auto()
    """The same for the probes of a search, which are numbered."""


class Found(Protocol):
    """A result of a job that is not itself an evaluation, such as a cell of a sweep."""

    @property
    def evaluation(self) -> Evaluation[Any] | None:
        """The evaluation; None if it failed."""
        ...


F_co = TypeVar("F_co", bound="Evaluation[Any] | Found", covariant=True)


@dataclass(frozen=True, slots=True)
class Job(Generic[F_co]):
    """Requested work that is ready to run.

    Attributes:
        run: Yields each evaluation as soon as it is complete. Closing the iterator ends the work early.
        title: The title of its progress.
        opening: The activity before the first progress; empty if fresh processes report it themselves.
        stops: What still finishes after a stop request.
        shown: How it shows its progress.
        starts_at_once: Whether it accepts a stop request before it reports what it measures.
    """

    run: Callable[[JobResources, JobCallbacks[Any]], Generator[F_co, None, None]]
    title: str
    opening: str = ""
    stops: str = "stopping after this batch"
    shown: Shown = Shown.BAR
    starts_at_once: bool = False
