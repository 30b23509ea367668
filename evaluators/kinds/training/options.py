"""The options of a training and of its data, and the length of a run.

A new option of a training is a field of ``TrainingOptions``, one of its data a field of ``TrainingData``.
Help shows the options, so that what takes long to import is imported where it is needed.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from inferometer.evaluators.jobs.options import (
    BENCH_BATCH_SIZE,
    BENCH_BATCHES,
    BENCH_PREFETCH,
    BENCH_WORKERS,
    COUNT,
    NOT_NEGATIVE,
    SEED,
    check_options,
    declared,
    further,
    values_of,
)
from inferometer.manifests.errors import ConfigurationError, suggestion

if TYPE_CHECKING:
    from inferometer.agent.artifacts.files import ArtifactCache
    from inferometer.evaluators.datasets.base import Dataset
    from inferometer.evaluators.loading.loader import DataOptions, LoaderOptions
    from inferometer.evaluators.loading.page_cache import CacheBefore
    from inferometer.manifests.catalog import Catalog

SYNTHETIC = "synthetic"
LOADERS = ("threads", "processes")
NUM_BATCHES: Mapping[str, Any] = {
    "help": "Measured batches.",
    "metavar": "N",
    "within": COUNT,
    "default_text": f"{BENCH_BATCHES}",
}
NUM_WARMUP_BATCHES: Mapping[str, Any] = {
    "help": "Batches before, unmeasured.",
    "metavar": "N",
    "within": NOT_NEGATIVE,
}
NUM_EPOCHS: Mapping[str, Any] = {
    "help": "Passes over the data, instead of --num_batches.",
    "metavar": "N",
    "within": COUNT,
}
"""The declarations of the length of a run, which loaders alone have too."""
_KEPT = ("shuffle", "workers", "prefetch", "drop_cache", "seed")
"""The options of data that evaluations keep under names of their own."""


def length_of(values: Mapping[str, Any]) -> dict[str, int | None]:
    """Returns ``num_batches`` and ``num_epochs``, one of which ends the run.

    Raises:
        ConfigurationError: Both are given.
    """
    batches, epochs = values.get("num_batches"), values.get("num_epochs")
    if epochs is not None and batches is not None:
        raise ConfigurationError("num_epochs and num_batches both end the run; give one of them")
    if epochs is None and batches is None:
        batches = BENCH_BATCHES
    return {"num_batches": batches, "num_epochs": epochs}


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingData:
    """The batches of a training, and how they are loaded.

    Attributes:
        path: The files of a dataset; with neither path nor name, the data is synthetic.
        name: The name of a dataset in its manifest.
        backend: The format of the files at ``path``; None finds it out.
        on_device: Whether one synthetic batch stays on the device, instead of a copy for each step.
        shuffle: Whether the order is drawn anew for each epoch.
        workers: The workers that read and preprocess.
        processes: Whether the workers are processes; else they are threads.
        prefetch: Batches that are loaded ahead.
        drop_cache: Whether the files are dropped from the page cache first.
        seed: The seed of the order, and of synthetic data.

    Raises:
        ConfigurationError: Two sources of data are named, or what synthetic data has not.
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
        front_default=BENCH_WORKERS,
    )
    processes: bool = False
    prefetch: int = declared(
        0,
        "Batches to load ahead.",
        "N",
        within=NOT_NEGATIVE,
        flags=("--prefetch", "--prefetch_buffer"),
        front_default=BENCH_PREFETCH,
    )
    drop_cache: bool = declared(False, "Drop the dataset from the page cache first.")
    seed: int = declared(0, "Seed of weights, of synthetic data and of the order.", "N", within=SEED)

    @classmethod
    def of(
        cls, values: Mapping[str, Any], path: Path | None, name: str | None, *, on_device: bool = False
    ) -> TrainingData:
        """Returns the data that the values of options describe, with ``data_backend`` and ``loader``.

        Raises:
            ConfigurationError: A value is not valid, or two contradict each other.
        """
        from inferometer.evaluators.datasets.opening import BACKENDS

        backend, loader = values.get("data_backend") or None, values.get("loader") or LOADERS[0]
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
        """Returns the options of the loader of one rank; synthetic data needs no workers."""
        from inferometer.evaluators.loading.loader import LoaderOptions

        options = LoaderOptions(batch_size, seed=self.seed, shuffle=self.shuffle, rank=rank, ranks=ranks)
        if self.is_synthetic:
            return options
        return replace(options, workers=self.workers, processes=self.processes, prefetch=self.prefetch)

    def kept(self, backend: str, cache: CacheBefore | None, **more: Any) -> DataOptions:
        """Returns what an evaluation keeps of the data.

        Args:
            backend: The format of the dataset; not used for synthetic data.
            cache: The state of the page cache before; None without files.
            more: Other fields of ``DataOptions``, also options of the request that loads.
        """
        from inferometer.evaluators.loading.loader import DataOptions

        others = further(self, _KEPT) | more.pop("further", {})
        if self.is_synthetic:
            place = "device" if self.on_device else "host"
            return DataOptions(SYNTHETIC, place, seed=self.seed, further=others)
        return DataOptions(
            backend=backend,
            workers=self.workers,
            processes=self.processes,
            prefetch=self.prefetch,
            shuffle=self.shuffle,
            seed=self.seed,
            cached_before=None if cache is None else cache.share,
            dropped=cache is not None and cache.dropped,
            further=others,
            **more,
        )

    def open(self, catalog: Catalog, cache: ArtifactCache | None) -> Dataset:
        """Opens the dataset.

        Raises:
            UnknownDatasetError: The catalogue has none of that name.
            DatasetError: It cannot be opened.
        """
        from inferometer.evaluators.datasets.opening import open_dataset, open_path

        if self.name is not None:
            return open_dataset(catalog.find_dataset(self.name), cache)
        if self.path is None:
            raise ConfigurationError("synthetic data has no dataset")
        return open_path(self.path, "vision", self.backend)


@dataclass(frozen=True, slots=True)
class TrainingOptions:
    """The options of a training run.

    Attributes:
        batch_size: Samples in a batch of one device; the last batch of an epoch may hold fewer.
        num_batches: Measured steps; None means that ``num_epochs`` ends the run.
        num_warmup_batches: Steps before, which train and are not measured.
        num_epochs: Passes over the data, the warm-up included; None means that ``num_batches`` ends the run.
        loss: The loss, as ``manifests.schema.Loss`` has it.
        optimizer: The optimizer's name.
        learning_rate: Its learning rate.
        momentum: Its momentum.
        weight_decay: Its L2 penalty.
        precision: The type of the numbers that the model computes with.
        api: The API of the framework, where it has several.
        devices: Devices of one rank.
        ranks: Processes that train together.
        communication: How gradients are added up over devices and ranks; empty for one device.
        parts_every: The interval, in steps, at which the parts of a step are timed; 0 for never.
        cudnn_benchmark: Whether cuDNN times its algorithms; None for the framework's default.
    """

    batch_size: int = declared(BENCH_BATCH_SIZE, "Samples per batch and device.", "N", within=COUNT)
    num_batches: int | None = declared(None, **NUM_BATCHES)
    num_warmup_batches: int = declared(1, **NUM_WARMUP_BATCHES)
    num_epochs: int | None = declared(None, **NUM_EPOCHS)
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
        """The samples of one full step over all devices and ranks."""
        return self.batch_size * self.devices * self.ranks
