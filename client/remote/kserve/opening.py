"""Opening a model on a server of the Open Inference Protocol."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from agent.description import SystemDescription
from agent.device import Device, DeviceKind
from agent.environment import unknown_environment, usable_cores
from agent.input_types import preprocessor_of
from agent.labels import with_labels
from agent.pipeline import Pipeline
from agent.postprocessing import Postprocessor
from agent.predictor import PredictorOptions, Weights
from agent.preparation import Fetch
from agent.requirements import require_supported
from agent.server.v2.signature import input_of
from agent.session import MAX_PREPROCESS_THREADS, SessionOptions, no_fetch
from client.remote.defaults import ANSWER_TIMEOUT_S, OPEN_TIMEOUT_S
from client.remote.kserve.address import KServeAddress
from client.remote.kserve.connection import KServeConnection, ServerIdentity
from client.remote.kserve.fitting import Fit, fit
from client.remote.kserve.messages import RequestForm
from client.remote.kserve.model_choice import ModelChoice
from client.remote.kserve.predictor import KServePredictor
from client.remote.kserve.session import KServeSession
from client.remote.tls import ClientTls
from manifests.catalog import Catalog
from manifests.errors import ConfigurationError
from manifests.schema import FrameworkRequirement, ModelManifest
from protos.inference.v2 import grpc_service_pb2 as pb
from protos.inference.v2 import model_config_pb2

if TYPE_CHECKING:
    from agent.artifact_cache import ArtifactCache

REMOTE = Device(DeviceKind.REMOTE)
UNNAMED_SERVER = "server without a name"
_NAME_CHARACTERS = 200


@dataclass(frozen=True, slots=True)
class KServeOptions:
    """How a server is spoken to.

    Attributes:
        secret: What it asks for as a bearer token, if it does.
        tls: How it is spoken to over TLS; None does it only if the address asks for TLS.
        model_timeout_s: How long one call about the model may take, which may load it first, in seconds.
        call_timeout_s: How long the answer to one request may take, in seconds; None waits.
    """

    secret: str | None = field(default=None, repr=False)
    tls: ClientTls | None = None
    model_timeout_s: float = OPEN_TIMEOUT_S
    call_timeout_s: float | None = ANSWER_TIMEOUT_S


def open_kserve(
    address: str,
    catalog: Catalog,
    choice: ModelChoice,
    options: SessionOptions = SessionOptions(),  # noqa: B008 - frozen
    remote: KServeOptions = KServeOptions(),
    *,
    cache: ArtifactCache | None = None,
    fetch: Fetch = no_fetch,
    say: Callable[[str], None] = lambda _: None,
) -> KServeSession:
    """Opens a model on a server, which must have it ready or load it when it is asked for.

    Args:
        address: ``kserve://host:port``; see ``KServeAddress``.
        catalog: Where the manifest is found. Its framework need not be installed.
        choice: Which manifest it is.
        options: Threads that preprocess here, and how much is returned.
        remote: How the server is spoken to.
        cache: Gets a file with labels that is at a URL.
        fetch: Gets what a URL of an input names.
        say: Told, in one line, which manifest was taken.

    Raises:
        ConfigurationError: The address or an option makes no sense, or the server's model is not the one
            that the manifest describes.
        UnknownModelError: The catalogue or the server has no such model.
        ManifestError: The manifest asks for what this program does not do.
        AgentError: The server cannot be reached, or is not ready.
    """
    where = KServeAddress.parse(address)
    if options.device.is_gpu or options.threads is not None:
        raise ConfigurationError(
            f"{where}: the server decides where its model runs and in how many threads; "
            "leave out --gpu and --threads"
        )
    name = where.model_name or choice.find(catalog, options.weights).name
    connection = KServeConnection(where, remote.secret, remote.tls, model_timeout_s=remote.model_timeout_s)
    try:
        connection.require_ready()
        served = _ServedModel.ask(connection, catalog, choice, options.weights, name)
        manifest = with_labels(
            require_supported(served.manifest),
            needed=served.weights is not Weights.RANDOM,
            cache=None if served.weights is Weights.RANDOM else cache,
        )
        found = fit(manifest, served.metadata, served.config, f"server {served.address}")
        say(
            f"{served.address}: preprocessed and read here, by the manifest of {manifest.name} "
            f"{manifest.version} for {manifest.framework.name}"
        )
        return _session(connection, served, manifest, found, options, remote, fetch)
    except BaseException:
        connection.close()
        raise


@dataclass(frozen=True, slots=True)
class _ServedModel:
    """What a server tells of itself and the model, and the manifest that goes with it."""

    address: KServeAddress
    server: ServerIdentity
    manifest: ModelManifest
    metadata: pb.ModelMetadataResponse
    config: model_config_pb2.ModelConfig | None
    weights: Weights

    @classmethod
    def ask(
        cls, connection: KServeConnection, catalog: Catalog, choice: ModelChoice, weights: Weights, name: str
    ) -> _ServedModel:
        """Asks a server for the model that it calls ``name``."""
        address = replace(connection.address, model_name=name)
        version = address.model_version or ""
        server = connection.identity()
        metadata = connection.model_metadata(name, version)
        manifest = choice.find(catalog, weights, metadata.platform)
        if not version and manifest.version in metadata.versions and len(metadata.versions) > 1:
            # of several, the one that the manifest is of
            version = manifest.version
            address = replace(address, model_version=version)
            metadata = connection.model_metadata(name, version)
        config = connection.model_config(name, version)
        told = _told(config).get("weights", "")
        known = {kind.value for kind in Weights}
        return cls(address, server, manifest, metadata, config, Weights(told) if told in known else weights)

    @property
    def frameworks(self) -> Mapping[str, str]:
        """What the server runs the model in, with the version where it tells."""
        told = _told(self.config)
        if framework := told.get("framework"):
            return {framework: told.get("framework_version", "")}
        return {self.metadata.platform: ""} if self.metadata.platform else {}

    @property
    def seed(self) -> int | None:
        """What random weights were drawn from, where the server tells."""
        seed = _told(self.config).get("seed", "")
        return int(seed) if self.weights is Weights.RANDOM and seed.isdecimal() else None


def _told(config: model_config_pb2.ModelConfig | None) -> Mapping[str, str]:
    """The parameters of a configuration, of which ``model_messages`` writes some for our own servers."""
    return {key: value.string_value for key, value in config.parameters.items()} if config else {}


def _session(
    connection: KServeConnection,
    served: _ServedModel,
    manifest: ModelManifest,
    found: Fit,
    options: SessionOptions,
    remote: KServeOptions,
    fetch: Fetch,
) -> KServeSession:
    """Puts together what prepares batches, sends them, and reads the outputs."""
    parameters = manifest.inputs[0].parameters
    manifest = _as_served(manifest, served.server, found)
    form = RequestForm(
        str(served.address.model_name),
        served.address.model_version or "",
        found.input_name,
        input_of(manifest).datatype,
        found.output_names,
    )
    predictor = KServePredictor(
        connection, manifest, form, found, PredictorOptions(REMOTE), remote.call_timeout_s
    )
    preprocessor = preprocessor_of(parameters)
    postprocessor = Postprocessor(manifest.output, options.feature_limit)
    threads = options.preprocess_threads
    if threads is None:
        threads = min(usable_cores(), MAX_PREPROCESS_THREADS)
    overlap = bool(options.overlap)
    pipeline = Pipeline(
        predictor,
        preprocessor,
        postprocessor,
        parameters.input_layer,
        fetch=fetch,
        threads=threads,
        overlap=overlap,
        attributes={
            "model_name": manifest.name,
            "model_version": manifest.version,
            "framework_name": manifest.framework.name,
            "framework_version": served.server.version,
            "device": str(REMOTE),
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
    )
    return KServeSession(predictor, pipeline, postprocessor, description)


def _as_served(manifest: ModelManifest, server: ServerIdentity, found: Fit) -> ModelManifest:
    """The manifest of what was measured: the server stands for the framework, which is not known."""
    framework = FrameworkRequirement(name=server.name[:_NAME_CHARACTERS] or UNNAMED_SERVER, version="*")
    parameters = manifest.output.parameters.model_copy(update={"probabilities_layer": found.output_layer})
    output = manifest.output.model_copy(update={"parameters": parameters})
    return manifest.model_copy(update={"framework": framework, "output": output})
