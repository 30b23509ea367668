"""Ranks of the tests, which meet, work in step, and end in every way; as a script, their launcher."""

from __future__ import annotations

import importlib
import os
import signal
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

from inferometer.agent.training.trainer import Companion, Rank
from inferometer.evaluators.jobs.job import JobCallbacks
from inferometer.evaluators.kinds.training.job import held_address, in_ranks, local_ranks, run_ranks
from inferometer.evaluators.kinds.training.request import RankRequest
from inferometer.manifests.errors import DatasetError, InferometerError, RankLostError

DEADLINE_S = 60.0
KVSTORE = {"DMLC_NUM_WORKER": "2", "DMLC_NUM_SERVER": "1", "DMLC_NODE_HOST": "127.0.0.1"}


def tell_pid(folder: Path, name: str) -> None:
    """Writes the process's id where the test looks for it."""
    part = folder / f".{name}.{os.getpid()}"
    part.write_text(str(os.getpid()), encoding="utf-8")
    part.rename(folder / name)


def meet(rank: Rank) -> Any:
    """Joins the other ranks by gloo."""
    import torch.distributed as distributed

    distributed.init_process_group(
        "gloo", init_method=f"tcp://{rank.address}", rank=rank.number, world_size=rank.count
    )
    return distributed


def added(distributed: Any, value: float) -> float:
    """The sum over the ranks."""
    import torch

    tensor = torch.tensor([value])
    try:
        distributed.all_reduce(tensor)
    except RuntimeError as error:
        raise RankLostError(f"gloo: {error}") from error
    return float(tensor[0])


def sums(folder: Path, rank: Rank, callbacks: JobCallbacks) -> Iterator[Any]:
    """Adds up the ranks' numbers."""
    if rank.count == 1:
        yield 0, 1.0
        return
    distributed = meet(rank)
    yield rank.number, added(distributed, rank.number + 1.0)
    distributed.destroy_process_group()


def steps_until_stopped(folder: Path, rank: Rank, callbacks: JobCallbacks) -> Iterator[Any]:
    """Works in step until it is stopped, or killed."""
    callbacks.on_warning(f"from {rank}")
    distributed = meet(rank)
    start_a_child(folder, f"child-{rank.number}")
    tell_pid(folder, f"rank-{rank.number}")
    deadline_s, steps = time.monotonic() + DEADLINE_S, 0
    while not callbacks.stop_requested() and time.monotonic() < deadline_s:
        steps = steps + 1 if added(distributed, 1.0) == rank.count else -1
    gathered = [None] * rank.count
    distributed.all_gather_object(gathered, steps)
    yield gathered
    distributed.destroy_process_group()


def start_a_child(folder: Path, name: str) -> None:
    """Forks a process that holds this one's end of the link, as a loader's worker does."""
    if os.fork() == 0:
        tell_pid(folder, name)
        signal.pause()
        os._exit(0)


def raises_in_one(folder: Path, rank: Rank, callbacks: JobCallbacks) -> Iterator[Any]:
    """Fails in rank 1, which the others see as a lost connection."""
    distributed = meet(rank)
    added(distributed, 1.0)
    if rank.number == 1:
        distributed.destroy_process_group()
        tell_pid(folder, "closed")
        deadline_s = time.monotonic() + DEADLINE_S
        while not (folder / "saw").exists() and time.monotonic() < deadline_s:
            os.sched_yield()
        raise DatasetError("no such image: 7.jpg")
    try:
        added(distributed, 1.0)
    finally:
        tell_pid(folder, "saw")
    yield None


def kvstore_steps(folder: Path, rank: Rank, callbacks: JobCallbacks) -> Iterator[Any]:
    """Pushes to MXNet's servers and pulls from them until it is stopped, or killed."""
    os.environ.update(KVSTORE, DMLC_ROLE="worker", **root(rank.address))
    mxnet = import_mxnet()
    store = mxnet.kv.create("dist_sync")
    store.init("sum", mxnet.nd.zeros((1,)))
    tell_pid(folder, f"rank-{rank.number}")
    value = mxnet.nd.zeros((1,))
    deadline_s, stopped = time.monotonic() + DEADLINE_S, False
    while not stopped and time.monotonic() < deadline_s:
        stopped = callbacks.stop_requested()
        store.push("sum", mxnet.nd.ones((1,)))
        store.pull("sum", out=value)
        mxnet.nd.waitall()
    yield float(value.asscalar())


def import_mxnet() -> Any:
    """MXNet without what doubles the time of its import."""
    import numpy

    vars(numpy)["bool"] = bool
    sys.modules.update({"sklearn": None, "scipy": None})  # type: ignore[dict-item]
    return importlib.import_module("mxnet")


def root(address: str) -> dict[str, str]:
    host, _, port = address.rpartition(":")
    return {"DMLC_PS_ROOT_URI": host, "DMLC_PS_ROOT_PORT": port}


def serve_kvstore(folder: Path, name: str, environment: dict[str, str]) -> None:
    """Runs MXNet's scheduler or server."""
    os.environ.update(environment)
    tell_pid(folder, name)
    with suppress(SystemExit):
        import_mxnet()  # it serves in its import


def kvstore_of(folder: Path, rank: Rank) -> list[Companion]:
    if rank.number:
        return []
    return [
        Companion(
            f"the kvstore's {role}",
            partial(serve_kvstore, folder, role, KVSTORE | root(rank.address) | {"DMLC_ROLE": role}),
        )
        for role in ("scheduler", "server")
    ]


def launch(kind: str, folder: Path, callbacks: JobCallbacks) -> Iterator[Any]:
    """Runs two ranks of one kind of work on this host."""
    companions = partial(kvstore_of, folder) if kind.startswith("kvstore") else None
    with held_address() as address:
        yield from in_ranks(partial(globals()[kind], folder), local_ranks(2, address), callbacks, companions)


def main(kind: str, folder: Path) -> None:
    """Launches ranks; a first SIGINT stops them. As ``joins``, it is one of the ranks of a launcher."""
    asked: list[int] = []
    signal.signal(signal.SIGINT, lambda *_: asked.append(1))

    def say(line: str) -> None:
        sys.stdout.write(f"{line}\n")

    callbacks: JobCallbacks = JobCallbacks(
        stop_requested=lambda: bool(asked), on_warning=lambda text: say(f"warning {text}")
    )
    try:
        if kind == "joins":
            found = run_ranks(partial(sums, folder), RankRequest(), callbacks, os.environ)
        else:
            found = launch(kind, folder, callbacks)
        for evaluation in found:
            say(f"evaluation {evaluation}")
    except InferometerError as error:
        sys.exit(f"error: {error}")


if __name__ == "__main__":
    from tests.integration import rank_work  # a fresh process finds what it runs in a module only

    rank_work.main(sys.argv[1], Path(sys.argv[2]))
