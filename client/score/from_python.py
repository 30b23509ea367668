"""Scoring of predictions that another tool made, from Python."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

from inferometer.client.library import html
from inferometer.client.library.invocation import library_invocation
from inferometer.client.library.tables import Rows
from inferometer.evaluators.jobs.requests import DatasetChoice
from inferometer.evaluators.jobs.scoring.score import ScoredPredictions, ScoreRequest
from inferometer.evaluators.jobs.scoring.score import score as score_job
from inferometer.evaluators.kinds.batches.accuracy_plot import drawing_of
from inferometer.evaluators.reports.scores import COLUMNS, rows_of
from inferometer.evaluators.tasks.scores import ScoreInterval, TaskResult

_Path = str | os.PathLike[str]


class Scores(Rows):
    """The scores of predictions, a row each; in a notebook with their picture.

    Attributes:
        result: The scores with what defines them.
        failures: The ids of the samples that could not be scored, each with the reason.
    """

    def __init__(self, found: ScoredPredictions, name: str) -> None:
        super().__init__(COLUMNS, rows_of(found.result, len(found.failures), found.dataset.name))
        self.result: TaskResult = found.result
        self.failures = {each.input_id: each.message for each in found.failures}
        self._name = name

    @property
    def samples(self) -> int:
        """The number of scored samples."""
        return self.result.samples

    def value(self, name: str) -> float | None:
        """Returns a score, such as ``AP50``; None if it is not defined, or there is none of that name."""
        return self.result.score(name)

    def interval(self, name: str) -> ScoreInterval | None:
        """Returns the 95 % interval of a score; None if there is none."""
        return next((each.interval for each in self.result.scores if each.name == name), None)

    def _repr_html_(self) -> str:
        return html.with_drawing(super()._repr_html_(), drawing_of(self.result, self._name))


def score(
    predictions: _Path,
    *,
    task: str,
    dataset_path: _Path | None = None,
    dataset_name: str | None = None,
    data_backend: str | None = None,
    sample_ids: Sequence[str] | None = None,
    labels: Sequence[str] = (),
    score_border: int = 0,
    score_channels: str = "RGB",
    fail_on_error: bool = False,
) -> Scores:
    """Scores predictions of another tool against a dataset, as ``agent score`` does; runs no model.

    Args:
        predictions: The file or the folder.
        task: Such as ``detection``; see ``docs/tasks.md``.
        dataset_path: The dataset.
        dataset_name: The dataset, by the name of its manifest.
        data_backend: The format of ``dataset_path``; None finds it out.
        sample_ids: The samples that count; None means all of the dataset.
        labels: The classes in the order that predictions count them; empty takes the dataset's.
        score_border: The pixels at each edge of an enhanced image that do not count.
        score_channels: ``RGB``, or ``Y`` for the luma alone.
        fail_on_error: Whether the first sample that cannot be scored is an error.

    Raises:
        ConfigurationError: A value is invalid, or no dataset is named.
        DatasetError: The dataset or the predictions cannot be read, or do not fit each other.
        EvaluationFailed: A sample failed, and ``fail_on_error`` is set.
    """
    invocation = library_invocation()
    choice = DatasetChoice(
        name=dataset_name,
        path=None if dataset_path is None else Path(dataset_path),
        backend=data_backend,
        sample_ids=None if sample_ids is None else tuple(map(str, sample_ids)),
    )
    request = ScoreRequest(
        task=task,
        predictions=Path(predictions),
        dataset=choice,
        labels=tuple(labels),
        parameters={"score_border": score_border, "score_channels": score_channels},
        fail_on_error=fail_on_error,
    )
    return Scores(score_job(request, invocation.catalog, invocation.cache), Path(predictions).name)
