"""What a command that evaluates is asked for: the options of the command line, and what they mean."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from agent.artifact_cache import ArtifactCache
from agent.device import CPU, Device, DeviceKind
from agent.predictor import Weights
from agent.session import SessionOptions
from agent.trace_level import TraceLevel
from evaluators.datasets.base import Dataset
from evaluators.datasets.opening import open_dataset, open_path
from evaluators.datasets.urls import UrlsDataset
from evaluators.evaluation import EvaluationOptions
from manifests.catalog import Catalog
from manifests.errors import ConfigurationError

TOP_CLASSES = 5
_DISTURBING = (TraceLevel.MODEL_TRACE, TraceLevel.FRAMEWORK_TRACE, TraceLevel.SYSTEM_LIBRARY_TRACE)
"""Levels of which each takes times that those below it would change."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EvaluationRequest(ABC):
    """The options that every evaluation has, under their names on the command line."""

    show_inputs: ClassVar[bool]
    """Whether what the single inputs gave is printed."""

    model_name: str
    model_version: str | None
    framework_name: str | None
    agent_address: str | None
    open_timeout: float
    agent_timeout: float
    weights: str
    seed: int
    gpu: bool
    gpu_device_id: int
    threads: int | None
    preprocess_threads: int | None
    overlap: bool | None
    fail_on_error: bool
    publish: bool
    publish_predictions: bool
    database_address: str | None
    database_name: str | None
    repeat: int
    trace_level: str | None
    leveled: bool
    tracer_address: str | None
    batch_size: int
    partition_list_size: int
    num_file_parts: int
    warmup_num_file_parts: int
    dataset_category: str | None = None
    """The category that the dataset must be of, where one is asked for."""

    def trace_levels(self, default_level: str | None) -> Sequence[TraceLevel]:
        """The trace levels to evaluate at, the shallowest first.

        Without ``leveled`` it is one. With it, they are the levels that each measure something which deeper
        ones disturb, down to the one that is asked for, or else to the deepest that the device has.

        Args:
            default_level: The trace level when the options name none; ``leveled`` does not ask for it.

        Raises:
            ConfigurationError: There is no such trace level, or only one is left.
        """
        if not self.leveled:
            name = self.trace_level or default_level
            return (TraceLevel.named(name) if name else TraceLevel.APPLICATION_TRACE,)
        deepest = TraceLevel.SYSTEM_LIBRARY_TRACE if self.gpu else TraceLevel.FRAMEWORK_TRACE
        if self.trace_level:
            deepest = TraceLevel.named(self.trace_level)
        if deepest < TraceLevel.FRAMEWORK_TRACE:
            raise ConfigurationError(
                f"--leveled down to {deepest.name} is one level only; "
                "name FRAMEWORK_TRACE or a deeper one, or leave --trace_level out"
            )
        return (*(level for level in _DISTURBING if level < deepest), deepest)

    def evaluation_options(self, level: TraceLevel) -> EvaluationOptions:
        """What the evaluator is asked for.

        Args:
            level: How deep it looks.

        Raises:
            ConfigurationError: A number makes no sense.
        """
        return EvaluationOptions(
            batch_size=self.batch_size,
            partition_list_size=self.partition_list_size,
            num_file_parts=self.num_file_parts,
            warmup_num_file_parts=self.warmup_num_file_parts,
            feature_limit=0 if self.publish_predictions else TOP_CLASSES,
            fail_on_error=self.fail_on_error,
            trace_level=level,
        )

    @property
    def session_options(self) -> SessionOptions:
        """What the model is opened with."""
        return SessionOptions(
            device=Device(DeviceKind.GPU, self.gpu_device_id) if self.gpu else CPU,
            threads=self.threads,
            preprocess_threads=self.preprocess_threads,
            overlap=self.overlap,
            feature_limit=0 if self.publish_predictions else TOP_CLASSES,
            weights=Weights(self.weights.lower()),
            seed=self.seed,
        )

    @abstractmethod
    def open_dataset(self, catalog: Catalog, cache: ArtifactCache) -> Dataset | None:
        """Opens the dataset that the options name; None leaves it to the model's manifest.

        Args:
            catalog: The datasets.
            cache: Gets one that is at a URL.

        Raises:
            UnknownDatasetError: The catalogue has none of that name.
            DatasetError: It cannot be opened.
        """


@dataclass(frozen=True, slots=True, kw_only=True)
class DatasetRequest(EvaluationRequest):
    """The options of ``predict dataset``."""

    show_inputs: ClassVar[bool] = False

    dataset_name: str | None
    dataset_path: Path | None

    def open_dataset(self, catalog: Catalog, cache: ArtifactCache) -> Dataset | None:
        """Opens the dataset at the path or of the name; see ``EvaluationRequest``."""
        if self.dataset_path:
            return open_path(self.dataset_path, self.dataset_category or "vision")
        if self.dataset_name:
            found = catalog.find_dataset(self.dataset_name, category=self.dataset_category)
            return open_dataset(found, cache)
        return None


@dataclass(frozen=True, slots=True, kw_only=True)
class UrlsRequest(EvaluationRequest):
    """The options of ``predict urls``."""

    show_inputs: ClassVar[bool] = True

    urls_file_path: Path
    duplicate_input: int

    def open_dataset(self, catalog: Catalog, cache: ArtifactCache) -> Dataset:
        """Opens the list; see ``EvaluationRequest``."""
        return UrlsDataset(self.urls_file_path, duplicate_input=self.duplicate_input)
