"""The interface of a report: columns, and rows made from evaluations by a pure function."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import timezone
from typing import TYPE_CHECKING, ClassVar, Generic, TypeAlias, cast

from typing_extensions import TypeVar

if TYPE_CHECKING:  # listings have columns and rows, and no evaluations
    from inferometer.evaluators.evaluation import Evaluation
    from inferometer.evaluators.kinds.measurement import Measurement

M = TypeVar("M", bound="Measurement", default="Measurement")
Value: TypeAlias = str | int | float | bool | None
Row: TypeAlias = Mapping[str, Value]
"""A value for each of the report's columns, by the column's key."""
_NS_PER_MS = 1_000_000


@dataclass(frozen=True, slots=True)
class Column:
    """A column of a report.

    Attributes:
        key: The stable name in json and csv, which includes the unit.
        header: The heading in a table.
        decimals: Digits after the decimal point in a table; json and csv keep the full value.
        detail: How much less it tells than those with 0: a terminal that is too narrow shows columns with a
            higher number after those with a lower one, or not.
        is_id: Whether its values are ids, of which such a terminal shows the beginning.
        is_time: Whether its values are times in ISO 8601, which such a terminal shows to the minute.
        stays: Whether it stays in the table there although it is the same in every row.
        least: The least width of a text there.
        wraps: Whether a text without room goes on in further lines there; otherwise its end is cut off.
    """

    key: str
    header: str
    decimals: int = 3
    detail: int = 0
    is_id: bool = False
    is_time: bool = False
    stays: bool = False
    least: int = 20
    wraps: bool = False


@dataclass(frozen=True, slots=True)
class Table:
    """Rows with columns of their own.

    Attributes:
        title: The heading above the table, if there are several tables.
        columns: The columns.
        rows: The rows, once.
    """

    title: str
    columns: tuple[Column, ...]
    rows: Iterator[Row]


class Report(ABC, Generic[M]):
    """One kind of report, on evaluations of measurement ``M``."""

    name: ClassVar[str]
    summary: ClassVar[str]
    columns: ClassVar[tuple[Column, ...]]
    takes: ClassVar[tuple[type[Measurement], ...]] = ()
    """The measurements that it reports on, all if empty; other evaluations are not passed to it."""
    undisturbed: ClassVar[bool] = False
    """Whether the report excludes evaluations that ran under the framework's profiler."""
    has_tables: ClassVar[bool] = False
    """Whether ``tables`` differs from the columns and rows of files."""

    def taken(self, evaluations: Iterable[Evaluation]) -> list[Evaluation[M]]:
        """Returns the ``evaluations`` of a kind that the report takes, in their order."""
        kinds = [taken.kind for taken in self.takes]
        taken = (each for each in evaluations if not kinds or each.measurement.kind in kinds)
        return [cast("Evaluation[M]", each) for each in taken]

    @abstractmethod
    def rows(self, evaluations: Sequence[Evaluation[M]]) -> Iterator[Row]:
        """Yields the report's rows, in the order of the ``evaluations``."""

    def tables(self, evaluations: Sequence[Evaluation[M]]) -> Sequence[Table]:
        """Returns the report as tables for people, which may have other columns than files."""
        return (Table(self.name, self.columns, self.rows(evaluations)),)

    def on_a_page(self) -> Report[M]:
        """Returns the report for Markdown, which may have other columns and rows."""
        return self


EVALUATION_COLUMNS = (
    Column("id", "id", is_id=True),
    Column("created_at", "created at", detail=1, is_time=True),
    Column("model_name", "model"),
    Column("model_version", "model version", detail=2),
    Column("framework_name", "framework"),
    Column("framework_version", "framework version", detail=2),
    Column("machine_architecture", "architecture", detail=2),
    Column("using_gpu", "GPU", detail=2),
    Column("batch_size", "batch size"),
    Column("hostname", "host", detail=2),
    Column("weights", "weights", detail=2),
    Column("threads", "threads", detail=2),
    Column("precision", "precision", detail=2),
)
STATUS_COLUMN = Column("status", "status", detail=2)
CONDITIONS_COLUMN = Column("conditions", "conditions", least=10)
_NAMES = ("id", "model_name", "framework_name", "batch_size")
NAME_COLUMNS = tuple(column for column in EVALUATION_COLUMNS if column.key in _NAMES)
"""The few of ``EVALUATION_COLUMNS`` that reports with many rows for an evaluation have."""
STABILITY_COLUMN = Column("stability", "stability")
"""The verdict on the conditions in one word, for those reports."""
VERDICT_COLUMN = Column("verdict", "verdict")
"""``INVALID``, or the verdict on the conditions; a table has room for it, and not for the reason."""
INVALID_COLUMN = Column("invalid", "INVALID", detail=3)
"""The reason."""

SCORE_COLUMNS = (
    Column("score_name", "score name"),
    Column("score", "score", decimals=4),
)
"""The most important score of a task other than classification, which has columns of its own."""


def describe(evaluation: Evaluation) -> Row:
    """Returns the values of ``EVALUATION_COLUMNS``, ``STATUS_COLUMN`` and ``CONDITIONS_COLUMN``.

    ``created_at`` is ISO 8601 in UTC with milliseconds; ``framework_version`` is the installed version,
    not the manifest's constraint; ``threads`` is None if unknown, and ``precision`` for a model in a file,
    which has its own.
    """
    system = evaluation.system
    return {
        "id": evaluation.id,
        "created_at": evaluation.created_at.astimezone(timezone.utc).isoformat(timespec="milliseconds"),
        "model_name": system.manifest.name,
        "model_version": system.manifest.version,
        "framework_name": system.manifest.framework.name,
        "framework_version": system.framework_version,
        "machine_architecture": system.environment.architecture,
        "using_gpu": system.device.is_gpu,
        "batch_size": evaluation.measurement.batch_size,
        "hostname": system.environment.hostname,
        "weights": system.weights.value,
        "threads": system.threads,
        "precision": system.precision.value if system.precision else None,
        "status": evaluation.status.value,
        "conditions": None if evaluation.conditions is None else str(evaluation.conditions),
    }


def describe_names(evaluation: Evaluation) -> Row:
    """Returns the values of ``NAME_COLUMNS`` and ``STABILITY_COLUMN``."""
    described, conditions = describe(evaluation), evaluation.conditions
    stability = None if conditions is None else conditions.stability.value
    return {**{key: described[key] for key in _NAMES}, "stability": stability}


def describe_verdict(evaluation: Evaluation, invalid: str) -> Row:
    """Returns the values of ``VERDICT_COLUMN`` and ``INVALID_COLUMN``; ``invalid`` is the reason or empty."""
    stability = describe_names(evaluation)["stability"]
    return {"verdict": "INVALID" if invalid else stability, "invalid": invalid or None}


def in_ms(duration_ns: float | None) -> float | None:
    """Returns a duration in milliseconds; None for an unknown one."""
    return None if duration_ns is None else duration_ns / _NS_PER_MS
