"""The base class of the evaluations that the library returns."""

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
    """One evaluation; in a notebook it displays as a table with its picture.

    Attributes:
        evaluation: The complete evaluation, with the raw times and the system.
    """

    _pictured: ClassVar[type[Report[Any]]]
    """The report whose picture shows it."""

    def __init__(self, evaluation: Evaluation[M]) -> None:
        self.evaluation = evaluation

    @property
    def id(self) -> str:
        """The id, for example for ``agent info evaluation show``."""
        return self.evaluation.id

    @property
    def complete(self) -> bool:
        """Whether it ran to the end without every input failing; Ctrl-C makes it incomplete."""
        return self.evaluation.status is Status.COMPLETE

    @property
    def conditions(self) -> Conditions | None:
        """The disturbances during the measurement, and the verdict on them."""
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
        """Returns the summary as names and values; a value without a name continues the previous one."""
