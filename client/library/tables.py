"""Converts rows to tables: columns as lists, Arrow, pandas, text and HTML."""

from __future__ import annotations

import io
from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from typing import Any, overload

from inferometer.client.library import html
from inferometer.evaluators.reports.base import Column, Row
from inferometer.evaluators.reports.table import terminal_table
from inferometer.manifests.errors import ConfigurationError


class Tabular(ABC):
    """The base of objects that display as a table and convert it for other programs."""

    @property
    @abstractmethod
    def _columns(self) -> Sequence[Column]:
        """The columns."""

    @property
    @abstractmethod
    def _table(self) -> Sequence[Row]:
        """The rows, each with a value for every column."""

    def to_dict(self) -> dict[str, list[Any]]:
        """Returns the values of each column by its key."""
        return {column.key: [row[column.key] for row in self._table] for column in self._columns}

    def to_arrow(self) -> Any:
        """Returns a ``pyarrow.Table``.

        Raises:
            ConfigurationError: pyarrow is not installed.
        """
        try:
            import pyarrow  # type: ignore[import-untyped,import-not-found,unused-ignore]
        except ImportError as error:
            raise _missing("pyarrow") from error
        return pyarrow.table(self.to_dict())

    def to_pandas(self) -> Any:
        """Returns a ``pandas.DataFrame``.

        Raises:
            ConfigurationError: pandas is not installed.
        """
        try:
            import pandas  # type: ignore[import-untyped,import-not-found,unused-ignore]
        except ImportError as error:
            raise _missing("pandas") from error
        return pandas.DataFrame(self.to_dict())

    def __repr__(self) -> str:
        """Returns the table, as wide as the terminal."""
        return "".join(terminal_table(self._columns, self._table, io.StringIO(), header=True)).rstrip("\n")

    def _repr_html_(self) -> str:
        return html.table(self._columns, self._table)


class Rows(Tabular, Sequence[Row]):
    """The rows of a report.

    Args:
        columns: The columns.
        rows: The rows, each with a value for every column.
    """

    def __init__(self, columns: Sequence[Column], rows: Iterable[Row]) -> None:
        self._of_all = tuple(columns)
        self._rows = tuple(rows)

    def __len__(self) -> int:
        return len(self._rows)

    @overload
    def __getitem__(self, place: int) -> Row: ...

    @overload
    def __getitem__(self, place: slice) -> Sequence[Row]: ...

    def __getitem__(self, place: int | slice) -> Row | Sequence[Row]:
        return self._rows[place]

    @property
    def _columns(self) -> Sequence[Column]:
        return self._of_all

    @property
    def _table(self) -> Sequence[Row]:
        return self._rows


def _missing(package: str) -> ConfigurationError:
    return ConfigurationError(f"{package} is not installed; pip install {package}, or use to_dict")
