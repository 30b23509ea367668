"""What a report is: columns, and rows made from evaluations by a pure function."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, TypeAlias

if TYPE_CHECKING:  # listings have columns and rows, and no evaluations
    from evaluators.evaluation import Evaluation

Value: TypeAlias = str | int | float | bool | None
Row: TypeAlias = Mapping[str, Value]
"""A value for each of the report's columns, by the column's key."""


@dataclass(frozen=True, slots=True)
class Column:
    """A column of a report.

    Attributes:
        key: Its stable name in json and csv, with the unit in it.
        header: Its heading in a table.
        decimals: Digits after the point in a table, for floats; json and csv hold the full value.
    """

    key: str
    header: str
    decimals: int = 3


class Report(ABC):
    """One kind of report."""

    name: ClassVar[str]
    summary: ClassVar[str]
    columns: ClassVar[tuple[Column, ...]]
    kind: ClassVar[str] = "dataset"
    """Of which evaluations it is; see ``EvaluationFilter.kind``."""
    undisturbed: ClassVar[bool] = False
    """Whether its figures mean nothing of an evaluation that ran under the framework's profiler."""

    @abstractmethod
    def rows(self, evaluations: Sequence[Evaluation]) -> Iterator[Row]:
        """Yields the report's rows, in the order of the ``evaluations``."""
