"""The interface of a report: columns, and rows made from evaluations by a pure function.

Columns of times are in milliseconds, and include the ends of their 95 % intervals.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import timezone
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, ClassVar, Generic, TypeAlias, cast

from typing_extensions import TypeVar

if TYPE_CHECKING:
    from inferometer.evaluators.evaluation import Evaluation, Measurement


M = TypeVar("M", bound="Measurement", default="Measurement")
Value: TypeAlias = str | int | float | bool | None
Row: TypeAlias = Mapping[str, Value]
"""A value for each of the report's columns, by column key."""
Layout: TypeAlias = "Callable[[Iterable[Row]], Iterator[str]]"
"""A format of one report: returns the text of the rows of ``Report.on_a_page``, in pieces."""
_NS_PER_MS = 1_000_000
NS_PER_US = 1_000


@dataclass(frozen=True, slots=True)
class Column:
    """A column of a report.

    Attributes:
        key: The stable name in json and csv, which includes the unit.
        header: The heading in a table.
        decimals: The number of digits after the decimal point in a table; json and csv keep the full value.
        detail: Its level of detail, 0 for the most informative columns: a terminal that is too narrow shows
            columns with a higher number after those with a lower one, or not at all.
        is_id: Whether its values are ids, of which such a terminal shows only the beginning.
        is_time: Whether its values are times in ISO 8601, which such a terminal shows to the minute.
        stays: Whether it stays in the table on such a terminal even if it is the same in every row.
        least: The minimum width of a text on such a terminal.
        wraps: Whether a text that is too long for it is wrapped; otherwise, its end is cut off.
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
    """Rows together with columns of their own.

    Attributes:
        title: The heading above the table, if there are several tables.
        rows: The rows, which can be read only once.
    """

    title: str
    columns: tuple[Column, ...]
    rows: Iterator[Row]


class Report(ABC, Generic[M]):
    """One kind of report on evaluations that have the measurement ``M``."""

    name: ClassVar[str]
    aliases: ClassVar[tuple[str, ...]] = ()
    """Other names by which it is found."""
    summary: ClassVar[str]
    columns: ClassVar[tuple[Column, ...]]
    takes: ClassVar[tuple[type[Measurement], ...]] = ()
    """The kinds of measurement that it covers, all if empty; it receives no evaluations of others."""
    undisturbed: ClassVar[bool] = False
    """Whether the report excludes evaluations that ran under the framework's profiler."""
    only_drawn: ClassVar[bool] = False
    """Whether the page shows its rows only as a picture."""
    has_tables: ClassVar[bool] = False
    """Whether ``tables`` returns other columns and rows than those written to files."""
    layouts: ClassVar[Mapping[str, Layout]] = MappingProxyType({})
    """Formats by name that only this report has."""

    def taken(self, evaluations: Iterable[Evaluation]) -> list[Evaluation[M]]:
        """Returns those of the ``evaluations`` whose kind the report covers, in their order."""
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
"""The few of ``EVALUATION_COLUMNS`` that reports with many rows per evaluation have."""
STABILITY_COLUMN = Column("stability", "stability")
"""The verdict on the conditions in one word, for those reports with many rows per evaluation."""
VERDICT_COLUMN = Column("verdict", "verdict")
"""``INVALID``, or the verdict on the conditions; a table has room for it, but not for the reason."""
COMMON_COLUMNS = {*EVALUATION_COLUMNS, STATUS_COLUMN, CONDITIONS_COLUMN, STABILITY_COLUMN, VERDICT_COLUMN}
"""The columns about an evaluation as a whole, whatever was measured."""
INVALID_COLUMN = Column("invalid", "INVALID", detail=3)
"""The reason for ``INVALID``."""

SCORE_COLUMNS = (Column("score_name", "score name"), Column("score", "score", decimals=4))
"""The most important score of a task other than classification, which has columns of its own."""


def evaluation_columns(*own: Column) -> tuple[Column, ...]:
    """Returns a report's own columns between those that ``describe`` has the values of."""
    return (*EVALUATION_COLUMNS, *own, STATUS_COLUMN, CONDITIONS_COLUMN)


def named(source: object, *names: str) -> dict[str, Any]:
    """Returns the values of the columns that have the names of attributes of ``source``."""
    return {name: getattr(source, name) for name in names}


def describe(evaluation: Evaluation) -> Row:
    """Returns the values of ``EVALUATION_COLUMNS``, ``STATUS_COLUMN`` and ``CONDITIONS_COLUMN``.

    ``created_at`` is ISO 8601 in UTC with milliseconds; ``framework_version`` is the installed version, not
    the manifest's constraint; ``threads`` is None if it is unknown, and ``precision`` is None for a model in
    a file, which has its own.
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
    """Returns a duration in milliseconds; None if it is unknown."""
    return None if duration_ns is None else duration_ns / _NS_PER_MS


def in_us(duration_ns: float | None) -> float | None:
    """Returns a duration in microseconds; None if it is unknown."""
    return None if duration_ns is None else duration_ns / NS_PER_US


def finite(value: Value) -> Value:
    """Returns a value that JSON can represent: None for an infinity and for not-a-number."""
    return None if isinstance(value, float) and not math.isfinite(value) else value


def cut_percent(percent: float) -> float:
    """Returns a percentage of at most 100, truncated to two decimals: 90.909… becomes 90.9."""
    return min(100.0, math.floor(round(100 * percent, 6)) / 100)


def end_columns(key: str, heading: str, decimals: int = 3, detail: int = 3) -> Iterator[Column]:
    """Yields the columns for the ends of the interval of the figure in the column ``key``."""
    for end in ("low", "high"):
        yield Column(f"{key}_{end}", f"{heading} {end}".lstrip(), decimals=decimals, detail=detail)


def end_values(key: str, interval: tuple[float, float] | None) -> dict[str, Value]:
    """Returns the values of ``end_columns``."""
    low, high = interval or (None, None)
    return {f"{key}_low": low, f"{key}_high": high}


def time_columns(
    key: str, heading: str, details: Mapping[str, int], intervals: Collection[str]
) -> Iterator[Column]:
    """Yields a column ``key_NAME`` for each figure, followed by columns for the ends of its interval.

    Args:
        key: The beginning of the keys, with the unit: ``latency_ms``.
        heading: The beginning of the headings; empty for none.
        details: The ``detail`` of each figure's column, by the figure's name.
        intervals: The names of the figures that have an interval.
    """
    for name, detail in details.items():
        shown = " ".join(filter(None, (heading, name.replace("_", " "))))
        yield Column(f"{key}_{name}", f"{shown} (ms)", detail=detail)
        if name in intervals:
            yield Column(f"{key}_{name}_low", f"{shown} low (ms)", detail=3)
            yield Column(f"{key}_{name}_high", f"{shown} high (ms)", detail=3)


def time_values(
    key: str, summary: object, names: Collection[str], intervals: Collection[str]
) -> dict[str, float | None]:
    """Returns the values of ``time_columns``, from the attributes ``NAME_ns`` and ``NAME_interval_ns``."""
    values = {f"{key}_{name}": in_ms(getattr(summary, f"{name}_ns")) for name in names}
    for name in intervals:
        low_ns, high_ns = getattr(summary, f"{name}_interval_ns") or (None, None)
        values |= {f"{key}_{name}_low": in_ms(low_ns), f"{key}_{name}_high": in_ms(high_ns)}
    return values
