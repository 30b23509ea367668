"""Selects and opens a model; its session predicts in this process until it is closed.

``describe_unloaded`` describes a model for uses that need only its manifest.
"""

from __future__ import annotations

import re
import time
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any

from numpy.typing import NDArray

from inferometer.agent.architectures.sources import BUILTIN_ARCHITECTURES, Architectures
from inferometer.agent.artifacts.files import (
    ArtifactCache,
    Artifacts,
    InputSignature,
    get_file,
    resolve_model,
    with_labels,
)
from inferometer.agent.artifacts.locations import shown, tokenizer_files
from inferometer.agent.closeable import Closeable
from inferometer.agent.hardware.environment import (
    CPU,
    Device,
    Precision,
    PredictorOptions,
    Weights,
    container_architecture,
    default_threads,
    pinned_processors,
    read_environment,
    usable_cores,
)
from inferometer.agent.inference.pipeline import Pipeline
from inferometer.agent.inference.predictor import Predictor, PredictorWatch
from inferometer.agent.inference.process_predictor import load_bound, open_instance
from inferometer.agent.inference.registry import BUILTIN, Registry
from inferometer.agent.inference.requirements import require_supported
from inferometer.agent.inference.run_tracing import HardwareSampler, RunTracing
from inferometer.agent.inference.stages import (
    BatchResult,
    Infer,
    Inferred,
    Postprocessor,
    SystemDescription,
    whole_batch_outputs,
)
from inferometer.agent.preprocessing.inputs import MAX_PIXELS, Fetch, Input, Tensors
from inferometer.agent.preprocessing.model_preprocessor import ModelPreprocessor, model_preprocessor_of
from inferometer.agent.tracing.recorder import AttributeValue, SpanKind, TraceLevel, TraceScope, traced
from inferometer.manifests.catalog import Catalog
from inferometer.manifests.errors import (
    ArtifactError,
    ConfigurationError,
    FrameworkUnavailableError,
    InputError,
)
from inferometer.manifests.schema import ModelManifest

if TYPE_CHECKING:
    from inferometer.agent.inference.given_models import GivenModel


_KNOWN_FRAMEWORKS = frozenset(entry.name.casefold() for entry in BUILTIN)


def select_model(
    catalog: Catalog,
    registry: Registry,
    name: str,
    version: str | None = None,
    framework: str | None = None,
    weights: Weights = Weights.PRETRAINED,
) -> ModelManifest:
    """Returns the highest version of a model that an installed framework can run with the requested weights.

    A version that has the weights precedes a higher one that does not. For random weights, the program's own
    architectures precede those of packages, which may not be installed. If several frameworks have that
    version, the first installed one in the registry is selected. The case of names does not matter;
    ``version`` may be a constraint.

    Raises:
        UnknownModelError, UnknownFrameworkError: The name or version is unknown.
        FrameworkUnavailableError: The framework is not installed, or not in a version that the model accepts.
        ArtifactError: Pretrained weights are requested, but no matching manifest names any; the message lists
            the versions and frameworks that have some.
    """
    preference = partial(_suitability, weights=weights)
    if framework is None:
        try:
            chosen = catalog.find_model(name, version, registry.versions, preference)
        except FrameworkUnavailableError as error:
            raise _with_install_commands(error, catalog, registry, name) from error
    else:
        entry = registry.find(framework)
        entry.require_installed()
        chosen = catalog.find_model(name, version, {entry.name: entry.installed_version}, preference)
    built_in = chosen.framework.name.casefold() in _KNOWN_FRAMEWORKS
    if built_in and weights is Weights.PRETRAINED and not _suitability(chosen, weights):
        raise ArtifactError(_without_weights(catalog, chosen))
    return chosen


def _suitability(manifest: ModelManifest, weights: Weights) -> int:
    """Returns how well a model suits the requested weights; 0 if it cannot have them."""
    files = manifest.model
    if weights is Weights.PRETRAINED:
        return int(bool(files.graph_path or files.weights_path))
    if files.architecture is None:
        return 0
    return 1 if ":" in files.architecture else 2


def _with_install_commands(
    error: FrameworkUnavailableError, catalog: Catalog, registry: Registry, name: str
) -> FrameworkUnavailableError:
    """Returns the error, with the commands that install missing frameworks."""
    named = [m for m in catalog.models if m.name.casefold() == name.strip().casefold()]
    wanted = {m.framework.name.casefold() for m in named}
    missing = [e for e in registry.entries if e.name.casefold() in wanted and not e.installed_version]
    if not missing:
        return error
    commands = " or ".join(entry.install for entry in missing)
    return FrameworkUnavailableError(f"{error}; install one with: {commands}")


def _without_weights(catalog: Catalog, chosen: ModelManifest) -> str:
    """Returns the error for a model without weights, with models of the same name that have them.

    Parts of a name match too: for ``BVLC-AlexNet``, the message includes ``AlexNet``.
    """
    names = {chosen.name.casefold(), *re.split(r"[-_\s]", chosen.name.casefold())}
    others: dict[str, list[str]] = {}
    for model in catalog.models:
        if model.name.casefold() in names and _suitability(model, Weights.PRETRAINED):
            others.setdefault(f"{model.name} {model.version}", []).append(model.framework.name)
    have = "".join(f"; {model} has them for {', '.join(names)}" for model, names in others.items())
    return (
        f"model {chosen.name} {chosen.version} for {chosen.framework.name} has no published weights{have}; "
        "--weights=random is enough to measure speed"
    )


def describe_unloaded(
    manifest: ModelManifest, registry: Registry, *, preprocess_threads: int = 0, overlap: bool = False
) -> SystemDescription:
    """Describes a model on this machine's CPU without reading its files or running its framework.

    Raises:
        ManifestError: The manifest requires something that is not supported, or other hardware.
        UnknownFrameworkError: The framework is unknown.
        FrameworkUnavailableError: The library that decodes the model's images is not installed.
    """
    require_supported(manifest, container_architecture())
    preprocessor = model_preprocessor_of(manifest)
    return SystemDescription(
        manifest=manifest,
        checksums={},
        framework_version=registry.find(manifest.framework.name).installed_version or "",
        device=CPU,
        threads=None,
        preprocess_threads=preprocess_threads,
        overlap=overlap,
        environment=read_environment(registry.versions, preprocessor.libraries),
    )


MAX_THREADS = 1024
"""The maximum number of threads: more than is useful, but few enough to be harmless."""
MAX_PREPROCESS_THREADS = 4
"""The limit of the default number of preprocessing threads, which is the number of usable cores."""


@dataclass(frozen=True, slots=True)
class SessionOptions:
    """The options of a session.

    Attributes:
        device: The device that runs the model, or the GPUs of its instances.
        threads: The number of threads that an operator may use on the CPU; None means the default.
        preprocess_threads: The number of threads that read and preprocess ahead; 0 means the calling thread,
            None the default.
        overlap: Whether inputs are prepared during predictions; None means only on a GPU. On a CPU, this
            slows down the timed predictions.
        feature_limit: The number of best classes returned for each input; 0 returns all.
        weights: The source of the weights; random weights require a model that is built in code.
        seed: The seed of random weights.
        spare_cores: See ``PredictorOptions``; only for a model in this process.
        precision: The numeric type used by a model that is defined in code; None means the model's own, which
            is float32 for a model in code.
        cudnn_benchmark: See ``PredictorOptions``; None keeps the framework's default.
        processors: The logical processors that each instance is bound to; see ``pinned``.

    Raises:
        ConfigurationError: A number is negative or too large; the message names it.
    """

    device: Device = CPU
    threads: int | None = None
    preprocess_threads: int | None = None
    overlap: bool | None = None
    feature_limit: int = 5
    weights: Weights = Weights.PRETRAINED
    seed: int = 0
    spare_cores: int = 0
    precision: Precision | None = None
    cudnn_benchmark: bool | None = None
    processors: tuple[tuple[int, ...], ...] = ()

    def __post_init__(self) -> None:
        for name in ("preprocess_threads", "feature_limit", "spare_cores"):
            if (value := getattr(self, name)) is not None and value < 0:
                raise ConfigurationError(f"{name} is {value}; it must be at least 0")
        for name in ("threads", "preprocess_threads"):
            if (getattr(self, name) or 0) > MAX_THREADS:
                raise ConfigurationError(f"{name} is {getattr(self, name)}; at most {MAX_THREADS}")

    @property
    def predictor(self) -> PredictorOptions:
        """The options of the predictor of the first instance."""
        return PredictorOptions(
            self.device.of(0),
            self.threads,
            self.weights,
            self.seed,
            self.spare_cores,
            self.precision or Precision.FLOAT32,
            self.cudnn_benchmark,
            self.processors[0] if self.processors else (),
        )

    def fitting_instances(self, workers: int = 1) -> int:
        """Returns the number of instances for which each of several processes has cores: ``auto`` of options.

        Each instance takes ``threads``, else ``OMP_NUM_THREADS``, else 1. On GPUs, it is one for each.
        """
        cores = usable_cores()
        each = self.threads or default_threads(0, cores)
        return len(self.device.indices) if self.device.is_gpu else max(1, cores // (workers * each))

    def divided_by(self, instances: int) -> SessionOptions:
        """Returns the options for instances that divide the cores, unless the number of threads is given."""
        if instances == 1 or self.threads is not None:
            return self
        return replace(self, threads=default_threads(self.spare_cores, instances))

    def pinned(self, instances: int) -> SessionOptions:
        """Returns the options for instances that are bound to processors of their own.

        Raises:
            ConfigurationError: There are too few processors.
        """
        threads = self.predictor.operator_threads
        return replace(self, threads=threads, processors=pinned_processors(instances, threads))


def no_fetch(address: str) -> bytes:
    """Rejects every URL with InputError: the default for a session that takes only files and tensors."""
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
    watch: PredictorWatch | None = None,
    clock: Callable[[], int] = time.perf_counter_ns,
    machine: str | None = None,
    trace: TraceScope | None = None,
    given: GivenModel | None = None,
) -> Session:
    """Loads a model.

    A model in memory, ``given``, replaces the files. Without a ``cache``, all of the model's files must be on
    this machine. ``fetch`` returns the content at the URL of an input, and ``max_pixels`` bounds the images
    that are decoded or resized to. ``machine`` is the required architecture of a manifest's container; None
    means this machine's. ``trace`` receives the span ``load``, which does not include downloads.

    Raises:
        UnknownFrameworkError, FrameworkUnavailableError: The framework is unknown or not installed, or the
            library that decodes images is not installed.
        ArtifactError: A file of the model is missing or changed, or the framework cannot load it.
        ManifestError: The manifest requires something that is not supported, or other hardware.
        DeviceError: The device is not available.
        ConfigurationError: The model does not support the precision.
    """
    in_memory = given is not None and given.in_memory is not None
    predictor_type = check_model(manifest, options, registry, machine=machine, in_memory=in_memory)
    entry = registry.find(manifest.framework.name)
    preprocessor, tokenizers = open_preprocessor(manifest, cache, max_pixels)
    random = options.weights is Weights.RANDOM
    # with random weights no label is right, and a download is wasted
    manifest = with_labels(manifest, needed=not random, cache=None if random else cache)
    artifacts = _artifacts(manifest, entry.name, architectures, cache, given, random=random)
    versions = {**registry.versions, **(artifacts.architecture.versions if artifacts.architecture else {})}
    predictor = predictor_type(manifest, artifacts, options.predictor)
    attributes = _span_attributes(manifest, options)
    threads, overlap = _ahead(options)
    try:
        with traced(trace, SpanKind.of("load", TraceLevel.APPLICATION_TRACE, **attributes)):
            load_bound(predictor)
        details = predictor.details()
        if options.processors:
            places = " | ".join(",".join(map(str, each)) for each in options.processors)
            details = replace(details, settings={**details.settings, "processors of the instances": places})
        description = SystemDescription(
            manifest=manifest.with_sizes(predictor.axis_sizes()),
            checksums={**artifacts.checksums, **tokenizers},
            framework_version=entry.installed_version or "",
            device=options.device,
            threads=predictor.threads,
            preprocess_threads=threads,
            overlap=overlap and threads > 0,
            environment=read_environment(versions, preprocessor.libraries, details),
            weights=options.weights,
            seed=options.seed if random else None,
            precision=_precision(manifest, artifacts, options),
            cudnn_benchmark=options.cudnn_benchmark,
        )
        attributes["framework_version"] = description.framework_version
        attributes["host.name"] = description.environment.hostname
        open_pipeline = partial(
            Pipeline,
            preprocessor=preprocessor,
            postprocessor=Postprocessor(manifest.output, options.feature_limit, predictor.fixed_outputs),
            fetch=fetch,
            threads=threads,
            overlap=overlap,
            watch=watch,
            clock=clock,
            attributes=attributes,
        )
        return Session(predictor, open_pipeline, description, options.processors)
    except BaseException:
        predictor.close()
        raise


def check_model(
    manifest: ModelManifest,
    options: SessionOptions,
    registry: Registry,
    *,
    machine: str | None = None,
    in_memory: bool = False,
) -> type[Predictor]:
    """Returns the predictor's class after all checks that do not need any of the model's files.

    Raises the errors of ``open_session`` that concern framework, device, precision and manifest.
    """
    require_supported(manifest, container_architecture(machine or None))
    predictor = registry.find(manifest.framework.name).load()
    if (wanted := options.precision) is not None:  # also for a plug-in that casts nothing
        predictor.cast_of(manifest, wanted, in_memory=in_memory, asked=True)
    for device in options.device.counts(len(options.device.indices)):
        predictor.check(manifest, replace(options.predictor, device=device), in_memory=in_memory)
    return predictor


def open_preprocessor(
    manifest: ModelManifest, cache: ArtifactCache | None, max_pixels: int = MAX_PIXELS
) -> tuple[ModelPreprocessor, dict[str, str]]:
    """Returns the preprocessor of a model, and the checksums of its tokenizers, which ``cache`` downloads.

    The checksums' keys are ``tokenizer``, followed by the input's number for all inputs but the first.
    """
    files = {number: get_file(file, cache) for number, file in tokenizer_files(manifest).items()}
    paths = {number: file.path for number, file in files.items()}
    checksums = {f"tokenizer{number or ''}": file.checksum for number, file in files.items()}
    return model_preprocessor_of(manifest, max_pixels, paths), checksums


def _ahead(options: SessionOptions) -> tuple[int, bool]:
    """Returns the number of threads that prepare ahead, and whether they also do so during predictions."""
    threads = options.preprocess_threads
    if threads is None:
        threads = min(usable_cores(), MAX_PREPROCESS_THREADS)
    return threads, options.device.is_gpu if options.overlap is None else options.overlap


def _artifacts(
    manifest: ModelManifest,
    framework: str,
    architectures: Architectures,
    cache: ArtifactCache | None,
    given: GivenModel | None,
    *,
    random: bool,
) -> Artifacts:
    if given is None or given.in_memory is None:
        return resolve_model(manifest, framework, architectures, cache, random=random)
    if random:
        raise ArtifactError(f"model {manifest.name} is in memory with its weights; leave out random weights")
    return Artifacts(checksums=given.checksums, in_memory=given.in_memory)


def _precision(manifest: ModelManifest, artifacts: Artifacts, options: SessionOptions) -> Precision | None:
    """Returns the precision used by a model in code; None for a model that has its own."""
    if artifacts.in_memory is not None or manifest.has_own_precision:
        return None
    return options.precision or Precision.FLOAT32


def _span_attributes(manifest: ModelManifest, options: SessionOptions) -> dict[str, AttributeValue]:
    return {
        "model_name": manifest.name,
        "model_version": manifest.version,
        "framework_name": manifest.framework.name,
        "device": str(options.device),
    }


class Session(Closeable):
    """One open model. Thread-safe; satisfies ``evaluators.evaluation.SystemUnderTest``.

    Created by ``open_session``.

    Attributes:
        description: The model and its system.
        in_process: Whether the model runs in this process.
        processors: The processors that each instance of the model is bound to; empty for no binding.
    """

    in_process = True

    def __init__(
        self,
        predictor: Predictor,
        open_pipeline: Callable[[Predictor], Pipeline],
        description: SystemDescription,
        processors: tuple[tuple[int, ...], ...] = (),
    ) -> None:
        self._predictor = predictor
        self._open_pipeline = open_pipeline
        self._pipeline = open_pipeline(predictor)
        self.description = description
        self.processors = processors

    def open_another(self, number: int) -> Session:
        """Opens instance ``number``, from 1 on, of the model; raises the errors of ``open_instance``."""
        processors = self.processors[number] if self.processors else ()
        device = self.description.device.of(number)
        further = open_instance(self._predictor, processors=processors, device=device)
        return Session(further, self._open_pipeline, self.description, self.processors)

    def predict(
        self, inputs: Sequence[Input], infer: Infer | None = None, trace: TraceScope | None = None
    ) -> BatchResult:
        """Predicts one batch and waits for the result; see ``Pipeline.predict``."""
        return self._pipeline.predict(inputs, infer, trace)

    def infer(self, batch: Tensors, tracing: RunTracing | None = None) -> Inferred:
        """Runs only the model; see ``Pipeline.infer``."""
        return self._pipeline.infer(batch, tracing)

    def recover(self) -> None:
        """Waits until the model can predict again; see ``Pipeline.recover``."""
        self._pipeline.recover()

    @property
    def is_alive(self) -> bool:
        """Whether this instance of the model can predict; see ``Predictor.is_alive``."""
        return self._predictor.is_alive

    @property
    def any_thread(self) -> bool:
        """Whether ``infer`` may be called in any thread at no extra cost; see ``Predictor.any_thread``."""
        return self._predictor.any_thread

    def declared_outputs(self) -> tuple[InputSignature, ...]:
        """Returns the outputs as far as the model declares them; see ``Predictor.declared_outputs``."""
        return self._predictor.declared_outputs()

    def whole_batch_outputs(self, outputs: Tensors, size: int) -> frozenset[str]:
        """Returns the names of the outputs that belong to a whole batch; see ``whole_batch_outputs``."""
        return whole_batch_outputs(outputs, size, self._predictor.fixed_outputs)

    @property
    def is_free(self) -> bool:
        """Whether ``infer`` would start without waiting for another batch; see ``Pipeline.is_free``."""
        return self._pipeline.is_free

    @contextmanager
    def traced_batch(
        self, trace: TraceScope, name: str, size: int, facts: Mapping[str, AttributeValue]
    ) -> Iterator[RunTracing]:
        """Records a batch of several requests; see ``Pipeline.traced_batch``."""
        with self._sampled(trace), self._pipeline.traced_batch(trace, name, size, facts) as tracing:
            yield tracing

    def predict_tensor(
        self, batch: Tensors | NDArray[Any], trace: TraceScope | None = None, infer: Infer | None = None
    ) -> BatchResult:
        """Predicts a batch of preprocessed tensors, or of a single one; see ``Pipeline.predict_tensor``."""
        if trace is None:
            return self._pipeline.predict_tensor(batch, infer=infer)
        with self._sampled(trace):
            return self._pipeline.predict_tensor(batch, trace)

    async def predict_tensor_async(
        self, batch: Tensors | NDArray[Any], infer: Callable[[Tensors], Awaitable[Inferred]]
    ) -> BatchResult:
        """Predicts a batch of preprocessed tensors; see ``Pipeline.predict_tensor_async``."""
        return await self._pipeline.predict_tensor_async(batch, infer)

    def predict_batches(
        self, batches: Iterable[Sequence[Input]], trace: TraceScope | None = None
    ) -> Iterator[BatchResult]:
        """Predicts batch after batch, preparing a bounded number ahead; see ``Pipeline.predict_batches``."""
        results = self._pipeline.predict_batches(batches, trace)
        return results if trace is None else self._while_sampled(results, trace)

    def _while_sampled(self, results: Iterator[BatchResult], trace: TraceScope) -> Iterator[BatchResult]:
        with self._sampled(trace):
            yield from results

    @contextmanager
    def _sampled(self, trace: TraceScope) -> Iterator[None]:
        if not trace.recorder.wants(TraceLevel.HARDWARE_TRACE):
            yield
            return
        with closing(HardwareSampler(trace, self._predictor.options.device)) as sampler:
            sampler.start()
            yield

    def close(self) -> None:
        """Frees the model; calling it again does nothing."""
        self._pipeline.close()
        self._predictor.close()
