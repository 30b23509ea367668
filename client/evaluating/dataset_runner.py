"""The evaluation that a served agent runs on a client's behalf."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing

from agent.artifact_cache import ArtifactCache
from agent.server.dataset_runner import DatasetOrder
from agent.session import Session
from client.dataset_selection import dataset_of_model
from evaluators.dataset_run import DatasetRun
from evaluators.datasets.opening import open_dataset
from evaluators.evaluation import EvaluationOptions, Status
from evaluators.store.json_text import evaluation_to_json
from manifests.catalog import Catalog
from manifests.errors import EvaluationInterrupted


class CatalogDatasetRunner:
    """Evaluates over the datasets of a catalogue; satisfies ``agent.server.dataset_runner.DatasetRunner``.

    Args:
        catalog: The datasets.
        cache: Gets those that are at URLs; with None, all are on this machine.
    """

    def __init__(self, catalog: Catalog, cache: ArtifactCache | None = None) -> None:
        self._catalog = catalog
        self._cache = cache

    def __call__(
        self,
        session: Session,
        order: DatasetOrder,
        on_progress: Callable[[int, int], None],
        stop_requested: Callable[[], bool],
    ) -> str:
        """Runs the evaluation and returns it as JSON; see ``DatasetRunner``."""
        if order.dataset_name is None:
            dataset = dataset_of_model(
                self._catalog, session.description.manifest, order.dataset_category, self._cache
            )
        else:
            dataset = open_dataset(
                self._catalog.find_dataset(order.dataset_name, category=order.dataset_category), self._cache
            )
        options = EvaluationOptions(
            batch_size=order.batch_size,
            partition_list_size=order.partition_list_size,
            num_file_parts=order.num_file_parts,
            warmup_num_file_parts=order.warmup_num_file_parts,
            feature_limit=order.feature_limit,
            fail_on_error=order.fail_on_error,
        )
        with closing(dataset):
            evaluation = DatasetRun(
                session,
                dataset,
                options,
                on_progress=lambda progress: on_progress(progress.done, progress.total),
                stop_requested=stop_requested,
            ).run()
        if evaluation.status is Status.INTERRUPTED:
            raise EvaluationInterrupted("the evaluation was stopped before its end")
        return evaluation_to_json(evaluation)
