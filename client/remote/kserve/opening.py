"""Opens a model on a server of the Open Inference Protocol if it matches a manifest."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from packaging.version import Version

from inferometer.agent.artifacts.files import with_labels
from inferometer.agent.hardware.environment import Weights, unknown_environment, usable_cores
from inferometer.agent.inference.pipeline import Pipeline
from inferometer.agent.inference.requirements import require_supported
from inferometer.agent.inference.session import (
    MAX_PREPROCESS_THREADS,
    SessionOptions,
    no_fetch,
    open_preprocessor,
)
from inferometer.agent.inference.stages import Postprocessor, SystemDescription
from inferometer.agent.open_inference.codec import (
    BATCH_SIDE,
    DATATYPES,
    EXTENSION,
    SEGMENTS,
    TensorSignature,
    inputs_of,
    v2_version,
)
from inferometer.agent.preprocessing.inputs import Fetch, Tensors, blank_batch
from inferometer.client.remote.address import KServeAddress
from inferometer.client.remote.connection import RemoteOptions
from inferometer.client.remote.kserve.server import (
    Fit,
    KServeConnection,
    KServeServer,
    ServedInput,
    ServerIdentity,
)
from inferometer.client.remote.kserve.session import (
    REMOTE,
    KServePredictor,
    KServeSession,
    SharedMemory,
    laid_out,
)
from inferometer.evaluators.jobs.options import SharedMemoryUse
from inferometer.manifests.catalog import Catalog
from inferometer.manifests.errors import AgentError, ConfigurationError, UnknownModelError, suggestion
from inferometer.manifests.schema import FrameworkRequirement, ModelManifest
from inferometer.protos.inference.v2 import grpc_service_pb2 as pb
from inferometer.protos.inference.v2 import model_config_pb2

if TYPE_CHECKING:
    from inferometer.agent.artifacts.files import ArtifactCache


@dataclass(frozen=True, slots=True)
class ModelChoice:
    """The choice of the manifest that describes the model.

    ``version`` may be a constraint; None means the highest. ``framework``, which need not be installed, may
    be None for any.
    """

    name: str
    version: str | None = None
    framework: str | None = None

    def find(self, catalog: Catalog, weights: Weights, platform: str = "") -> ModelManifest:
        """Returns the manifest.

        Prefers a manifest that offers the weights, then the highest version, then the framework in which the
        server runs the model: ``platform`` names it, such as ``onnxruntime_onnx``, if known.

        Raises:
            UnknownModelError: No manifest has this name, version or framework.
        """
        found = catalog.find_models(self.name, self.version)
        if self.framework is not None:
            wanted = self.framework.strip().casefold()
            fitting = tuple(m for m in found if m.framework.name.casefold() == wanted)
            if not fitting:
                have = ", ".join(sorted({m.framework.name for m in found}))
                raise UnknownModelError(
                    f'model "{found[0].name}" has no manifest for {self.framework}; it has one for: {have}'
                )
            found = fitting
        running = platform.casefold()

        def preference(manifest: ModelManifest) -> tuple[bool, Version, bool]:
            files = manifest.model
            named = (
                files.architecture if weights is Weights.RANDOM else files.graph_path or files.weights_path
            )
            framework = manifest.framework.name.casefold()
            runs = bool(running) and (running.startswith(framework) or framework.startswith(running))
            return bool(named), Version(manifest.version), runs

        return max(found, key=preference)


_UNNAMED_SERVER = "server without a name"
_NAME_CHARACTERS = 200


def open_kserve(
    address: str,
    catalog: Catalog,
    choice: ModelChoice,
    options: SessionOptions = SessionOptions(),  # noqa: B008 - frozen
    remote: RemoteOptions = RemoteOptions(),  # noqa: B008 - frozen
    *,
    cache: ArtifactCache | None = None,
    fetch: Fetch = no_fetch,
    say: Callable[[str], None] = lambda _: None,
) -> KServeSession:
    """Opens a model that a server has ready or loads on request.

    ``options`` set the local preprocessing threads, and how much is returned. ``cache`` downloads a file with
    labels, and ``fetch`` an input. ``say`` receives, in one line each, which manifest was chosen, and whether
    tensors travel through shared memory.

    Raises:
        ConfigurationError: The address or an option is invalid, or the server's model is not the one
            that the manifest describes.
        UnknownModelError: The catalogue or the server has no such model.
        ManifestError: The manifest requires something that is not supported.
        AgentError: The server cannot be reached, or is not ready.
    """
    where = KServeAddress.parse(address)
    if options.device.is_gpu or options.threads is not None:
        raise ConfigurationError(
            f"{where}: the server decides where its model runs and in how many threads; "
            "leave out --gpu and --threads"
        )
    if options.precision is not None or options.cudnn_benchmark is not None:
        raise ConfigurationError(
            f"{where}: the server decides in which precision its model runs and how cuDNN chooses its "
            "algorithms; leave out --dtype and --cudnn_benchmark"
        )
    name = where.model_name or choice.find(catalog, options.weights).name
    connection = _connect(where, remote)
    try:
        connection.require_ready()
        served = _ServedModel.ask(connection, catalog, choice, options.weights, name)
        manifest = with_labels(
            require_supported(served.manifest),
            needed=served.weights is not Weights.RANDOM,
            cache=None if served.weights is Weights.RANDOM else cache,
        )
        found = _fit(manifest, served.metadata, served.config, f"server {served.address}")
        say(
            f"{served.address}: inputs and outputs are processed here, by the manifest of {manifest.name} "
            f"{manifest.version} for {manifest.framework.name}"
        )
        blank = blank_batch(manifest.tensors, found.fewest)
        memory = share_memory(connection, served.server, remote.shared_memory, blank, say)
        return _session(connection, served, manifest, found, options, remote, fetch, memory, cache)
    except BaseException:
        connection.close()
        raise


def _connect(where: KServeAddress, remote: RemoteOptions) -> KServeServer:
    if not where.http:
        return KServeConnection(where, remote)
    from inferometer.client.remote.rest.connection import KServeHttpConnection

    return KServeHttpConnection(where, remote)


@dataclass(frozen=True, slots=True)
class _ServedModel:
    """A server's metadata about itself and the model, and the matching manifest."""

    address: KServeAddress
    server: ServerIdentity
    manifest: ModelManifest
    metadata: pb.ModelMetadataResponse
    config: model_config_pb2.ModelConfig | None
    reported: Mapping[str, str]
    """The parameters of the configuration; ``model_messages`` writes some of them for our own servers."""
    weights: Weights

    @classmethod
    def ask(
        cls, connection: KServeServer, catalog: Catalog, choice: ModelChoice, weights: Weights, name: str
    ) -> _ServedModel:
        address = replace(connection.address, model_name=name)
        version = address.model_version or ""
        server = connection.identity()
        metadata = connection.model_metadata(name, version)
        manifest = choice.find(catalog, weights, metadata.platform)
        spelled = [v for v in (manifest.version, v2_version(manifest.version)) if v in metadata.versions]
        if not version and spelled and len(metadata.versions) > 1:
            # of several, the one that the manifest is of
            version = spelled[0]
            address = replace(address, model_version=version)
            metadata = connection.model_metadata(name, version)
        config = connection.model_config(name, version)
        reported = {key: value.string_value for key, value in config.parameters.items()} if config else {}
        if reported.get("weights") in {kind.value for kind in Weights}:
            weights = Weights(reported["weights"])
        return cls(address, server, manifest, metadata, config, reported, weights)

    @property
    def frameworks(self) -> Mapping[str, str]:
        """The framework in which the server runs the model, with its version if known."""
        if framework := self.reported.get("framework"):
            return {framework: self.reported.get("framework_version", "")}
        return {self.metadata.platform: ""} if self.metadata.platform else {}

    @property
    def seed(self) -> int | None:
        """The seed of random weights, if known."""
        seed = self.reported.get("seed", "")
        return int(seed) if self.weights is Weights.RANDOM and seed.isdecimal() else None


def _session(
    connection: KServeServer,
    served: _ServedModel,
    manifest: ModelManifest,
    found: Fit,
    options: SessionOptions,
    remote: RemoteOptions,
    fetch: Fetch,
    memory: SharedMemory | None,
    cache: ArtifactCache | None,
) -> KServeSession:
    """Assembles the session from the parts that prepare batches, send them, and read outputs."""
    manifest = _as_served(manifest, served.server, found)
    form = connection.form(
        str(served.address.model_name), served.address.model_version or "", found.inputs, found.output_names
    )
    levels = served.config.dynamic_batching.priority_levels if served.config else 0
    if remote.priority > levels:
        raise ConfigurationError(
            f"{served.address}: priority is {remote.priority}, but the model has {levels} priority levels; "
            "leave priority out, or serve the model with priority_levels"
        )
    form = replace(form, priority=remote.priority)
    predictor = KServePredictor(connection, manifest, form, found, remote.call_timeout_s, memory)
    if all(each.shape[:1] == [BATCH_SIDE] for each in served.metadata.inputs):
        outputs = served.metadata.outputs
        predictor.fixed_outputs = {each.name: each.shape[0] for each in outputs if each.shape}
    preprocessor, _ = open_preprocessor(manifest, cache)
    postprocessor = Postprocessor(manifest.output, options.feature_limit, predictor.fixed_outputs)
    threads = options.preprocess_threads
    if threads is None:
        threads = min(usable_cores(), MAX_PREPROCESS_THREADS)
    overlap = bool(options.overlap)
    pipeline = Pipeline(
        predictor,
        preprocessor,
        postprocessor,
        fetch=fetch,
        threads=threads,
        overlap=overlap,
        attributes={
            "model_name": manifest.name,
            "model_version": manifest.version,
            "framework_name": manifest.framework.name,
            "framework_version": served.server.version,
            "server.address": str(served.address),
        },
    )
    description = SystemDescription(
        manifest=manifest,
        checksums={},
        framework_version=served.server.version,
        device=REMOTE,
        threads=None,
        preprocess_threads=threads,
        overlap=overlap and threads > 0,
        environment=unknown_environment(served.frameworks, preprocessor.libraries),
        agent=str(served.address),
        weights=served.weights,
        seed=served.seed,
        precision=None,
    )
    return KServeSession(predictor, pipeline, preprocessor, postprocessor, description)


def _as_served(manifest: ModelManifest, server: ServerIdentity, found: Fit) -> ModelManifest:
    """Returns the manifest of the measured system; the server takes the place of the unknown framework."""
    framework = FrameworkRequirement(name=server.name[:_NAME_CHARACTERS] or _UNNAMED_SERVER, version="*")
    parameters = manifest.output.parameters.model_copy(update={"probabilities_layer": found.output_layer})
    output = manifest.output.model_copy(update={"parameters": parameters})
    return manifest.model_copy(update={"framework": framework, "output": output})


_TensorMetadata = pb.ModelMetadataResponse.TensorMetadata


def _fit(
    manifest: ModelManifest,
    metadata: pb.ModelMetadataResponse,
    config: model_config_pb2.ModelConfig | None,
    where: str,
) -> Fit:
    """Compares a server's description of its model with a manifest.

    A single input is sent under the server's own name, whatever its name in the manifest; the same applies to
    the output. Several inputs must have the same names in both. Anything that the server does not report is
    assumed to be as in the manifest, which also provides the labels. ``where`` names the server and the model
    in errors.

    Raises:
        ConfigurationError: They do not match; the message names the first difference.
    """
    inputs, first_side = _fit_inputs(manifest, list(metadata.inputs), where)
    layer, names = _fit_output(manifest, list(metadata.outputs), where)
    if first_side > 0:
        return Fit(inputs, names, layer, first_side, first_side)
    limit = config.max_batch_size if config is not None else 0
    return Fit(inputs, names, layer, most=limit if limit > 0 else None)


def _fit_inputs(
    manifest: ModelManifest, found: Sequence[_TensorMetadata], where: str
) -> tuple[tuple[ServedInput, ...], int]:
    """Returns the inputs at the server, and the size of their first axis, the batch."""
    described = f"the manifest of {manifest.name} {manifest.version}"
    wanted = list(inputs_of(manifest).values())
    if not found:
        return tuple(ServedInput(each.name, each.name, each.datatype) for each in wanted), BATCH_SIDE
    if len(found) != len(wanted):
        names = ", ".join(f'"{each.name}"' for each in found)
        has = "one" if len(wanted) == 1 else ", ".join(f'"{each.name}"' for each in wanted)
        count = f"{len(found)} input{'' if len(found) == 1 else 's'}"
        raise ConfigurationError(f"{where}: takes {count}, {names}; {described} has {has}")
    by_name = {each.name: each for each in found}
    if len(wanted) == 1:
        by_name = {wanted[0].name: found[0]}
    inputs, sides = [], set()
    for each in wanted:
        if each.name not in by_name:
            raise ConfigurationError(
                f'{where}: has no input "{each.name}", which {described} has; '
                f"{suggestion(each.name, by_name)}"
            )
        inputs.append(ServedInput(each.name, by_name[each.name].name, each.datatype))
        sides.add(_batch_side(each, by_name[each.name], described, where))
    fixed = sorted(sides - {BATCH_SIDE})
    if len(fixed) > 1:
        raise ConfigurationError(f"{where}: its inputs require batches of different sizes: {fixed}")
    return tuple(inputs), fixed[0] if fixed else BATCH_SIDE


def _batch_side(wanted: TensorSignature, found: _TensorMetadata, described: str, where: str) -> int:
    """Checks an input at the server against the manifest; returns the size of its first axis there."""
    what = f'{where}: input "{found.name}"'
    if found.datatype != wanted.datatype.name:
        raise ConfigurationError(
            f"{what}: is {found.datatype} at the server, but {wanted.datatype.name} in {described}"
        )
    shape = tuple(found.shape)
    if len(shape) != len(wanted.shape) or not _same_sides(shape[1:], wanted.dimensions) or not shape[0]:
        raise ConfigurationError(
            f"{what}: has shape {list(shape)} at the server, but {list(wanted.shape)} in {described}"
        )
    return shape[0]


def _fit_output(
    manifest: ModelManifest, outputs: Sequence[_TensorMetadata], where: str
) -> tuple[str | int, tuple[str, ...]]:
    """Returns the name of the output with the scores, and the outputs to request; none requests all.

    For tasks other than classification by scores, the postprocessing checks the outputs.
    """
    parameters = manifest.output.parameters
    layer = parameters.probabilities_layer
    if not outputs or manifest.output.type != "classification" or parameters.classes_layer is not None:
        return layer, ()
    found = _find_output(layer, outputs, where)
    what = f'{where}: output "{found.name}"'
    if found.datatype not in DATATYPES:
        raise ConfigurationError(f"{what}: is {found.datatype} at the server; scores are numbers")
    shape, labels = tuple(found.shape), parameters.labels
    classes = len(labels) or BATCH_SIDE
    if len(shape) < 2 or not _same_sides(shape[1:], (classes, *[1] * (len(shape) - 2))):
        shown = [BATCH_SIDE, classes]
        raise ConfigurationError(
            f"{what}: has shape {list(shape)} at the server; the manifest of {manifest.name} "
            f"{manifest.version} describes scores of shape {shown}"
        )
    return found.name, (found.name,)


def _find_output(layer: str | int, outputs: Sequence[_TensorMetadata], where: str) -> _TensorMetadata:
    by_name = {output.name: output for output in outputs}
    if isinstance(layer, int):
        if not 0 <= layer < len(outputs):
            raise ConfigurationError(
                f"{where}: has no output number {layer}, which the manifest names; it has {len(outputs)}"
            )
        return outputs[layer]
    if layer in by_name:
        return by_name[layer]
    if len(outputs) == 1:
        return outputs[0]
    raise ConfigurationError(
        f'{where}: has no output "{layer}", which the manifest names; {suggestion(layer, by_name)}'
    )


def _same_sides(found: Sequence[int], wanted: Sequence[int]) -> bool:
    """Returns whether two shapes may be the same; -1 stands for any size."""
    return len(found) == len(wanted) and all(
        BATCH_SIDE in {one, other} or one == other for one, other in zip(found, wanted, strict=True)
    )


def share_memory(
    connection: KServeServer,
    server: ServerIdentity,
    use: SharedMemoryUse,
    batch: Tensors,
    say: Callable[[str], None],
) -> SharedMemory | None:
    """Shares memory with a server for batches such as ``batch``; None if it should not or cannot be used.

    ``say`` receives, in one line, whether tensors travel through it, if the server offers it.

    Raises:
        ConfigurationError: Shared memory is required, but cannot be used.
    """
    address, required = connection.address, use is SharedMemoryUse.ON
    if use is SharedMemoryUse.OFF:
        return None
    reason = _obstacle(connection, server, batch)
    if reason is None:
        memory = SharedMemory(connection, required=required)
        try:
            memory.reserve(laid_out(batch)[1])
        except AgentError as error:
            reason = str(error)
            if not required:
                say(f"{address}: tensors travel in the requests, not through shared memory: {reason}")
        else:
            say(f"{address}: tensors travel through shared memory")
            return memory
    if required:
        raise ConfigurationError(f"{address}: --shared_memory=on, but it cannot be used: {reason}")
    return None


def _obstacle(connection: KServeServer, server: ServerIdentity, batch: Tensors) -> str | None:
    """Returns why memory cannot be shared, if this is known without trying; otherwise None."""
    if any(array.dtype.hasobject for array in batch.values()):
        return "the model takes strings, whose sizes differ"
    agent = connection.address.agent
    if not agent.is_this_machine:
        return f"{agent.host} is not a loopback address, such as 127.0.0.1"
    if EXTENSION not in server.extensions:
        return "the server does not offer it; an agent does with agent serve --shared_memory"
    if not SEGMENTS.is_dir():
        return f"there is no {SEGMENTS} here"
    return None
