"""A session: one open model that answers predictions in this process."""

from __future__ import annotations

import platform
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from numpy.typing import NDArray

from agent.addresses import shown
from agent.artifacts import resolve_artifacts
from agent.closeable import Closeable
from agent.description import SystemDescription
from agent.device import CPU, Device
from agent.environment import container_architecture, read_environment, usable_cores
from agent.image_fit import MAX_PIXELS
from agent.input_types import preprocessor_of
from agent.inputs import Input
from agent.labels import with_labels
from agent.models.architecture import Architecture
from agent.models.sources import BUILTIN_ARCHITECTURES, Architectures
from agent.pipeline import Pipeline
from agent.postprocessing import Postprocessor
from agent.predictor import Predictor, PredictorOptions, Weights
from agent.predictor_watch import PredictorWatch, Unwatched
from agent.preparation import Clock, Fetch
from agent.registry import Registry
from agent.requirements import require_supported
from agent.results import BatchResult, Infer, Inferred
from agent.trace_level import TraceLevel
from agent.tracing.scope import TraceScope, traced
from agent.tracing.span import AttributeValue, SpanKind
from manifests.errors import ArtifactError, ConfigurationError, InputError
from manifests.schema import ModelManifest

if TYPE_CHECKING:
    from agent.artifact_cache import ArtifactCache

MAX_THREADS = 1024
"""The most threads that may be asked for: more than help, and few enough not to bring the machine down."""
MAX_PREPROCESS_THREADS = 4
"""The default number of threads that read and preprocess is that of the usable cores, and at most this."""


UNWATCHED = Unwatched()


@dataclass(frozen=True, slots=True)
class SessionOptions:
    """What a model is opened with.

    Attributes:
        device: Where the model runs.
        threads: Threads that one operator may use on the CPU; None leaves the framework's default.
        preprocess_threads: Threads that read and preprocess ahead; 0 does it in the calling thread, None is
            the default.
        overlap: Whether inputs are prepared while a batch is predicted; None means only on a GPU. On a CPU it
            would slow down the predictions that are timed.
        feature_limit: The number of best classes returned for each input; 0 returns all.
        weights: Where the weights come from; random ones need a model that is built in code.
        seed: What random weights are drawn from.
        spare_cores: See ``PredictorOptions``; of a model in this process.

    Raises:
        ConfigurationError: A number is negative, or too large; it is named.
    """

    device: Device = CPU
    threads: int | None = None
    preprocess_threads: int | None = None
    overlap: bool | None = None
    feature_limit: int = 5
    weights: Weights = Weights.PRETRAINED
    seed: int = 0
    spare_cores: int = 0

    def __post_init__(self) -> None:
        for name in ("preprocess_threads", "feature_limit", "spare_cores"):
            if (value := getattr(self, name)) is not None and value < 0:
                raise ConfigurationError(f"{name} is {value}; it must be at least 0")
        for name in ("threads", "preprocess_threads"):
            if (getattr(self, name) or 0) > MAX_THREADS:
                raise ConfigurationError(f"{name} is {getattr(self, name)}; at most {MAX_THREADS}")


def no_fetch(address: str) -> bytes:
    """Refuses to get what a URL names: the default of a session that is given only files and tensors.

    Raises:
        InputError: Always.
    """
    raise InputError(f"{shown(address)}: this session fetches no URLs")


def open_session(
    manifest: ModelManifest,
    options: SessionOptions,
    registry: Registry,
    *,
    architectures: Architectures = BUILTIN_ARCHITECTURES,
    cache: ArtifactCache | None = None,
    fetch: Fetch = no_fetch,
    max_pixels: int = MAX_PIXELS,
    watch: PredictorWatch = UNWATCHED,
    clock: Clock = time.perf_counter_ns,
    machine: str | None = None,
    trace: TraceScope | None = None,
) -> Session:
    """Loads a model.

    Args:
        manifest: The model.
        options: Device, threads, and how much is returned.
        registry: Where the manifest's framework is found.
        architectures: Where a model that is built in code is found.
        cache: Gets the model's files that are at URLs; with None, all are on this machine.
        fetch: Gets what a URL of an input names.
        max_pixels: The largest image that is decoded or resized to.
        watch: Watches the model's predictions.
        clock: The clock of the stage times.
        machine: The architecture that a manifest's container has to be for; None means this machine's.
        trace: Where the span ``load`` goes, which holds no download; None records none.

    Raises:
        UnknownFrameworkError, FrameworkUnavailableError: The framework is not known, or not installed;
            or the library that decodes images is not.
        ArtifactError: A file of the model is missing, changed or not what the framework can load.
        ManifestError: The manifest asks for what this program does not do, or for other hardware.
        DeviceError: The device is not there.
    """
    require_supported(manifest, container_architecture(machine or platform.machine()))
    parameters = manifest.inputs[0].parameters
    preprocessor = preprocessor_of(parameters, max_pixels)
    entry = registry.find(manifest.framework.name)
    predictor_type = entry.load()
    random = options.weights is Weights.RANDOM
    architecture = _find_architecture(manifest, entry.name, architectures, random=random)
    # random weights name no class rightly, so that no labels are worth a download
    manifest = with_labels(manifest, needed=not random, cache=None if random else cache)
    artifacts = resolve_artifacts(manifest, weights=not random, cache=cache).with_architecture(architecture)
    versions = {**registry.versions, **(architecture.versions if architecture else {})}
    predictor = watch.watched(predictor_type(manifest, artifacts, _predictor_options(options)))
    try:
        with traced(trace, _load_span(manifest, options.device)):
            predictor.load()
        threads, overlap = _preparing(options)
        description = SystemDescription(
            manifest=manifest,
            checksums=artifacts.checksums,
            framework_version=entry.installed_version or "",
            device=options.device,
            threads=predictor.threads,
            preprocess_threads=threads,
            overlap=overlap and threads > 0,
            environment=read_environment(versions, preprocessor.libraries),
            weights=options.weights,
            seed=options.seed if random else None,
        )
        pipeline = Pipeline(
            predictor,
            preprocessor,
            Postprocessor(manifest.output, options.feature_limit),
            parameters.input_layer,
            fetch=fetch,
            threads=threads,
            overlap=overlap,
            patience_s=watch.patience_s,
            clock=clock,
            attributes=_span_attributes(description),
        )
    except BaseException:
        predictor.close()
        raise
    return Session(predictor, pipeline, description)


def _predictor_options(options: SessionOptions) -> PredictorOptions:
    return PredictorOptions(
        options.device, options.threads, options.weights, options.seed, options.spare_cores
    )


def _preparing(options: SessionOptions) -> tuple[int, bool]:
    """How many threads prepare inputs, and whether they do while a batch is predicted."""
    threads = options.preprocess_threads
    if threads is None:
        threads = min(usable_cores(), MAX_PREPROCESS_THREADS)
    return threads, options.device.is_gpu if options.overlap is None else options.overlap


def _span_attributes(description: SystemDescription) -> dict[str, AttributeValue]:
    """What the spans of predictions say of the model and what it runs on."""
    manifest = description.manifest
    return {
        "model_name": manifest.name,
        "model_version": manifest.version,
        "framework_name": manifest.framework.name,
        "framework_version": description.framework_version,
        "device": str(description.device),
        "host.name": description.environment.hostname,
    }


def _load_span(manifest: ModelManifest, device: Device) -> SpanKind:
    return SpanKind.of(
        "load",
        TraceLevel.APPLICATION_TRACE,
        model_name=manifest.name,
        model_version=manifest.version,
        framework_name=manifest.framework.name,
        device=str(device),
    )


def _find_architecture(
    manifest: ModelManifest, framework: str, architectures: Architectures, *, random: bool
) -> Architecture | None:
    """The model in code; None for one whose graph is a file, or that a plug-in's predictor builds."""
    name = manifest.model.architecture
    if name is not None:
        return architectures.find(name, framework)
    if random:
        raise ArtifactError(
            f"model {manifest.name} {manifest.version} for {framework} is read from a file, weights and "
            "all; only a model that is built in code (architecture) can have random weights"
        )
    return None


class Session(Closeable):
    """One open model. Thread-safe; satisfies ``evaluators.system.SystemUnderTest``.

    Made by ``open_session``.
    """

    def __init__(self, predictor: Predictor, pipeline: Pipeline, description: SystemDescription) -> None:
        self._predictor = predictor
        self._pipeline = pipeline
        self._description = description

    @property
    def description(self) -> SystemDescription:
        """The model and what it runs on."""
        return self._description

    def predict(self, inputs: Sequence[Input], infer: Infer | None = None) -> BatchResult:
        """Predicts one batch and waits for it; see ``Pipeline.predict``."""
        return self._pipeline.predict(inputs, infer)

    def infer(self, batch: NDArray[Any]) -> Inferred:
        """Runs the model alone; see ``Pipeline.infer``."""
        return self._pipeline.infer(batch)

    def checked(self, batch: NDArray[Any]) -> NDArray[Any]:
        """Returns a batch as the model takes it; see ``Pipeline.checked``."""
        return self._pipeline.checked(batch)

    def predict_tensor(
        self, batch: NDArray[Any], trace: TraceScope | None = None, infer: Infer | None = None
    ) -> BatchResult:
        """Predicts a batch that is one preprocessed tensor; see ``Pipeline.predict_tensor``."""
        if trace is None:
            return self._pipeline.predict_tensor(batch, infer=infer)
        with self._sampled(trace):
            return self._pipeline.predict_tensor(batch, trace)

    def predict_batches(
        self, batches: Iterable[Sequence[Input]], trace: TraceScope | None = None
    ) -> Iterator[BatchResult]:
        """Predicts batch after batch, preparing a bounded number ahead; see ``Pipeline.predict_batches``."""
        results = self._pipeline.predict_batches(batches, trace)
        if trace is None or not trace.recorder.wants(TraceLevel.HARDWARE_TRACE):
            return results
        return self._while_sampled(results, trace)

    def _while_sampled(self, results: Iterator[BatchResult], trace: TraceScope) -> Iterator[BatchResult]:
        with self._sampled(trace):
            yield from results

    @contextmanager
    def _sampled(self, trace: TraceScope) -> Iterator[None]:
        """Samples the hardware, where the trace looks as deep."""
        if not trace.recorder.wants(TraceLevel.HARDWARE_TRACE):
            yield
            return
        from agent.tracing.hardware import HardwareSampler  # few runs look as deep

        with HardwareSampler(trace, self._description.device) as sampler:
            sampler.start()
            yield

    def close(self) -> None:
        """Frees the model; calling it again does nothing."""
        self._pipeline.close()
        self._predictor.close()
