"""The interface of a report: columns, and rows made from evaluations by a pure function.

Columns of times are in milliseconds, and include the ends of their 95 % intervals.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timezone
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, ClassVar, Generic, TypeAlias, cast

from typing_extensions import TypeVar

if TYPE_CHECKING:
    from inferometer.evaluators.evaluation import Evaluation, Measurement


M = TypeVar("M", bound="Measurement", default="Measurement")
F = TypeVar("F", default=Any)
S_contra = TypeVar("S_contra", default=Any, contravariant=True)
Value: TypeAlias = str | int | float | bool | None
Row: TypeAlias = Mapping[str, Value]
"""A value for each of the report's columns, by column key."""
Layout: TypeAlias = "Callable[[Iterable[Row]], Iterator[str]]"
"""A format of one report: returns the text of the rows of ``Report.on_a_page``, in pieces."""
_NS_PER_MS = 1_000_000
NS_PER_US = 1_000


@dataclass(frozen=True, slots=True)
class Column(Generic[S_contra]):
    """A column of a report whose rows are made from objects of type ``S_contra``, one from each.

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
        value: The function that returns its value for an object, or the path of the attribute that has it,
            such as ``options.ranks`` (see ``read``); None if the report adds the value itself.
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
    value: Callable[[S_contra], Value] | str | None = field(default=None, compare=False, repr=False)


def row_of(columns: Iterable[Column[S_contra]], source: S_contra) -> dict[str, Value]:
    """Returns the values of an object in those of the ``columns`` that have a ``value``."""
    values = ((each.key, each.value) for each in columns if each.value is not None)
    return {key: read(source, value) if isinstance(value, str) else value(source) for key, value in values}


def read(source: Any, path: str) -> Any:
    """Returns what a path of attributes leads to, such as ``summary.p50_ns``.

    Names within a mapping are keys, and numbers are the places of items: ``outcomes.failed``, ``interval.0``.

    Returns:
        None if something on the way is None, or a mapping lacks the key.
    """
    for name in path.split("."):
        if source is None:
            return None
        if isinstance(source, Mapping):
            source = source.get(name)
        else:
            source = source[int(name)] if name.isdigit() else getattr(source, name)
    return source


def known(path: str) -> Callable[[object], Any]:
    """Returns the ``value`` of a column that is None where an attribute is empty or 0; see ``read``."""
    return lambda source: read(source, path) or None


def ms(path: str) -> Callable[[object], float | None]:
    """Returns the ``value`` of a column in milliseconds, from an attribute in nanoseconds; see ``read``."""
    return lambda source: in_ms(read(source, path))


def us(path: str) -> Callable[[object], float | None]:
    """Returns the ``value`` of a column in microseconds, from an attribute in nanoseconds; see ``read``."""
    return lambda source: in_us(read(source, path))


@dataclass(frozen=True, slots=True)
class Summarized(Generic[M, F]):
    """An evaluation with the figures of its measurement, from which a row is made."""

    evaluation: Evaluation[M]
    summary: F

    @property
    def measured(self) -> M:
        """The measurement."""
        return self.evaluation.measurement


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


EVALUATION_COLUMNS: tuple[Column[Evaluation], ...] = (
    Column("id", "id", is_id=True, value="id"),
    Column("created_at", "created at", detail=1, is_time=True, value=lambda of: _in_utc(of.created_at)),
    Column("model_name", "model", value="system.manifest.name"),
    Column("model_version", "model version", detail=2, value="system.manifest.version"),
    Column("framework_name", "framework", value="system.manifest.framework.name"),
    Column("framework_version", "framework version", detail=2, value="system.framework_version"),
    Column("machine_architecture", "architecture", detail=2, value="system.environment.architecture"),
    Column("using_gpu", "GPU", detail=2, value="system.device.is_gpu"),
    Column("batch_size", "batch size", value="measurement.batch_size"),
    Column("hostname", "host", detail=2, value="system.environment.hostname"),
    Column("weights", "weights", detail=2, value="system.weights.value"),
    Column("threads", "threads", detail=2, value="system.threads"),
    Column("precision", "precision", detail=2, value="system.precision.value"),
)
STATUS_COLUMN: Column[Evaluation] = Column("status", "status", detail=2, value="status.value")
CONDITIONS_COLUMN: Column[Evaluation] = Column(
    "conditions", "conditions", least=10, value=lambda of: str(of.conditions) if of.conditions else None
)
_NAMES = {"id", "model_name", "framework_name", "batch_size"}
NAME_COLUMNS = tuple(column for column in EVALUATION_COLUMNS if column.key in _NAMES)
"""The few of ``EVALUATION_COLUMNS`` that reports with many rows per evaluation have."""
STABILITY_COLUMN: Column[Evaluation] = Column("stability", "stability", value="conditions.stability.value")
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


def describe(evaluation: Evaluation) -> Row:
    """Returns the values of ``EVALUATION_COLUMNS``, ``STATUS_COLUMN`` and ``CONDITIONS_COLUMN``.

    ``created_at`` is ISO 8601 in UTC with milliseconds; ``framework_version`` is the installed version, not
    the manifest's constraint; ``threads`` is None if it is unknown, and ``precision`` is None for a model in
    a file, which has its own.
    """
    return row_of(evaluation_columns(), evaluation)


def _in_utc(when: datetime) -> str:
    return when.astimezone(timezone.utc).isoformat(timespec="milliseconds")


def describe_names(evaluation: Evaluation) -> Row:
    """Returns the values of ``NAME_COLUMNS`` and ``STABILITY_COLUMN``."""
    return row_of((*NAME_COLUMNS, STABILITY_COLUMN), evaluation)


def describe_verdict(evaluation: Evaluation, invalid: str) -> Row:
    """Returns the values of ``VERDICT_COLUMN`` and ``INVALID_COLUMN``; ``invalid`` is the reason or empty."""
    stability = row_of((STABILITY_COLUMN,), evaluation)["stability"]
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


def end_columns(
    key: str, heading: str, interval: str | None = None, decimals: int = 3, detail: int = 3
) -> Iterator[Column]:
    """Yields the columns for the ends of the interval of the figure in the column ``key``.

    Args:
        key: The key of the figure's column.
        heading: The beginning of the headings; empty for none.
        interval: The path of the interval, for ``read``; None if the report adds ``end_values``.
        decimals: See ``Column``.
        detail: See ``Column``.
    """
    for place, end in enumerate(("low", "high")):
        value = f"{interval}.{place}" if interval else None
        yield Column(f"{key}_{end}", f"{heading} {end}".lstrip(), decimals, detail, value=value)


def end_values(key: str, interval: tuple[float, float] | None) -> dict[str, Value]:
    """Returns the values of ``end_columns`` that have none of their own."""
    low, high = interval or (None, None)
    return {f"{key}_low": low, f"{key}_high": high}


def time_columns(
    key: str, heading: str, of: str, details: Mapping[str, int], intervals: Collection[str]
) -> Iterator[Column]:
    """Yields a column ``key_NAME`` for each figure, followed by columns for the ends of its interval.

    Args:
        key: The beginning of the keys, with the unit: ``latency_ms``.
        heading: The beginning of the headings; empty for none.
        of: The path of the object with the attributes ``NAME_ns`` and ``NAME_interval_ns``, for ``read``.
        details: The ``detail`` of each figure's column, by the figure's name.
        intervals: The names of the figures that have an interval.
    """
    for name, detail in details.items():
        shown = " ".join(filter(None, (heading, name.replace("_", " "))))
        yield Column(f"{key}_{name}", f"{shown} (ms)", detail=detail, value=ms(f"{of}.{name}_ns"))
        for place, end in enumerate(("low", "high") if name in intervals else ()):
            value = ms(f"{of}.{name}_interval_ns.{place}")
            yield Column(f"{key}_{name}_{end}", f"{shown} {end} (ms)", detail=3, value=value)
