"""Turns the options of training into a request: its length, the ranks, and how gradients are summed."""

from __future__ import annotations

from inferometer.agent.hardware.device import Device
from inferometer.agent.inference.predictor import Precision
from inferometer.client.bench.parsing import BenchSystem, Values, read_data, read_length
from inferometer.evaluators.jobs.defaults import MXNET, PYTORCH
from inferometer.evaluators.kinds.training.communication import read_communication
from inferometer.evaluators.kinds.training.measurement import TrainingOptions
from inferometer.evaluators.kinds.training.request import TrainingRequest
from inferometer.evaluators.training.ranks import RankRequest
from inferometer.manifests.errors import ConfigurationError


def read_training(values: Values, system: BenchSystem) -> tuple[TrainingRequest, RankRequest]:
    """Reads the options of training.

    Raises:
        ConfigurationError: Two options contradict each other, or a number is out of range.
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
    """Returns how many processes train together, and which of them this one is."""
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
        # torch.distributed.launch passes the local rank as an option, in addition to the environment
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
