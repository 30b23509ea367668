"""Requests of training: the model, its data, and how it is trained."""

from __future__ import annotations

import tempfile
from dataclasses import dataclass, replace
from pathlib import Path

from inferometer.agent.artifacts.files import ArtifactCache
from inferometer.agent.hardware.environment import CPU, Device
from inferometer.agent.tracing.recorder import TraceLevel
from inferometer.agent.training.trainer import OptimizerOptions
from inferometer.evaluators.datasets.base import Dataset
from inferometer.evaluators.datasets.opening import open_dataset, open_path
from inferometer.evaluators.jobs.job import SystemRequest
from inferometer.evaluators.kinds.training.measurement import TrainingOptions
from inferometer.evaluators.loading.loader import MOST_SAMPLES, LoaderOptions
from inferometer.manifests.catalog import Catalog
from inferometer.manifests.errors import ConfigurationError, OutputError

SYNTHETIC = "synthetic"
EPOCH_BATCHES = 100
"""The batches of an epoch of synthetic data, if ``num_batches`` does not say how many are needed."""

_PROBED_BYTES = 4096
"""The bytes written to the path of the weights before a training, so that a full disk is detected in time."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingData:
    """The batches of a training, and how they are loaded.

    Attributes:
        path: The files of a dataset; with neither path nor name, the data is synthetic.
        name: The name of a dataset in its manifest.
        backend: The format of the files at ``path``; None finds it out.
        on_device: Whether one synthetic batch stays on the device, instead of a copy for each step.
        workers: The workers that read and preprocess.
        processes: Whether the workers are processes; else they are threads.
        prefetch: Batches that are loaded ahead.
        shuffle: Whether the order is drawn anew for each epoch.
        seed: The seed of that order, and of synthetic data.
        drop_cache: Whether the files are dropped from the page cache first.

    Raises:
        ConfigurationError: Two sources of data are named, or what synthetic data has not.
    """

    path: Path | None = None
    name: str | None = None
    backend: str | None = None
    on_device: bool = False
    workers: int = 0
    processes: bool = False
    prefetch: int = 0
    shuffle: bool = False
    seed: int = 0
    drop_cache: bool = False

    def __post_init__(self) -> None:
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
        options = LoaderOptions(batch_size, seed=self.seed, shuffle=self.shuffle, rank=rank, ranks=ranks)
        if self.is_synthetic:
            return options
        return replace(options, workers=self.workers, processes=self.processes, prefetch=self.prefetch)

    def open(self, catalog: Catalog, cache: ArtifactCache | None) -> Dataset:
        """Opens the dataset.

        Raises:
            UnknownDatasetError: The catalogue has none of that name.
            DatasetError: It cannot be opened.
        """
        if self.name is not None:
            return open_dataset(catalog.find_dataset(self.name), cache)
        if self.path is None:
            raise ConfigurationError("synthetic data has no dataset")
        return open_path(self.path, "vision", self.backend)


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingRequest:
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
        tracer_address: The collector that the spans are sent to; None for none.
        trace_url: Where a person finds the trace; as in ``EvaluationRequest``.

    Raises:
        ConfigurationError: An option is out of range, or the model runs elsewhere.
    """

    system: SystemRequest = SystemRequest()  # noqa: RUF009 - frozen
    data: TrainingData = TrainingData()
    options: TrainingOptions
    devices: tuple[Device, ...] = (CPU,)
    validation: str | None = None
    save_path: Path | None = None
    fail_on_error: bool = False
    trace_level: TraceLevel = TraceLevel.APPLICATION_TRACE
    tracer_address: str | None = None
    trace_url: str | None = None

    def __post_init__(self) -> None:
        options = self.options
        least = {"batch_size": 1, "num_warmup_batches": 0, "parts_every": 0}
        for name, lowest in least.items():
            if getattr(options, name) < lowest:
                raise ConfigurationError(f"{name} is {getattr(options, name)}; it must be at least {lowest}")
        for name in ("num_batches", "num_epochs"):
            value = getattr(options, name)
            if value is not None and value < 1:
                raise ConfigurationError(f"{name} is {value}; it must be at least 1")
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
