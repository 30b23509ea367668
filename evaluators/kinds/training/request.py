"""Requests of training: the model, its data, how it is trained, and the ranks that train together.

Help shows their options, so that what takes long to import is imported where it is needed.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from inferometer.agent.hardware.environment import CPU, Device
from inferometer.agent.tracing.recorder import TraceLevel
from inferometer.evaluators.jobs.options import COUNT, MXNET, NOT_NEGATIVE, check_options, declared, values_of
from inferometer.evaluators.jobs.request import TraceOptions, default_system
from inferometer.evaluators.kinds.training.options import TrainingData, TrainingOptions, length_of
from inferometer.manifests.errors import ConfigurationError, OutputError

if TYPE_CHECKING:
    from inferometer.agent.training.trainer import OptimizerOptions, Rank
    from inferometer.evaluators.jobs.job import SystemRequest

MOST_RANKS = 1024
_PROBED_BYTES = 4096
"""The bytes written to the path of the weights before a training, so that a full disk is detected in time."""
_DISTRIBUTED = ("dist_sync", "dist_device_sync", "dist_async")


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

    num_ranks: int | None = declared(
        None,
        "Processes that train together.",
        "N",
        within=COUNT,
        default_text="those of torchrun or srun; in PyTorch one per GPU",
    )
    rank: int | None = declared(
        None, "Number of this process among those of several hosts.", "N", within=NOT_NEGATIVE
    )
    rank_address: str = declared("", "Where the ranks of several hosts meet.", "HOST:PORT")
    local_rank: int = declared(0, "Number of this process on its host.", "N", within=NOT_NEGATIVE)
    num_servers: int | None = declared(
        None,
        "Servers of a kvstore that is dist_….",
        "N",
        within=COUNT,
        default_text="1",
        flags=("--kv_num_servers",),
    )

    def __post_init__(self) -> None:
        for name, count in (("num_ranks", self.num_ranks), ("num_servers", self.num_servers)):
            if count is not None and not 1 <= count <= MOST_RANKS:
                raise ConfigurationError(f"{name} is {count}; allowed: 1 to {MOST_RANKS}")
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
        from inferometer.agent.training.rank_environment import rank_of_environment
        from inferometer.agent.training.trainer import Rank

        if self.rank is not None and self.num_ranks is not None:
            return Rank(self.rank, self.num_ranks, self.local_rank, self.rank_address, self.local_rank + 1)
        found = rank_of_environment(environ)
        if found is not None and self.num_ranks not in (None, found.count):
            raise ConfigurationError(
                f"num_ranks is {self.num_ranks}, but a launcher has started this process as {found}; "
                "leave num_ranks out"
            )
        return found


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingRequest(TraceOptions):
    """A model to train, on the devices of each of its ranks.

    Attributes:
        system: The model, its weights, its seed and the threads; it runs in this process.
        data: The batches.
        options: How it is trained and for how long. The number of ranks is that of those that run.
        devices: The devices of one rank. Where ranks have a GPU each, that of the first one.
        validation: The name of the dataset that the trained model classifies; None for none.
        save_path: A new file for the trained weights; None keeps none.
        fail_on_error: Whether the first sample that fails ends the training.
        trace_level: How deep rank 0 is traced.

    Raises:
        ConfigurationError: An option is out of range, or the model runs elsewhere.
    """

    system: SystemRequest = field(default_factory=default_system)
    data: TrainingData = field(default_factory=TrainingData)
    options: TrainingOptions
    devices: tuple[Device, ...] = (CPU,)
    validation: str | None = declared(
        None,
        "Dataset for top-1 and top-5 of the trained model.",
        "NAME",
        flags=("--validation_dataset",),
    )
    save_path: Path | None = declared(
        None, "New file for the trained weights.", "FILE", flags=("--save_weights",)
    )
    fail_on_error: bool = declared(False, "Stop at the first input that fails.")
    trace_level: TraceLevel = TraceLevel.APPLICATION_TRACE

    @classmethod
    def of(
        cls,
        system: SystemRequest,
        framework: str,
        values: Mapping[str, Any],
        data: TrainingData,
        ranks: RankRequest,
        devices: tuple[Device, ...],
    ) -> TrainingRequest:
        """Returns the request that the values of options describe.

        Args:
            system: The model.
            framework: The name of its framework, in small letters.
            values: The values by field, with ``kv_store``, ``dist_backend`` and ``trace_level``.
            data: The batches.
            ranks: The processes that train together.
            devices: The devices of one rank.

        Raises:
            ConfigurationError: A value is not valid, or two contradict each other.
        """
        session, chosen = system.session, values_of(TrainingOptions, {**values, **length_of(values)})
        if (api := chosen.get("api")) and framework != MXNET:
            raise ConfigurationError(f"api {api} is one of MXNet's; the framework is {framework}")
        options = TrainingOptions(
            **chosen,
            devices=len(devices),
            communication=read_communication(values, framework, devices, ranks),
            cudnn_benchmark=session.cudnn_benchmark,
        )
        if session.precision is not None:
            options = replace(options, precision=session.precision.value)
        return cls(
            system=system,
            data=data,
            options=options,
            devices=devices,
            trace_level=values["trace_level"],
            **values_of(cls, {**values}),
        )

    def __post_init__(self) -> None:
        from inferometer.evaluators.loading.loader import MOST_SAMPLES

        options = self.options
        check_options(self)
        check_options(options)
        for name in ("num_batches", "num_warmup_batches", "num_epochs", "parts_every"):
            if (getattr(options, name) or 0) > MOST_SAMPLES:
                raise ConfigurationError(f"{name} is {getattr(options, name)}; at most {MOST_SAMPLES}")
        self.data.loader_options(options.batch_size)  # whose checks are those of the batch
        if options.num_batches is None and options.num_epochs is None:
            raise ConfigurationError("neither num_batches nor num_epochs ends the training; give one of them")
        if self.system.agents:
            raise ConfigurationError("a model is trained in this process; leave out the agent")
        if self.system.given is not None:
            raise ConfigurationError("a model without a manifest cannot be trained; give one in code")
        _ = self.optimizer

    @property
    def optimizer(self) -> OptimizerOptions:
        """The optimizer of the trainer."""
        from inferometer.agent.training.trainer import OptimizerOptions

        options = self.options
        return OptimizerOptions(
            options.optimizer, options.learning_rate, options.momentum, options.weight_decay
        )

    def check_save_path(self) -> None:
        """Checks that the weights can be saved, before anything is trained.

        Raises:
            OutputError: The file exists, or its folder does not, or no file can be made there.
        """
        path = self.save_path
        if path is None:
            return
        if path.exists():
            raise OutputError(f"{path}: exists already; name another file for the weights")
        if not path.absolute().parent.is_dir():
            raise OutputError(f"{path}: the folder {path.absolute().parent} does not exist")
        try:
            with tempfile.TemporaryFile(dir=path.absolute().parent) as file:
                file.write(b"\0" * _PROBED_BYTES)
        except OSError as error:
            raise OutputError(f"{path}: cannot be written: {error.strerror or error}") from error


def read_communication(
    values: Mapping[str, Any], framework: str, devices: tuple[Device, ...], ranks: RankRequest
) -> str:
    """Reads how gradients are added up; empty if the trainer decides, or nothing is to be added.

    Args:
        values: ``kv_store``, ``dist_backend`` and ``num_servers``.
        framework: The name of the framework, in small letters.
        devices: The devices of one of the processes.
        ranks: The processes that train together.

    Raises:
        ConfigurationError: The option belongs to another framework, or does not support the number of
            processes.
    """
    store, backend = values.get("kv_store"), values.get("dist_backend")
    if framework == MXNET:
        if backend is not None:
            raise ConfigurationError(f"dist_backend {backend} is PyTorch's; MXNet takes kv_store")
        return _store(store.lower() if store else None, ranks, len(devices))
    if store is not None:
        raise ConfigurationError(
            f"kv_store {store} is MXNet's, and the framework is {framework}; use dist_backend"
        )
    if values.get("num_servers") is not None:
        raise ConfigurationError("kv_num_servers is for MXNet's kvstore; PyTorch has no servers")
    if backend == "mpi":
        raise ConfigurationError("dist_backend mpi is not in PyTorch's packages; use gloo, or nccl on GPUs")
    if backend is None and rank_count(ranks) > 1:
        return "nccl" if devices[0].is_gpu else "gloo"
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
