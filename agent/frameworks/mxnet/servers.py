"""The scheduler and the servers that a distributed MXNet kvstore needs in addition to its ranks.

MXNet is imported only in their processes.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from functools import partial

from inferometer.agent.training.trainer import Companion, Rank


def companions(communication: str, rank: Rank) -> Sequence[Companion]:
    """Returns the processes to run beside a rank: the scheduler at rank 0, and servers spread over all ranks.

    Only types of kvstore for several processes have servers.
    """
    if not (communication.startswith("dist") or (not communication and rank.count > 1)):
        return ()
    servers = [
        Companion(f"server {number} of {rank.servers} of the kvstore", partial(_serve, "server", rank))
        for number in range(rank.number, rank.servers, rank.count)
    ]
    if rank.number:
        return servers
    return [Companion("the scheduler of the kvstore", partial(_serve, "scheduler", rank)), *servers]


def _serve(role: str, rank: Rank) -> None:
    from inferometer.agent.frameworks.mxnet.kvstore import kvstore_environment, serve_kvstore

    os.environ.update(kvstore_environment(role, rank.address, rank.count, rank.servers))
    serve_kvstore()
