"""The ``Registry`` service: what the agent can run, and on what."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from contextlib import suppress
from datetime import datetime, timezone
from typing import Any

import grpc

from agent.facts import AgentFacts, read_facts
from agent.registry import Registry
from agent.server.rpc import Methods
from manifests.catalog import Catalog
from manifests.errors import InferscopeError
from manifests.schema import ModelManifest
from protos.inferscope.v1 import registry_pb2

SERVICE = registry_pb2.DESCRIPTOR.services_by_name["Registry"].full_name


class RegistryService:
    """Lists frameworks and models, and describes the agent.

    Args:
        catalog: The models.
        registry: The frameworks.
        open_sessions: Tells how many models are open.
    """

    def __init__(
        self, catalog: Catalog, registry: Registry, open_sessions: Callable[[], int] = lambda: 0
    ) -> None:
        self._catalog = catalog
        self._registry = registry
        self._count_sessions = open_sessions
        self._started_at = datetime.fromtimestamp(int(time.time()), timezone.utc)
        self._facts: AgentFacts | None = None
        self._lock = threading.Lock()

    @property
    def facts(self) -> AgentFacts:
        """What the agent is; read once, which takes a while, as it asks the GPU's driver."""
        with self._lock:
            if self._facts is None:
                self._facts = read_facts(self._catalog, self._registry, self._started_at)
            return self._facts

    def start(self) -> None:
        """Begins to read what the agent is, so that the first who asks need not wait for it."""
        threading.Thread(target=self._read, name="read-facts", daemon=True).start()

    def _read(self) -> None:
        with suppress(InferscopeError):  # it is told to who asks
            _ = self.facts

    def handlers(self) -> dict[str, grpc.RpcMethodHandler[Any, Any]]:
        """The service's methods by name."""
        methods, pb = Methods(SERVICE), registry_pb2
        return {
            "ListFrameworks": methods.unary(
                "ListFrameworks",
                self.list_frameworks,
                pb.ListFrameworksRequest.FromString,
                pb.ListFrameworksResponse.SerializeToString,
            ),
            "ListModels": methods.unary(
                "ListModels",
                self.list_models,
                pb.ListModelsRequest.FromString,
                pb.ListModelsResponse.SerializeToString,
            ),
            "Describe": methods.unary(
                "Describe",
                self.describe,
                pb.DescribeRequest.FromString,
                pb.DescribeResponse.SerializeToString,
            ),
        }

    @property
    def open_sessions(self) -> int:
        """How many models are open."""
        return self._count_sessions()

    def describe(
        self, _: registry_pb2.DescribeRequest, __: grpc.ServicerContext
    ) -> registry_pb2.DescribeResponse:
        """Describes the agent."""
        facts = self.facts
        return registry_pb2.DescribeResponse(
            hostname=facts.hostname,
            architecture=facts.architecture,
            cpu_model=facts.cpu_model,
            gpus=facts.gpus,
            inferscope_version=facts.inferscope_version,
            started_unix_ms=int(facts.started_at.timestamp() * 1000) if facts.started_at else 0,
            open_sessions=self.open_sessions,
        )

    def list_frameworks(
        self, _: registry_pb2.ListFrameworksRequest, __: grpc.ServicerContext
    ) -> registry_pb2.ListFrameworksResponse:
        """Lists every framework, installed or not."""
        return registry_pb2.ListFrameworksResponse(
            frameworks=[
                registry_pb2.Framework(
                    name=entry.name,
                    version=entry.installed_version or "",
                    installed=entry.installed_version is not None,
                    install=entry.install,
                )
                for entry in self._registry.entries
            ]
        )

    def list_models(
        self, request: registry_pb2.ListModelsRequest, _: grpc.ServicerContext
    ) -> registry_pb2.ListModelsResponse:
        """Lists the models, of all frameworks or of one."""
        wanted = self._registry.find(request.framework_name).name if request.framework_name else None
        versions = {name.casefold(): version for name, version in self._registry.versions.items()}
        return registry_pb2.ListModelsResponse(
            models=[
                _model(manifest, versions.get(manifest.framework.name.casefold()))
                for manifest in self._catalog.models
                if wanted is None or manifest.framework.name.casefold() == wanted.casefold()
            ]
        )


def _model(manifest: ModelManifest, installed: str | None) -> registry_pb2.Model:
    return registry_pb2.Model(
        name=manifest.name,
        version=manifest.version,
        framework_name=manifest.framework.name,
        framework_constraint=manifest.framework.version,
        description=manifest.description,
        runnable=manifest.runs_in(installed),
    )
