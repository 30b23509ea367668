"""Requests for training: the model, its data, how it is trained, and the ranks that train together.

To add an option, add a field to ``TrainingOptions`` or, for options of the data, to ``TrainingData``. Because
help shows the options, slow imports happen only where they are needed.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from inferometer.agent.hardware.environment import CPU, Device
from inferometer.agent.tracing.recorder import TraceLevel
from inferometer.evaluators.jobs import options as defaults
from inferometer.evaluators.jobs.options import (
    COUNT,
    MXNET,
    NOT_NEGATIVE,
    SEED,
    check_options,
    check_value,
    declared,
    further,
    options_of,
    values_of,
)
from inferometer.evaluators.jobs.request import TraceOptions, default_system
from inferometer.evaluators.loading.options import DataOptions
from inferometer.manifests.errors import ConfigurationError, suggestion

if TYPE_CHECKING:
    from inferometer.agent.training.trainer import OptimizerOptions, Rank
    from inferometer.evaluators.datasets.base import Dataset
    from inferometer.evaluators.jobs.job import JobResources, SystemRequest
    from inferometer.evaluators.loading.options import LoaderOptions
    from inferometer.evaluators.loading.page_cache import CachedShare

SYNTHETIC = "synthetic"
LOADERS = ("threads", "processes")
MOST_RANKS = 1024
_LOADED = ("workers", "processes", "prefetch", "shuffle", "seed")
_DISTRIBUTED = ("dist_sync", "dist_device_sync", "dist_async")


def length_of(values: Mapping[str, Any]) -> dict[str, int | None]:
    """Returns ``num_batches`` and ``num_epochs``, exactly one of which is set and ends the run.

    Raises:
        ConfigurationError: Both are given.
    """
    batches, epochs = values.get("num_batches"), values.get("num_epochs")
    if epochs is not None and batches is not None:
        raise ConfigurationError("num_epochs and num_batches both end the run; give one of them")
    if epochs is None and batches is None:
        batches = defaults.BENCH_BATCHES
    return {"num_batches": batches, "num_epochs": epochs}


def check_length(length: object) -> None:
    """Checks the integers in the options of a training run, or in the length of another run.

    Raises:
        ConfigurationError: An option has the wrong type, or is out of range.
    """
    from inferometer.evaluators.loading.options import MOST_SAMPLES

    for each in options_of(TrainingOptions):
        value = getattr(length, each.name, None)
        if value is not None and each.kind == "int":
            check_value(each.name, value, each.kind, each.declared.within)
            if value > MOST_SAMPLES:
                raise ConfigurationError(f"{each.name} is {value}; at most {MOST_SAMPLES}")


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingData:
    """The batches of a training run, and how they are loaded.

    Attributes:
        path: The files of a dataset; if neither path nor name is given, the data is synthetic.
        name: The name of a dataset in its manifest.
        backend: The format of the files at ``path``; None detects it.
        on_device: Whether one synthetic batch stays on the device instead of being copied for each step.
        processes: Whether the workers are processes; otherwise they are threads.

    Raises:
        ConfigurationError: Two sources of data are given, or an option that synthetic data does not support.
    """

    path: Path | None = None
    name: str | None = None
    backend: str | None = None
    on_device: bool = False
    shuffle: bool = declared(False, "Draw the order anew for each epoch.", flags=("--data_shuffle",))
    workers: int = declared(
        0,
        "Workers that load the dataset; 0 loads in the thread of the steps.",
        "N",
        within=NOT_NEGATIVE,
        flags=("--num_loader_threads", "--num_workers", "--preprocess_threads"),
        front_default=defaults.BENCH_WORKERS,
    )
    processes: bool = False
    prefetch: int = declared(
        0,
        "Batches to load ahead.",
        "N",
        within=NOT_NEGATIVE,
        flags=("--prefetch", "--prefetch_buffer"),
        front_default=defaults.BENCH_PREFETCH,
    )
    drop_cache: bool = declared(False, "Drop the dataset from the page cache first.")
    seed: int = declared(0, "Seed of weights, of synthetic data and of the order.", "N", within=SEED)

    @classmethod
    def of(
        cls, values: Mapping[str, Any], path: Path | None, name: str | None, *, on_device: bool = False
    ) -> TrainingData:
        """Returns the data described by option values, which include ``data_backend`` and ``loader``.

        Raises:
            ConfigurationError: A value is not valid, or two values contradict each other.
        """
        from inferometer.evaluators.datasets.opening import BACKENDS

        backend, loader = values.get("data_backend") or None, str(values.get("loader") or LOADERS[0])
        if backend is not None and backend not in BACKENDS:
            raise ConfigurationError(f'unknown data_backend "{backend}"; {suggestion(backend, BACKENDS)}')
        if loader.lower() not in LOADERS:
            raise ConfigurationError(f'unknown loader "{loader}"; give {" or ".join(LOADERS)}')
        options = values_of(cls, {**values})
        workers = bool(options["workers"])
        return cls(
            path=path,
            name=name,
            backend=backend if path is not None else None,
            on_device=on_device,
            processes=workers and loader.lower() == LOADERS[1],
            **options | ({} if workers else {"prefetch": 0}),
        )

    def __post_init__(self) -> None:
        check_options(self)
        if self.path and self.name:
            raise ConfigurationError("data_dir and dataset_name both name a dataset; give one of them")
        if self.on_device and not self.is_synthetic:
            raise ConfigurationError(
                "data on the device is one synthetic batch; leave out data_dir and dataset_name"
            )
        if self.is_synthetic and self.backend not in (None, SYNTHETIC):
            raise ConfigurationError(
                f"data_backend {self.backend} needs data_dir, the folder or the file of the dataset"
            )
        if self.is_synthetic and self.drop_cache:
            raise ConfigurationError("drop_cache is for files; synthetic data is in memory")
        self.loader_options(1)  # whose checks are those of the workers

    @property
    def is_synthetic(self) -> bool:
        """Whether no dataset is named."""
        return self.path is None and self.name is None

    def loader_options(self, batch_size: int, rank: int = 0, ranks: int = 1) -> LoaderOptions:
        """Returns the options for the loader of one rank; synthetic data needs no workers."""
        from inferometer.evaluators.loading.options import LoaderOptions

        options = LoaderOptions(batch_size, seed=self.seed, shuffle=self.shuffle, rank=rank, ranks=ranks)
        if self.is_synthetic:
            return options
        return replace(options, workers=self.workers, processes=self.processes, prefetch=self.prefetch)

    def kept(self, backend: str, cache: CachedShare | None, **more: Any) -> DataOptions:
        """Returns what an evaluation stores about the data, with its format and the prior page cache."""
        others = further(self, (*_LOADED, "drop_cache")) | more.pop("further", {})
        if self.is_synthetic:
            place = "device" if self.on_device else "host"
            return DataOptions(SYNTHETIC, place, seed=self.seed, further=others)
        return DataOptions(
            backend,
            cached_before=None if cache is None else cache.share,
            dropped=cache is not None and cache.dropped,
            further=others,
            **{name: getattr(self, name) for name in _LOADED},
            **more,
        )

    def open(self, resources: JobResources) -> Dataset:
        """Opens the dataset.

        Raises:
            UnknownDatasetError: The catalogue has no dataset of that name.
            DatasetError: It cannot be opened.
        """
        from inferometer.evaluators.datasets.opening import open_dataset, open_path

        if self.name is not None:
            return open_dataset(resources.catalog.find_dataset(self.name), resources.cache)
        if self.path is None:
            raise ConfigurationError("synthetic data has no dataset")
        return open_path(self.path, "vision", self.backend)


@dataclass(frozen=True, slots=True)
class TrainingOptions:
    """The options of a training run.

    Attributes:
        batch_size: The number of samples in a batch on one device; an epoch's last batch may contain fewer.
        num_batches: The number of measured steps; None means that ``num_epochs`` ends the run.
        num_epochs: The number of passes over the data, warm-up included; None: ``num_batches`` ends the run.
        loss: The loss, as in ``manifests.schema.Loss``.
        precision: The numeric type used by the model.
        devices: The number of devices per rank.
        ranks: The number of processes that train together.
        communication: How gradients are added up over devices and ranks; empty for one device.
        cudnn_benchmark: Whether cuDNN chooses its algorithms by timing; None for the framework's default.
    """

    batch_size: int = declared(defaults.BENCH_BATCH_SIZE, "Samples per batch and device.", "N", within=COUNT)
    num_batches: int | None = declared(
        None, "Measured batches.", "N", within=COUNT, default_text=f"{defaults.BENCH_BATCHES}"
    )
    num_warmup_batches: int = declared(1, "Batches before, unmeasured.", "N", within=NOT_NEGATIVE)
    num_epochs: int | None = declared(
        None, "Passes over the data, instead of --num_batches.", "N", within=COUNT
    )
    loss: str = "cross_entropy"
    optimizer: str = declared(
        "sgd", "Optimizer.", choices=("sgd", "nag", "adam", "adamw", "rmsprop"), ignores_case=True
    )
    learning_rate: float = declared(
        0.01, "Learning rate.", "X", within=NOT_NEGATIVE, flags=("--lr", "--learning_rate")
    )
    momentum: float = declared(0.9, "Momentum of SGD, NAG and RMSProp.", "X", within=NOT_NEGATIVE)
    weight_decay: float = declared(1e-4, "L2 penalty.", "X", within=NOT_NEGATIVE)
    precision: str = "float32"
    api: str = declared(
        "", "API of MXNet.", choices=("gluon", "module"), ignores_case=True, front_default=None
    )
    devices: int = 1
    ranks: int = 1
    communication: str = ""
    parts_every: int = declared(
        10,
        "Time forward, backward, communication and update in every Nth step; 0 for none.",
        "N",
        within=NOT_NEGATIVE,
    )
    cudnn_benchmark: bool | None = None

    @property
    def effective_batch(self) -> int:
        """The number of samples in one full step over all devices and ranks."""
        return self.batch_size * self.devices * self.ranks


@dataclass(frozen=True, slots=True)
class RankRequest:
    """The number of processes that train together, and the place of this process among them.

    Attributes:
        rank: The number of this process, from 0; None if this process starts all ranks on its host.
        rank_address: The host and port, on the host of rank 0, at which the ranks meet; needs ``rank``.

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
        """Returns the rank of this process; None if it is not a rank but starts the ranks, if there are any.

        The fields take precedence over a launcher's environment.

        Raises:
            ConfigurationError: The fields contradict the environment, or the environment is not valid.
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
        options: How it is trained and for how long. The number of ranks is replaced by the actual one.
        devices: The devices of one rank. If each rank has one GPU, that of the first rank.
        trace_level: How deeply rank 0 is traced.

    Raises:
        ConfigurationError: An option is out of range, or the model runs elsewhere.
    """

    system: SystemRequest = field(default_factory=default_system)
    data: TrainingData = field(default_factory=TrainingData)
    options: TrainingOptions
    devices: tuple[Device, ...] = (CPU,)
    validation: str | None = declared(
        None, "Dataset for top-1 and top-5 of the trained model.", "NAME", flags=("--validation_dataset",)
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
        """Returns the request described by option values.

        Args:
            system: The model.
            framework: The name of its framework, in lower case.
            values: The values by field, with ``kv_store``, ``dist_backend`` and ``trace_level``.
            data: The batches.
            ranks: The processes that train together.
            devices: The devices of one rank.

        Raises:
            ConfigurationError: A value is not valid, or two values contradict each other.
        """
        session, chosen = system.session, values_of(TrainingOptions, {**values, **length_of(values)})
        if (api := chosen.get("api")) and framework != MXNET:
            raise ConfigurationError(f"api {api} is one of MXNet's, but the framework is {framework}")
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
        options = self.options
        check_options(self)
        check_options(options)
        check_length(options)
        if options.num_batches is None and options.num_epochs is None:
            raise ConfigurationError("neither num_batches nor num_epochs ends the training; give one of them")
        if self.system.agents:
            raise ConfigurationError("a model is trained in this process; leave out the agent")
        if self.system.given is not None:
            raise ConfigurationError("a model without a manifest cannot be trained; name one defined in code")
        _ = self.optimizer

    @property
    def optimizer(self) -> OptimizerOptions:
        """The options of the trainer's optimizer."""
        from inferometer.agent.training.trainer import OptimizerOptions

        options = self.options
        return OptimizerOptions(
            options.optimizer, options.learning_rate, options.momentum, options.weight_decay
        )


def read_communication(
    values: Mapping[str, Any], framework: str, devices: tuple[Device, ...], ranks: RankRequest
) -> str:
    """Returns how gradients are summed; empty if the trainer decides, or there is nothing to sum.

    Args:
        values: ``kv_store``, ``dist_backend`` and ``num_servers``.
        framework: The name of the framework, in lower case.
        devices: The devices of each process.
        ranks: The processes that train together.

    Raises:
        ConfigurationError: An option belongs to another framework, or does not support the number of
            processes.
    """
    store, backend = values.get("kv_store"), values.get("dist_backend")
    rank = ranks.of_this_process(os.environ)
    count = rank.count if rank is not None else ranks.num_ranks or 1
    if framework == MXNET:
        if backend is not None:
            raise ConfigurationError(f"dist_backend {backend} is for PyTorch; use kv_store with MXNet")
        return _store(store, count, len(devices))
    if store is not None:
        raise ConfigurationError(
            f"kv_store {store} is MXNet's, but the framework is {framework}; use dist_backend"
        )
    if values.get("num_servers") is not None:
        raise ConfigurationError("kv_num_servers is for MXNet's kvstore; PyTorch has no servers")
    if backend == "mpi":
        raise ConfigurationError("dist_backend mpi is not in PyTorch's packages; use gloo, or nccl on GPUs")
    if backend is None and count > 1:
        return "nccl" if devices[0].is_gpu else "gloo"
    return backend.lower() if backend else ""


def _store(name: str | None, ranks: int, devices: int) -> str:
    if name is None:
        return "dist_sync" if ranks > 1 else "device" if devices > 1 else ""
    store = name.lower()
    if store == "horovod":
        raise ConfigurationError(
            "kv_store horovod needs Horovod, which is not supported; use dist_device_sync"
        )
    if ranks > 1 and store not in _DISTRIBUTED:
        raise ConfigurationError(
            f"kv_store {store} is for one process, but there are {ranks} ranks; use {', '.join(_DISTRIBUTED)}"
        )
    return store
