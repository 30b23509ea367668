"""A job: work that yields evaluations, which every door runs in the same way."""

from __future__ import annotations

from collections.abc import Callable, Generator
from dataclasses import dataclass
from enum import Enum, auto
from typing import Any, Generic, Protocol, TypeVar

from inferometer.evaluators.evaluation import Evaluation
from inferometer.evaluators.running.resources import JobCallbacks, JobResources


class Shown(Enum):
    """What shows the progress of a job."""

    BAR = auto()
    LOAD = auto()
    """A line for one run under load after the other."""
    PROBES = auto()
    """Such a line for the probes of a search, which are numbered."""


class Found(Protocol):
    """What a job yields that is no evaluation itself, such as a cell of a sweep."""

    @property
    def evaluation(self) -> Evaluation[Any] | None:
        """The evaluation; None where it failed."""
        ...


F_co = TypeVar("F_co", bound="Evaluation[Any] | Found", covariant=True)


@dataclass(frozen=True, slots=True)
class Job(Generic[F_co]):
    """Work that is asked for and can run.

    Attributes:
        run: Yields each evaluation as soon as it is complete. Closing the iterator ends the work early.
        title: What its progress is of.
        opening: What is done before the first progress; empty where fresh processes say that themselves.
        stops: What a request to stop lets finish.
        shown: What shows its progress.
        starts_at_once: Whether it can be asked to stop before it tells what it measures.
    """

    run: Callable[[JobResources, JobCallbacks[Any]], Generator[F_co, None, None]]
    title: str
    opening: str = ""
    stops: str = "stopping after this batch"
    shown: Shown = Shown.BAR
    starts_at_once: bool = False
