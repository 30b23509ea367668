"""The jobs of trainings and of loaders alone, once or as a group of repetitions in processes of their own."""

from __future__ import annotations

import os
import uuid
from collections.abc import Generator, Iterator
from contextlib import closing
from dataclasses import replace
from functools import partial

from inferometer.agent.training.trainer import Rank
from inferometer.client.systems import Systems
from inferometer.evaluators.dataset_run import Progress
from inferometer.evaluators.evaluation import Evaluation
from inferometer.evaluators.jobs import ranges
from inferometer.evaluators.jobs.fresh_process import in_turn
from inferometer.evaluators.jobs.ingest import IngestionRequest, ingest
from inferometer.evaluators.jobs.resources import JobCallbacks
from inferometer.evaluators.jobs.train import train
from inferometer.evaluators.jobs.training_requests import TrainingRequest
from inferometer.evaluators.measurements.ingestion import IngestionMeasurement
from inferometer.evaluators.measurements.training import TrainingMeasurement
from inferometer.evaluators.training.ranks import RankRequest, run_ranks
from inferometer.manifests.errors import ConfigurationError


def trainings(
    request: TrainingRequest,
    ranks: RankRequest,
    systems: Systems,
    callbacks: JobCallbacks[Progress],
    repeat: int = 1,
) -> Generator[Evaluation[TrainingMeasurement], None, None]:
    """Trains, and yields the evaluation of each repetition as soon as it is complete.

    Repetitions begin with the same weights and the same data. A single process is a fresh one each time;
    several ranks always are. Close the iterator to end the job early.

    Raises:
        ConfigurationError: ``repeat`` is out of range, or cannot be with the other options.
        InferometerError: The model cannot be trained.
    """
    ranges.check_number("repeat", repeat, ranges.COUNT)
    if repeat > 1:
        rank = ranks.of_this_process(os.environ)
        if rank is not None:
            raise ConfigurationError(
                f"repeat starts processes of its own, and this one was started as {rank}; start all ranks "
                "again instead, or leave out repeat"
            )
        if request.save_path is not None:
            raise ConfigurationError(
                f"save_weights names one file, and repeat={repeat} trains {repeat} models; leave out one"
            )
        _ = systems.catalog  # says here, once, which manifests are left out
    group_id = str(uuid.uuid4()) if repeat > 1 else None
    works = [
        (partial(_train_part, request, ranks, systems, group_id, number if repeat > 1 else None), None)
        for number in range(1, repeat + 1)
    ]
    return in_turn(works, callbacks, fresh=repeat > 1 and (ranks.num_ranks or 1) == 1)


def ingestions(
    request: IngestionRequest, systems: Systems, callbacks: JobCallbacks[Progress], repeat: int = 1
) -> Generator[Evaluation[IngestionMeasurement], None, None]:
    """Loads the batches, and yields the evaluation of each repetition as soon as it is complete.

    Raises:
        ConfigurationError: ``repeat`` is out of range.
        InferometerError: The dataset cannot be loaded.
    """
    ranges.check_number("repeat", repeat, ranges.COUNT)
    fresh = repeat > 1
    if fresh:
        _ = systems.catalog
    group_id = str(uuid.uuid4()) if fresh else None
    works = [
        (partial(_ingest_part, request, systems, group_id, number if fresh else None), None)
        for number in range(1, repeat + 1)
    ]
    return in_turn(works, callbacks, fresh=fresh)


def _train_part(
    request: TrainingRequest,
    ranks: RankRequest,
    systems: Systems,
    group_id: str | None,
    process: int | None,
    callbacks: JobCallbacks[Progress],
) -> Generator[Evaluation[TrainingMeasurement], None, None]:
    """Trains once, as all ranks of this host."""
    work = partial(_train_rank, request, systems, group_id)
    companions = systems.companions(request.system, request.options.communication)
    with closing(run_ranks(work, ranks, callbacks, os.environ, companions)) as evaluations:
        for evaluation in evaluations:
            yield replace(evaluation, process=process)


def _train_rank(
    request: TrainingRequest,
    systems: Systems,
    group_id: str | None,
    rank: Rank,
    callbacks: JobCallbacks[Progress],
) -> Iterator[Evaluation[TrainingMeasurement]]:
    """Trains as one rank; a function of this module, so that pickle can pass it on to a process."""
    return train(request, systems, rank, callbacks, group_id)


def _ingest_part(
    request: IngestionRequest,
    systems: Systems,
    group_id: str | None,
    process: int | None,
    callbacks: JobCallbacks[Progress],
) -> Generator[Evaluation[IngestionMeasurement], None, None]:
    """Loads once."""
    yield replace(ingest(request, systems, callbacks), group_id=group_id, process=process)
