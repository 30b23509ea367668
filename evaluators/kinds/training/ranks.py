"""Ranks: processes that train one model together, started on this host or by a launcher on many.

It also reads how gradients are added up over devices and ranks.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, TypeAlias

from inferometer.agent.training.rank_environment import LOOPBACK, rank_of_environment, require_host
from inferometer.agent.training.trainer import CompanionsOf, Rank
from inferometer.evaluators.evaluation import Evaluation
from inferometer.evaluators.jobs.job import JobCallbacks
from inferometer.evaluators.jobs.linked_process import LinkedTask, in_processes
from inferometer.evaluators.jobs.options import MXNET
from inferometer.evaluators.kinds.batches.run import Progress
from inferometer.evaluators.kinds.training.measurement import TrainingMeasurement
from inferometer.manifests.errors import ConfigurationError, TrainingError

MOST_RANKS = 1024
RankWork: TypeAlias = Callable[[Rank, JobCallbacks[Progress]], Iterable[Evaluation[TrainingMeasurement]]]
"""Trains as one rank. Pickle can pass it on, so that it is a function of a module with its arguments.

The ranks work in step: each checks for a stop request once per step.
"""


@dataclass(frozen=True, slots=True)
class RankRequest:
    """How many processes train together, and which of them this one is.

    Attributes:
        num_ranks: The processes on all hosts; None for those of the launcher, or a single one.
        rank: The number of this process, from 0; None if this process starts all ranks on its host.
        rank_address: The host and port, on the host of rank 0, at which the ranks meet; needs ``rank``.
        local_rank: The number of this process on its host, which chooses the GPU.
        num_servers: The servers of MXNet's kvstore, where one runs; None for those of the launcher, or one.

    Raises:
        ConfigurationError: A number is out of range, or the fields contradict each other.
    """

    num_ranks: int | None = None
    rank: int | None = None
    rank_address: str = ""
    local_rank: int = 0
    num_servers: int | None = None

    def __post_init__(self) -> None:
        if self.num_ranks is not None and not 1 <= self.num_ranks <= MOST_RANKS:
            raise ConfigurationError(f"num_ranks is {self.num_ranks}; allowed: 1 to {MOST_RANKS}")
        if self.num_servers is not None and not 1 <= self.num_servers <= MOST_RANKS:
            raise ConfigurationError(f"num_servers is {self.num_servers}; allowed: 1 to {MOST_RANKS}")
        if self.rank is None:
            if self.rank_address or self.local_rank:
                named = "rank_address" if self.rank_address else "local_rank"
                raise ConfigurationError(f"{named} needs rank, the number of this process from 0")
            return
        if self.num_ranks is None or not self.rank_address:
            raise ConfigurationError("rank needs num_ranks and rank_address, such as node1:29500")
        if not 0 <= self.rank < self.num_ranks:
            raise ConfigurationError(
                f"rank is {self.rank}; allowed: 0 to num_ranks - 1, {self.num_ranks - 1}"
            )
        if not 0 <= self.local_rank <= self.rank:
            raise ConfigurationError(f"local_rank is {self.local_rank}; allowed: 0 to rank, {self.rank}")
        host, _, port = self.rank_address.rpartition(":")
        if not host or not (port.isascii() and port.isdecimal() and 0 < int(port) < 2**16):
            raise ConfigurationError(f"rank_address is {self.rank_address!r}; it must be like node1:29500")

    def of_this_process(self, environ: Mapping[str, str]) -> Rank | None:
        """Returns the rank of this process; None if it is none, and starts ranks if there are several.

        The fields count first, then the environment of a launcher.

        Raises:
            ConfigurationError: They contradict each other, or the environment is not valid.
        """
        if self.rank is not None and self.num_ranks is not None:
            return Rank(self.rank, self.num_ranks, self.local_rank, self.rank_address, self.local_rank + 1)
        found = rank_of_environment(environ)
        if found is not None and self.num_ranks not in (None, found.count):
            raise ConfigurationError(
                f"num_ranks is {self.num_ranks}, but a launcher has started this process as {found}; "
                "leave num_ranks out"
            )
        return found


def run_ranks(
    work: RankWork,
    request: RankRequest,
    callbacks: JobCallbacks[Progress],
    environ: Mapping[str, str],
    companions: CompanionsOf | None = None,
) -> Generator[Evaluation[TrainingMeasurement], None, None]:
    """Runs ``work`` as the rank that this process is, or as all ranks on this host, or as a single process.

    A rank with companions runs in a fresh process, also a single one. Only rank 0 yields evaluations; of a
    rank of a launcher other than 0, only warnings arrive.

    Raises:
        ConfigurationError: The host at which ranks meet has no address.
        TrainingError: A rank, or a companion, was killed or ended early.
        InferometerError: What ``work`` raised.
    """
    rank, count = request.of_this_process(environ), request.num_ranks or 1
    if rank is not None and rank.number:
        callbacks = replace(callbacks, on_start=lambda _: None, on_progress=lambda _: None)
    if rank is not None:
        require_host(rank.address)
        launched = request.rank is None and os.getppid() > 1
        launcher = os.getppid() if launched else os.getpid()
        rank = replace(rank, servers=request.num_servers or rank.servers, launcher=launcher)
        if request.rank is None and "DMLC_ROLE" in environ:  # the tracker has started them
            companions = None
        alone = companions is None or not companions(rank)
        found = work(rank, callbacks) if alone else in_ranks(work, [rank], callbacks, companions)
        yield from (evaluation for evaluation in found if rank.number == 0)
        return
    alone = count == 1 and (companions is None or not companions(Rank()))
    if alone:
        yield from work(Rank(), callbacks)
        return
    with held_address() as address:
        ranks = [replace(each, servers=request.num_servers or 1) for each in local_ranks(count, address)]
        yield from in_ranks(work, ranks, callbacks, companions)


def in_ranks(
    work: RankWork,
    ranks: Sequence[Rank],
    callbacks: JobCallbacks[Progress],
    companions: CompanionsOf | None = None,
) -> Generator[Evaluation[TrainingMeasurement], None, None]:
    """Runs ``work`` as each of the ranks of this host, each in a fresh Python process.

    Progress, warnings and evaluations are those of the first rank. Closing the iterator ends all processes
    at once, with what they have started; so does the end of this one.

    Raises:
        TrainingError: A rank, or a companion, was killed or ended early; the message names it.
        InferometerError: What ``work`` raised in a rank.
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
    """Returns the ranks of a run whose processes are all on this host."""
    launcher = os.getpid()
    return tuple(Rank(number, count, number, address, count, launcher=launcher) for number in range(count))


@contextmanager
def held_address() -> Iterator[str]:
    """Gives a free port of the loopback address, which no other program gets until the end.

    A bound socket that does not listen keeps the port. One that sets SO_REUSEADDR, as those of PyTorch's
    store and of MXNet's scheduler do, can listen on it all the same.
    """
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as held:
        held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        held.bind((LOOPBACK, 0))
        yield f"{LOOPBACK}:{held.getsockname()[1]}"


def _as_companion(work: Callable[[], None], _: JobCallbacks[Any]) -> tuple[()]:
    work()
    return ()


_DISTRIBUTED = ("dist_sync", "dist_device_sync", "dist_async")


def read_communication(
    values: Mapping[str, Any], framework: str, gpus: int, ranks: RankRequest, devices: int
) -> str:
    """Reads how gradients are added up; empty if the trainer decides, or nothing is to be added.

    Args:
        values: ``kv_store``, ``dist_backend`` and ``kv_num_servers``.
        framework: The name of the framework, in small letters.
        gpus: The number of GPUs.
        ranks: The processes that train together.
        devices: The devices of one of them.

    Raises:
        ConfigurationError: The option belongs to another framework, or does not support the number of
            processes.
    """
    store, backend = values["kv_store"], values["dist_backend"]
    if framework == MXNET:
        if backend is not None:
            raise ConfigurationError(f"dist_backend {backend} is PyTorch's; MXNet takes kv_store")
        return _store(store.lower() if store else None, ranks, devices)
    if store is not None:
        raise ConfigurationError(
            f"kv_store {store} is MXNet's, and the framework is {framework}; use dist_backend"
        )
    if values["kv_num_servers"] is not None:
        raise ConfigurationError("kv_num_servers is for MXNet's kvstore; PyTorch has no servers")
    if backend == "mpi":
        raise ConfigurationError("dist_backend mpi is not in PyTorch's packages; use gloo, or nccl on GPUs")
    if backend is None and rank_count(ranks) > 1:
        return "nccl" if gpus else "gloo"
    return backend.lower() if backend else ""


def rank_count(ranks: RankRequest) -> int:
    """Returns the number of processes that train together, according to the options or a launcher."""
    rank = ranks.of_this_process(os.environ)
    return rank.count if rank is not None else ranks.num_ranks or 1


def _store(store: str | None, ranks: RankRequest, devices: int) -> str:
    several = rank_count(ranks) > 1
    if store == "horovod":
        raise ConfigurationError(
            "kv_store horovod needs Horovod, which is not supported; use dist_device_sync"
        )
    if store is None:
        return "dist_sync" if several else "device" if devices > 1 else ""
    if several and store not in _DISTRIBUTED:
        raise ConfigurationError(
            f"kv_store {store} is for one process, and the ranks are {rank_count(ranks)}; "
            f"use {', '.join(_DISTRIBUTED)}"
        )
    return store
