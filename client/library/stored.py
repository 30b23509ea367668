"""The evaluations that are stored, as rows."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import closing
from typing import Any, overload

from inferometer.client.cli.invocation import Invocation
from inferometer.client.library import html
from inferometer.evaluators.reports.base import Row
from inferometer.evaluators.reports.overview import OverviewReport
from inferometer.evaluators.store.evaluation_store import EvaluationFilter
from inferometer.manifests.errors import ConfigurationError


class Evaluations(Sequence[Row]):
    """Stored evaluations of every kind, the newest first, as the rows of ``agent info evaluations``."""

    def __init__(self, rows: Sequence[Row]) -> None:
        self._rows = tuple(rows)

    def __len__(self) -> int:
        return len(self._rows)

    @overload
    def __getitem__(self, place: int) -> Row: ...

    @overload
    def __getitem__(self, place: slice) -> Sequence[Row]: ...

    def __getitem__(self, place: int | slice) -> Row | Sequence[Row]:
        return self._rows[place]

    def to_dict(self) -> dict[str, list[Any]]:
        """Returns the values of each column by its key."""
        keys = [column.key for column in OverviewReport.columns]
        return {key: [row[key] for row in self._rows] for key in keys}

    def to_pandas(self) -> Any:
        """Returns a ``pandas.DataFrame``.

        Raises:
            ConfigurationError: pandas is not installed.
        """
        try:
            import pandas  # type: ignore[import-untyped,import-not-found,unused-ignore]
        except ImportError as error:
            raise ConfigurationError("pandas is not installed; pip install pandas, or use to_dict") from error
        return pandas.DataFrame(self.to_dict())

    def __repr__(self) -> str:
        return f"<{len(self)} evaluations: to_dict, to_pandas>"

    def _repr_html_(self) -> str:
        headings = [column.header for column in OverviewReport.columns]
        keys = [column.key for column in OverviewReport.columns]
        return html.table(headings, [["" if row[k] is None else str(row[k]) for k in keys] for row in self])


def evaluations(
    *, model: str | None = None, framework: str | None = None, limit: int | None = None
) -> Evaluations:
    """Returns stored evaluations of every kind, the newest first.

    Args:
        model: Only this model.
        framework: Only this framework.
        limit: The newest so many; None means all.

    Raises:
        ConfigurationError: The limit is below 1.
        StoreError: The database cannot be reached.
    """
    if limit is not None and limit < 1:
        raise ConfigurationError(f"limit is {limit}; it must be at least 1, or None for all")
    report = OverviewReport()
    wanted = EvaluationFilter(
        model_name=model,
        framework_name=framework,
        limit=limit,
        kinds=tuple(each.kind for each in report.takes),
    )
    with closing(Invocation({}).open_store()) as store:
        return Evaluations(tuple(report.rows(store.find(wanted))))
