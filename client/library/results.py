"""One evaluation as the library returns it: what all kinds have in common."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any, ClassVar, Generic, TypeVar

from inferometer.client.library import html
from inferometer.evaluators.conditions.conditions import Conditions
from inferometer.evaluators.evaluation import Evaluation, Status
from inferometer.evaluators.kinds.measurement import Measurement
from inferometer.evaluators.kinds.summary import name_width
from inferometer.evaluators.reports.base import Report
from inferometer.manifests.errors import printable

M = TypeVar("M", bound=Measurement)


class Result(ABC, Generic[M]):
    """One evaluation; in a notebook it shows as a table with its picture.

    Attributes:
        evaluation: All of it, with the raw times and what it ran on.
    """

    _pictured: ClassVar[type[Report[Any]]]
    """The report whose picture shows it."""

    def __init__(self, evaluation: Evaluation[M]) -> None:
        self.evaluation = evaluation

    @property
    def id(self) -> str:
        """The id, as ``agent info evaluation show`` takes it."""
        return self.evaluation.id

    @property
    def complete(self) -> bool:
        """Whether it ran to its end, and not every input failed; Ctrl-C ends it with what was measured."""
        return self.evaluation.status is Status.COMPLETE

    @property
    def conditions(self) -> Conditions | None:
        """What disturbed the measurement, with the verdict."""
        return self.evaluation.conditions

    def __repr__(self) -> str:
        rows = self._rows()
        width = name_width(rows)
        return "\n".join(printable(f"{name:<{width}}{value}") for name, value in rows)

    def _repr_html_(self) -> str:
        return html.with_picture(html.figures(self._rows()), self._pictured(), [self.evaluation])

    def _rows(self) -> Sequence[tuple[str, str]]:
        system = self.evaluation.system
        manifest = system.manifest
        on = f"{manifest.framework.name} {system.framework_version} ({system.device}, {system.agent})"
        return (("model", f"{manifest.name} {manifest.version} on {on}"), *self._figures())

    @abstractmethod
    def _figures(self) -> Sequence[tuple[str, str]]:
        """The summary of the command line, by name; a figure without one belongs to the one above."""
