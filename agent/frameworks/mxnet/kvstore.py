"""MXNet's kvstore, which sums gradients over the devices of a process, and over processes through servers.

Run as a module, it acts as a scheduler or a server, depending on the environment; see ``serve_kvstore``.
"""

from __future__ import annotations

import atexit
import ctypes
import os
import socket
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent import futures
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from inferometer.agent.frameworks.mxnet.runtime import FAILURES, copied_to, environment, mxnet, reason
from inferometer.agent.training.trainer import Rank, require_host
from inferometer.manifests.errors import (
    ConfigurationError,
    InferometerError,
    RankLostError,
    TrainingError,
    suggestion,
)

KVSTORES = ("local", "device", "nccl", "dist_sync", "dist_device_sync", "dist_async")
"""The types of kvstore; the types for several processes begin with ``dist``."""
_ROLES = ("scheduler", "server", "worker")
_HEARTBEAT_S = 2
_LOST_S = 10
_RETRY_S = 0.05
_SCHEDULER, _SERVERS, _RANKS = 1, 2, 4  # ps-lite's numbers of these groups
_Result = TypeVar("_Result")


def kvstore_of(name: str, rank: Rank, contexts: Sequence[Any]) -> str:
    """Returns the type of the kvstore for these processes and devices; empty if none is needed.

    If ``name`` is empty, several processes use ``dist_sync``, several GPUs ``device`` and several CPUs
    ``local``.

    Raises:
        ConfigurationError: The type is unknown, or does not fit the ranks, the devices or MXNet's build.
    """
    on_gpus = contexts[0].device_type == "gpu"
    if not name and rank.count > 1:
        name = "dist_sync"
    elif not name and len(contexts) > 1:
        name = "device" if on_gpus else "local"
    if name == "horovod":
        raise ConfigurationError(
            "communication is horovod, which is not supported; for several processes use dist_sync"
        )
    if name and name not in KVSTORES:
        raise ConfigurationError(
            f"communication is {name}; {suggestion(name, KVSTORES)} (allowed in MXNet: {', '.join(KVSTORES)})"
        )
    if name == "nccl" and not on_gpus:
        raise ConfigurationError("communication is nccl, which is for GPUs; on CPUs use local")
    distributed = name.startswith("dist")
    if rank.count > 1 and not distributed:
        raise ConfigurationError(
            f"communication is {name}, which is for one process, but there are {rank.count}; use dist_sync"
        )
    feature = "NCCL" if name == "nccl" else "DIST_KVSTORE" if distributed else ""
    if feature and not mxnet.runtime.Features().is_enabled(feature):
        raise ConfigurationError(f"communication is {name}, which this build of MXNet lacks; use device")
    if distributed and not rank.address:
        raise ConfigurationError(
            f"communication is {name}, but rank {rank.number} of {rank.count} has no scheduler address"
        )
    return name if distributed or len(contexts) > 1 else ""


def kvstore_environment(role: str, address: str, workers: int, servers: int) -> Mapping[str, str]:
    """Returns the environment variables for a process of a distributed kvstore.

    ``role`` is ``scheduler``, ``server`` or ``worker``; ``address`` is the scheduler's host and port.

    Raises:
        ConfigurationError: The address is not a host and port, or another argument is out of range.
    """
    host, _, port = address.rpartition(":")
    host = host.strip("[]")
    if not host or not port.isascii() or not port.isdigit() or not 0 < int(port) < 1 << 16:
        raise ConfigurationError(
            f'address is "{address}"; allowed: a host and a port, such as 127.0.0.1:9091'
        )
    if role not in _ROLES:
        raise ConfigurationError(f"role is {role}; allowed: {', '.join(_ROLES)}")
    if workers < 1 or servers < 1:
        raise ConfigurationError(f"found {workers} workers and {servers} servers; allowed: 1 or more of each")
    variables = {
        "DMLC_ROLE": role,
        "DMLC_PS_ROOT_URI": host,
        "DMLC_PS_ROOT_PORT": port,
        "DMLC_NUM_WORKER": str(workers),
        "DMLC_NUM_SERVER": str(servers),
        "PS_HEARTBEAT_INTERVAL": str(_HEARTBEAT_S),
    }
    if host == "localhost" or host.startswith("127."):
        # ps-lite looks for another network interface, whose address the other processes then need
        variables["DMLC_NODE_HOST"] = variables["DMLC_PS_ROOT_URI"] = "127.0.0.1"
    return variables


def serve_kvstore() -> None:
    """Runs a scheduler or a server in this process until all ranks have left.

    The process needs the variables of ``kvstore_environment``. If a rank or a server stops responding, MXNet
    makes all the others wait forever. The scheduler notices the missing heartbeats, writes one line to stderr
    and ends its process with exit code 1.

    Raises:
        ConfigurationError: The environment names neither of the two roles, or a host that has no address.
        TrainingError: MXNet cannot serve, for instance because the port is in use.
    """
    role = os.environ.get("DMLC_ROLE")
    if role not in ("scheduler", "server"):
        raise ConfigurationError(f"DMLC_ROLE is {role or 'not set'}; allowed: scheduler, server")
    require_host(f"{os.environ.get('DMLC_PS_ROOT_URI', '')}:{os.environ.get('DMLC_PS_ROOT_PORT', 0)}")
    try:
        store = mxnet.kv.create("dist")
        if role == "scheduler":
            threading.Thread(target=_end_with_the_first_lost, args=(store,), daemon=True).start()
        mxnet.kvstore.kvstore_server.KVStoreServer(store).run()
    except FAILURES as error:
        address = f"{os.environ.get('DMLC_PS_ROOT_URI')}:{os.environ.get('DMLC_PS_ROOT_PORT')}"
        raise TrainingError(f"the kvstore's {role} failed ({address}): {reason(error)}") from error


def _end_with_the_first_lost(store: Any) -> None:
    while True:
        time.sleep(_HEARTBEAT_S)
        for group, name in ((_RANKS, "rank"), (_SERVERS, "server")):
            if count := lost_processes(store, group):
                sys.stderr.write(f"the kvstore lost contact with {count} {name}{'s' * (count > 1)}\n")
                os._exit(1)  # the main thread waits inside MXNet


def lost_processes(store: Any, group: int, *, again: bool = False) -> int:
    """Returns how many processes in a group sent no heartbeat for ``PS_HEARTBEAT_TIMEOUT`` s (default: 10).

    The scheduler tracks ranks and servers; ranks and servers track only the scheduler. All seem lost after a
    pause of the job or the machine, so it looks ``again`` when the next heartbeat is due.
    """
    count, seconds = ctypes.c_int(), int(os.environ.get("PS_HEARTBEAT_TIMEOUT") or _LOST_S)
    mxnet.base.check_call(
        mxnet.base._LIB.MXKVStoreGetNumDeadNode(store.handle, group, ctypes.byref(count), seconds)
    )
    if again or not count.value:
        return count.value
    time.sleep(_HEARTBEAT_S + 1)
    return lost_processes(store, group, again=True)


class GradientExchange:
    """Keeps the copies of the parameters on the devices of all processes identical.

    The servers of a distributed kvstore add up what they receive: each rank pushes, then pulls the sum. With
    ``dist_sync`` and ``dist_device_sync``, the sum covers all ranks, and the ranks update their parameters.
    With ``dist_async``, the servers update the parameters with the gradient of each rank as it arrives, and a
    rank pulls their current values: no rank waits for another, and a run cannot be reproduced.

    MXNet numbers ranks arbitrarily; here a rank has the number in its ``Rank``. If a rank stops responding,
    the others wait for it until ``Rank.timeout_s`` has passed or the scheduler ends, and then raise
    TrainingError. MXNet would still wait at process exit, so the process ends immediately, with exit code 1.
    ``kind`` is one of ``KVSTORES``; ``who`` names the model in messages.

    Raises:
        ConfigurationError: The rank's address is not a host and port.
        TrainingError: The scheduler, the servers or the other ranks cannot be reached.
    """

    def __init__(self, who: object, kind: str, rank: Rank) -> None:
        self._where = f"{who}: rank {rank.number} of {rank.count}" if rank.count > 1 else str(who)
        self._rank = rank
        self._distributed = kind.startswith("dist")
        self.on_servers = kind == "dist_async"
        self._lost = False
        self._next_key = 0
        self._samples_key = 0
        self._store: Any = None
        self._store = self._join(kind) if self._distributed else mxnet.kv.create(kind)

    def start(
        self, weights: Sequence[Sequence[Any]], others: Sequence[Sequence[Any]], server_optimizer: Any
    ) -> None:
        """Sets all copies to the values on the first device of rank 0.

        They have one array for each device. The ``server_optimizer`` is used only if ``on_servers``.
        """
        self._next_key = len(weights)
        if self.on_servers:
            if self._store.rank == 0:
                self._store.set_optimizer(server_optimizer)
            self._wait_for(self._store._barrier)
        for key, copies in enumerate(weights):
            if self._distributed and not self.on_servers:
                self._begin_alike(copies, key)  # the key is that of the gradients afterwards
                continue
            if self._distributed:
                self._begin_alike(copies, self._new_key())
            self._store.init(key, copies[0])
        for copies in others:
            if self._distributed:
                self._begin_alike(copies, self._new_key())
        if self._distributed and not self.on_servers:
            self._samples_key = self._new_key()
            self._store.init(self._samples_key, mxnet.nd.zeros((1,), dtype="float64"))
        self.wait()

    def add_up(self, gradients: Sequence[Sequence[Any]], samples: int) -> int:
        """Queues an in-place sum of the gradients over all devices and ranks; not used if ``on_servers``.

        Returns:
            The total number of samples in all ranks, including the ``samples`` of this rank.
        """
        total = None
        if self._distributed:
            total = mxnet.nd.full((1,), samples, dtype="float64")
            self._store.pushpull(self._samples_key, total, out=total)
        for key, copies in enumerate(gradients):
            self._store.pushpull(key, list(copies), out=list(copies), priority=-key)
        if total is None:
            return samples
        return int(self._wait_for(total.asscalar))

    def update_on_servers(self, weights: Sequence[Sequence[Any]], gradients: Sequence[Sequence[Any]]) -> None:
        """Queues the push of the gradients, then the pull of the parameters."""
        for key, (copies, arrays) in enumerate(zip(gradients, weights, strict=True)):
            self._store.pushpull(key, list(copies), out=list(arrays), priority=-key)

    def wait(self) -> None:
        """Waits for all queued work; raises TrainingError if another rank takes over ``Rank.timeout_s``."""
        self._wait_for(mxnet.nd.waitall)

    def gather(self, values: NDArray[np.int64]) -> NDArray[np.int64]:
        """Returns the values of all ranks, of shape (ranks, *shape); see ``Trainer.gather``."""
        if not self._distributed or not values.size:
            return np.stack([values] * self._rank.count)
        # float32 holds 16 of the 64 bits exactly
        words = np.ascontiguousarray(values).reshape(-1).view(np.uint16)
        table = np.zeros((self._rank.count, len(words)), np.float32)
        table[self._rank.number] = words
        summed = copied_to(mxnet.cpu(), table)
        self._sum(summed, self._new_key(), summed)
        everything: NDArray[np.int64] = summed.asnumpy().astype(np.uint16).view(np.int64)
        return everything.reshape(self._rank.count, *values.shape)

    def leave(self, *, failed: bool) -> None:
        """Leaves the kvstore; unless something failed, the ranks first wait for each other."""
        stores, self._store = [self._store], None
        if stores[0] is None or not self._distributed or self._lost:
            return
        if failed:
            mxnet.base.check_call(mxnet.base._LIB.MXKVStoreSetBarrierBeforeExit(stores[0].handle, 0))
        freeing = threading.Thread(target=stores.clear, daemon=True)
        freeing.start()
        freeing.join(self._rank.timeout_s)
        if freeing.is_alive():
            raise TrainingError(
                f"{self._where}: the other ranks did not leave within {self._rank.timeout_s:g} s"
            )

    def _join(self, kind: str) -> Any:
        """Joins the other ranks; MXNet reads the address from the environment when it creates the kvstore."""
        rank = self._rank
        variables = kvstore_environment("worker", rank.address, rank.count, rank.servers)
        until_s = time.monotonic() + rank.timeout_s
        where = (variables["DMLC_PS_ROOT_URI"], int(variables["DMLC_PS_ROOT_PORT"]))
        while True:  # MXNet would wait for the scheduler without end
            try:
                socket.create_connection(where, timeout=rank.timeout_s).close()
                break
            except OSError as error:
                if time.monotonic() >= until_s:
                    raise TrainingError(
                        f"{self._where}: found no scheduler of the kvstore at {rank.address} within "
                        f"{rank.timeout_s:g} s: {error.strerror or error}"
                    ) from error
            time.sleep(_RETRY_S)
        with environment(variables):
            return self._wait_for(lambda: mxnet.kv.create(kind))

    def _begin_alike(self, copies: Sequence[Any], key: int) -> None:
        first = copies[0]
        self._sum(first if self._rank.number == 0 else mxnet.nd.zeros_like(first), key, list(copies))

    def _sum(self, array: Any, key: int, out: Any) -> None:
        """Adds up an array over all ranks, using a key that no other call uses."""
        self._store.init(key, mxnet.nd.zeros_like(array))
        self._store.push(key, array)
        self.wait()
        self._wait_for(self._store._barrier)
        self._store.pull(key, out=out)
        self.wait()

    def _new_key(self) -> int:
        self._next_key += 1
        return self._next_key - 1

    def _wait_for(self, call: Callable[[], _Result]) -> _Result:
        """Runs a call that needs the other ranks, in a thread because MXNet's calls have no timeout."""
        if not self._distributed:
            return call()
        answer: futures.Future[_Result] = futures.Future()

        def run() -> None:
            try:
                answer.set_result(call())
            except Exception as error:  # noqa: BLE001 - raised again below
                answer.set_exception(error)

        left_s = self._rank.timeout_s  # a pause of the job counts as one interval
        threading.Thread(target=run, daemon=True).start()
        while not futures.wait([answer], min(_HEARTBEAT_S, left_s)).done:
            if (left_s := left_s - _HEARTBEAT_S) <= 0:
                raise self._abandoned(
                    f"the other ranks and the servers did not answer within {self._rank.timeout_s:g} s"
                )
            if self._store is not None and lost_processes(self._store, _SCHEDULER):
                raise self._abandoned(
                    "lost contact with the kvstore's scheduler, which ends when it loses any process"
                )
        return answer.result()

    def _abandoned(self, why: str) -> RankLostError:
        """Abandons a call in which MXNet waits forever; it would also wait when freed and at process exit."""
        self._lost = True
        atexit.register(_exit_at_once, self._store)
        return RankLostError(f"{self._where}: {why}")


def _exit_at_once(_store: Any) -> None:
    """Ends this process with exit code 1 because another is gone; keeps the kvstore until then."""
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(1)


if __name__ == "__main__":
    try:
        serve_kvstore()
    except InferometerError as error:
        sys.exit(str(error))
