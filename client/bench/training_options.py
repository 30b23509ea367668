"""Turns the options of training into a request: what ends it, the ranks, and how gradients are added up."""

from __future__ import annotations

import os

from inferometer.agent.hardware.device import Device
from inferometer.agent.inference.predictor import Precision
from inferometer.client.bench.parsing import MXNET, PYTORCH, BenchSystem, Values, read_data, read_length
from inferometer.evaluators.kinds.training.measurement import TrainingOptions
from inferometer.evaluators.kinds.training.request import TrainingRequest
from inferometer.evaluators.training.ranks import RankRequest
from inferometer.manifests.errors import ConfigurationError

_DISTRIBUTED = ("dist_sync", "dist_device_sync", "dist_async")


def read_training(values: Values, system: BenchSystem) -> tuple[TrainingRequest, RankRequest]:
    """Reads the options of training.

    Raises:
        ConfigurationError: Two contradict each other, or a number is out of range.
    """
    ranks = _ranks(values, system)
    per_rank = _devices_of_a_rank(system, ranks)
    batches, epochs = read_length(values)
    options = TrainingOptions(
        batch_size=values["batch_size"],
        num_batches=batches,
        num_warmup_batches=values["num_warmup_batches"],
        num_epochs=epochs,
        optimizer=values["optimizer"].lower(),
        learning_rate=values["lr"],
        momentum=values["momentum"],
        weight_decay=values["weight_decay"],
        precision=(system.request.session.precision or Precision.FLOAT32).value,
        api=_api(values, system),
        devices=len(per_rank),
        communication=read_communication(values, system.framework, system.gpus, ranks, len(per_rank)),
        parts_every=values["parts_every"],
        cudnn_benchmark=values["cudnn_benchmark"],
    )
    request = TrainingRequest(
        system=system.request,
        data=read_data(values),
        options=options,
        devices=per_rank,
        validation=values["validation_dataset"],
        save_path=values["save_weights"],
        fail_on_error=values["fail_on_error"],
        trace_level=values["trace_level"],
        tracer_address=values["tracer_address"],
        trace_url=values["trace_url"],
    )
    return request, ranks


def _ranks(values: Values, system: BenchSystem) -> RankRequest:
    """How many processes train together."""
    count, workers = values["num_ranks"], values["kv_num_workers"]
    if count is not None and workers is not None and count != workers:
        raise ConfigurationError(f"num_ranks is {count} and kv_num_workers {workers}; give one of them")
    count = workers if count is None else count
    if count is None and system.framework == PYTORCH and system.gpus > 1:
        count = system.gpus
    rank = values["rank"]
    return RankRequest(
        num_ranks=count,
        rank=rank,
        rank_address=values["rank_address"],
        # torch.distributed.launch gives it beside the environment, which has it too
        local_rank=values["local_rank"] if rank is not None else 0,
        num_servers=values["kv_num_servers"],
    )


def _devices_of_a_rank(system: BenchSystem, ranks: RankRequest) -> tuple[Device, ...]:
    if system.framework != PYTORCH or system.gpus < 2:
        return system.devices
    if [device.index for device in system.devices] != list(range(system.gpus)):
        raise ConfigurationError(
            "PyTorch trains with a process for each GPU from 0 on; choose GPUs by CUDA_VISIBLE_DEVICES"
        )
    if ranks.rank is None and ranks.num_ranks != system.gpus:
        raise ConfigurationError(
            f"num_gpus is {system.gpus} and num_ranks {ranks.num_ranks}; PyTorch has one process for each GPU"
        )
    return system.devices[:1]


def _api(values: Values, system: BenchSystem) -> str:
    api = values["api"]
    if api is None:
        return ""
    if system.framework != MXNET:
        raise ConfigurationError(f"api {api} is one of MXNet's; the framework is {system.framework}")
    return str(api).lower()


def read_communication(values: Values, framework: str, gpus: int, ranks: RankRequest, devices: int) -> str:
    """Reads how gradients are added up; empty where the trainer decides, or nothing is to be added.

    Args:
        values: ``kv_store``, ``dist_backend`` and ``kv_num_servers``.
        framework: The name of the framework, in small letters.
        gpus: The number of GPUs.
        ranks: The processes that train together.
        devices: The devices of one of them.

    Raises:
        ConfigurationError: It is another framework's, or not one for so many processes.
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
    """Returns how many processes train together, as far as the options or a launcher tell."""
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
