"""Ranks: processes that train one model together, started on this host, or by a launcher on several hosts."""

from __future__ import annotations

import os
import socket
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from typing import Any, TypeAlias

from inferometer.agent.training.rank_environment import LOOPBACK, require_host
from inferometer.agent.training.trainer import CompanionsOf, Rank
from inferometer.evaluators.evaluation import Evaluation
from inferometer.evaluators.jobs.job import JobCallbacks
from inferometer.evaluators.jobs.linked_process import LinkedTask, in_processes
from inferometer.evaluators.kinds.training.measurement import TrainingMeasurement
from inferometer.evaluators.kinds.training.request import RankRequest
from inferometer.manifests.errors import TrainingError

RankWork: TypeAlias = Callable[[Rank, JobCallbacks], Iterable[Evaluation[TrainingMeasurement]]]
"""A function that trains as one rank. It must be picklable: a module-level function with bound arguments.

The ranks work in step: each checks for a stop request once per step.
"""


def run_ranks(
    work: RankWork,
    request: RankRequest,
    callbacks: JobCallbacks,
    environ: Mapping[str, str],
    companions: CompanionsOf | None = None,
) -> Generator[Evaluation[TrainingMeasurement], None, None]:
    """Runs ``work`` as this process's rank, as all ranks on this host, or as a single process.

    A rank with companions runs in a fresh process, even if it is the only rank. Only rank 0 yields
    evaluations; for a launcher's rank other than 0, only warnings are passed on.

    Raises:
        ConfigurationError: The host at which the ranks meet has no address.
        TrainingError: A rank or a companion was killed or ended early.
        InferometerError: Raised by ``work``.
    """
    rank, count = request.of_this_process(environ), request.num_ranks or 1
    if rank is not None:
        if rank.number:
            callbacks = replace(callbacks, on_start=lambda _: None, on_progress=lambda _: None)
        require_host(rank.address)
        launcher = os.getppid() if request.rank is None and os.getppid() > 1 else os.getpid()
        rank = replace(rank, servers=request.num_servers or rank.servers, launcher=launcher)
        if request.rank is None and "DMLC_ROLE" in environ:  # the tracker has started them
            companions = None
        alone = companions is None or not companions(rank)
        found = work(rank, callbacks) if alone else in_ranks(work, [rank], callbacks, companions)
        yield from (evaluation for evaluation in found if rank.number == 0)
        return
    if count == 1 and (companions is None or not companions(Rank())):
        yield from work(Rank(), callbacks)
        return
    with held_address() as address:
        ranks = [replace(each, servers=request.num_servers or 1) for each in local_ranks(count, address)]
        yield from in_ranks(work, ranks, callbacks, companions)


def in_ranks(
    work: RankWork, ranks: Sequence[Rank], callbacks: JobCallbacks, companions: CompanionsOf | None = None
) -> Generator[Evaluation[TrainingMeasurement], None, None]:
    """Runs ``work`` as each of the ranks of this host, each in a fresh Python process.

    Progress, warnings and evaluations are those of the first rank. Closing the iterator ends all processes at
    once, with everything that they have started; so does the end of this process.

    Raises:
        TrainingError: A rank or a companion was killed or ended early; the message names it.
        InferometerError: Raised by ``work`` in a rank.
    """
    tasks = [
        LinkedTask(
            str(rank) if rank.count > 1 else "the only rank", partial(work, rank), tells=rank is ranks[0]
        )
        for rank in ranks
    ]
    beside: list[LinkedTask[Any]] = [
        LinkedTask(each.name, partial(_as_companion, each.work), tells=False, stops=False)
        for rank in ranks
        for each in (companions(rank) if companions else ())
    ]
    return in_processes(tasks, callbacks, TrainingError, beside)


def local_ranks(count: int, address: str) -> tuple[Rank, ...]:
    """Returns the ranks for a run whose processes are all on this host."""
    launcher = os.getpid()
    return tuple(Rank(number, count, number, address, count, launcher=launcher) for number in range(count))


@contextmanager
def held_address() -> Iterator[str]:
    """Yields a free port on the loopback address, reserved until the context ends.

    A bound socket that does not listen keeps the port. A socket that sets SO_REUSEADDR, such as those of
    PyTorch's store and MXNet's scheduler, can still listen on it.
    """
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as held:
        held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        held.bind((LOOPBACK, 0))
        yield f"{LOOPBACK}:{held.getsockname()[1]}"


def _as_companion(work: Callable[[], None], _: JobCallbacks) -> tuple[()]:
    work()
    return ()
