"""How gradients are added up over devices and ranks."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

from inferometer.evaluators.jobs.defaults import MXNET
from inferometer.evaluators.training.ranks import RankRequest
from inferometer.manifests.errors import ConfigurationError

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
