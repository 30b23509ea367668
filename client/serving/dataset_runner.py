"""The evaluations that a served agent runs on behalf of its clients."""

from __future__ import annotations

from collections.abc import Callable

from inferometer.agent.artifacts.cache import ArtifactCache
from inferometer.agent.inference.session import Session
from inferometer.agent.server.native.dataset_stream import DatasetOrder
from inferometer.evaluators.evaluation import Status
from inferometer.evaluators.jobs.requests import DatasetChoice
from inferometer.evaluators.kinds.batches.job import evaluate_open_system
from inferometer.evaluators.kinds.batches.measurement import BatchOptions
from inferometer.evaluators.running.resources import JobCallbacks
from inferometer.evaluators.store.json_text import evaluation_to_json
from inferometer.manifests.catalog import Catalog
from inferometer.manifests.errors import EvaluationInterrupted


def run_dataset(
    catalog: Catalog,
    cache: ArtifactCache,
    session: Session,
    order: DatasetOrder,
    on_progress: Callable[[int, int], None],
    stop_requested: Callable[[], bool],
) -> str:
    """Evaluates over a dataset of a catalogue, and returns the evaluation as JSON.

    With the first two arguments, it satisfies ``DatasetRunner`` of the server. The cache gets datasets that
    are at URLs.
    """
    evaluation = evaluate_open_system(
        session,
        DatasetChoice(name=order.dataset_name, category=order.dataset_category),
        BatchOptions(
            batch_size=order.batch_size,
            partition_list_size=order.partition_list_size,
            num_file_parts=order.num_file_parts,
            warmup_num_file_parts=order.warmup_num_file_parts,
            feature_limit=order.feature_limit,
            fail_on_error=order.fail_on_error,
        ),
        catalog,
        cache,
        JobCallbacks(
            on_progress=lambda progress: on_progress(progress.done, progress.total),
            stop_requested=stop_requested,
        ),
    )
    if evaluation.status is Status.INTERRUPTED:
        raise EvaluationInterrupted("the evaluation was stopped before its end")
    return evaluation_to_json(evaluation)
