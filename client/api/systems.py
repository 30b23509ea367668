"""Opens systems under test for jobs: in this process, on agents, or on a KServe server."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from inferometer.agent.artifacts.cache import ArtifactCache
from inferometer.agent.artifacts.web import fetch_image
from inferometer.agent.inference.postprocessing import with_labels
from inferometer.agent.inference.registry import Registry
from inferometer.agent.inference.results import SystemDescription
from inferometer.agent.inference.selection import select_model
from inferometer.agent.inference.session import Session, check_model, open_session
from inferometer.agent.inference.unloaded import describe_unloaded
from inferometer.agent.tracing.recorder import TraceScope
from inferometer.agent.training.companion import CompanionsOf
from inferometer.agent.training.trainer import Trainer, TrainerOptions
from inferometer.client.api.invocation import Invocation
from inferometer.client.remote.channel.address import is_kserve
from inferometer.evaluators.jobs.requests import SystemRequest
from inferometer.evaluators.running.resources import Notify
from inferometer.evaluators.system import SystemUnderTest, TensorSystem
from inferometer.manifests.catalog import Catalog
from inferometer.manifests.schema import ModelManifest

if TYPE_CHECKING:
    from inferometer.client.remote.channel.connection import RemoteOptions
    from inferometer.client.remote.kserve.session import KServeSession
    from inferometer.client.remote.native.agent import RemoteAgent


class Systems:
    """Opens the systems that requests name; implements ``JobResources``. Loads gRPC only for remote systems.

    Args:
        invocation: Provides the configuration, the manifests, the cache and the secret.
    """

    def __init__(self, invocation: Invocation) -> None:
        self._invocation = invocation

    @property
    def catalog(self) -> Catalog:
        """Returns the catalogue of manifests."""
        return self._invocation.catalog

    @property
    def cache(self) -> ArtifactCache:
        """Returns the cache that downloads files from URLs."""
        return self._invocation.cache

    @property
    def registry(self) -> Registry:
        """Returns the registry of frameworks."""
        return self._invocation.registry

    @property
    def data_directory(self) -> Path:
        """Returns the folder of the program's data."""
        return self._invocation.data_directory

    def open_system(
        self, request: SystemRequest, *, warm_up: bool, notify: Notify, trace: TraceScope | None
    ) -> SystemUnderTest:
        """Opens a model; see ``JobResources``."""
        if len(request.agents) < 2 or is_kserve(request.agents[0]):
            return self._open_one(request, notify, trace)
        from inferometer.client.remote.pool.pool import open_agent_pool

        return open_agent_pool(
            request.agents,
            lambda address: self._open_remote(request, address, trace),
            warm_up=warm_up,
            say=notify,
        )

    def open_loadable(self, request: SystemRequest, *, notify: Notify) -> TensorSystem:
        """Opens a model for a load test; see ``JobResources``."""
        return self._open_one(request, notify, None)

    def find_model(self, request: SystemRequest) -> ModelManifest:
        """Returns the manifest of the model that a request names; see ``JobResources``."""
        return with_labels(self._select(request), needed=False)

    def check_system(self, request: SystemRequest) -> ModelManifest | None:
        """Checks the framework and the device of a model that runs in this process; see ``JobResources``."""
        if request.agents:
            return None
        given, session = request.given, request.session
        manifest = self._select(request) if given is None else given.manifest
        if session.device.is_gpu or session.precision is not None:  # otherwise it can wait for its import
            in_memory = given is not None and given.in_memory is not None
            check_model(manifest, session, self._invocation.registry, in_memory=in_memory)
        return manifest

    def check_trainer(self, manifest: ModelManifest, options: TrainerOptions) -> None:
        """Checks the framework, the options and the devices of a training; see ``JobResources``."""
        from inferometer.agent.training.opening import check_trainer

        check_trainer(manifest, options, self._invocation.registry)

    def describe(
        self, request: SystemRequest, *, preprocess_threads: int, overlap: bool
    ) -> SystemDescription:
        """Describes a model without loading it; see ``JobResources``."""
        return describe_unloaded(
            self._select(request),
            self._invocation.registry,
            preprocess_threads=preprocess_threads,
            overlap=overlap,
        )

    def open_trainer(
        self, manifest: ModelManifest, options: TrainerOptions
    ) -> tuple[Trainer, SystemDescription]:
        """Opens a model to train it; see ``JobResources``."""
        from inferometer.agent.training.opening import open_trainer

        invocation = self._invocation
        return open_trainer(
            manifest,
            options,
            invocation.registry,
            architectures=invocation.architectures,
            cache=invocation.cache,
        )

    def companions(self, request: SystemRequest, communication: str) -> CompanionsOf | None:
        """Returns a function that lists the companion processes of a model's ranks; see ``JobResources``."""
        from inferometer.agent.training.opening import find_companions

        entry = self._invocation.registry.find(self._select(request).framework.name)
        return find_companions(entry, communication)

    def _select(self, request: SystemRequest) -> ModelManifest:
        invocation = self._invocation
        return select_model(
            invocation.catalog,
            invocation.registry,
            request.model_name,
            request.model_version,
            request.framework_name or invocation.configuration.framework,
            request.session.weights,
        )

    def _open_one(
        self, request: SystemRequest, notify: Notify, trace: TraceScope | None
    ) -> Session | KServeSession | RemoteAgent:
        if not request.agents:
            return self._open_here(request, trace)
        if is_kserve(request.agents[0]):
            return self._open_kserve(request, notify)
        return self._open_remote(request, request.agents[0], trace)

    def _open_here(self, request: SystemRequest, trace: TraceScope | None) -> Session:
        invocation, given = self._invocation, request.given
        manifest = self._select(request) if given is None else given.manifest
        return open_session(
            manifest,
            request.session,
            invocation.registry,
            architectures=invocation.architectures,
            cache=invocation.cache,
            # The user names the URLs, so private and local addresses are allowed.
            fetch=partial(fetch_image, allow_private=True),
            trace=trace,
            given=given,
        )

    def _open_remote(self, request: SystemRequest, address: str, trace: TraceScope | None) -> RemoteAgent:
        from inferometer.client.remote.native.agent import open_remote_agent

        invocation = self._invocation
        return open_remote_agent(
            address,
            request.model_name,
            request.model_version,
            request.framework_name or invocation.configuration.framework,
            request.session,
            self._remote_options(request),
            trace=trace,
        )

    def _open_kserve(self, request: SystemRequest, notify: Notify) -> KServeSession:
        from inferometer.client.remote.kserve.opening import ModelChoice, open_kserve

        invocation = self._invocation
        return open_kserve(
            request.agents[0],
            invocation.catalog,
            # The configured framework applies only to models in this process.
            ModelChoice(request.model_name, request.model_version, request.framework_name),
            request.session,
            self._remote_options(request),
            cache=invocation.cache,
            fetch=partial(fetch_image, allow_private=True),
            say=notify,
        )

    def _remote_options(self, request: SystemRequest) -> RemoteOptions:
        from inferometer.client.remote.channel.connection import RemoteOptions

        secret, tls = self._invocation.secret, self._invocation.agent_tls
        return RemoteOptions(
            secret, tls, request.open_timeout_s, request.answer_timeout_s, request.shared_memory
        )
