"""The evaluations that are stored, as rows."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from contextlib import closing
from typing import overload

from inferometer.client.library import html
from inferometer.client.library.invocation import library_invocation
from inferometer.client.library.tables import Tabular
from inferometer.evaluators.evaluation import Evaluation, of_kind
from inferometer.evaluators.kinds.batches.measurement import BatchMeasurement
from inferometer.evaluators.kinds.batches.report import LatencyReport
from inferometer.evaluators.plots.base import MOST_EVALUATIONS
from inferometer.evaluators.reports.base import Column, Row
from inferometer.evaluators.reports.overview import OverviewReport
from inferometer.evaluators.store.evaluation_store import EvaluationFilter
from inferometer.manifests.errors import ConfigurationError

_log = logging.getLogger(__name__)


class Evaluations(Tabular, Sequence[Row]):
    """Stored evaluations of every kind, the newest first, as the rows of ``agent info evaluations``.

    Args:
        rows: The rows.
        pictured: The evaluations that a notebook draws in its picture.
    """

    def __init__(self, rows: Sequence[Row], pictured: Sequence[Evaluation[BatchMeasurement]] = ()) -> None:
        self._rows = tuple(rows)
        self._pictured = tuple(pictured)

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
        return OverviewReport.columns

    @property
    def _table(self) -> Sequence[Row]:
        return self._rows

    def _repr_html_(self) -> str:
        return html.with_picture(super()._repr_html_(), LatencyReport(), self._pictured)


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
    )
    with closing(library_invocation().open_store()) as store:
        found = store.find(wanted, lambda error: _log.warning("left out %s", error))
    batches = of_kind(found, BatchMeasurement)
    pictured = [evaluation for evaluation in batches if not evaluation.profiled][:MOST_EVALUATIONS]
    return Evaluations(tuple(report.rows(found)), pictured)
