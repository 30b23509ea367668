"""``RegistryService``: the frameworks and models that the agent can run, and its hardware."""

from __future__ import annotations

import multiprocessing
import os
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from datetime import datetime, timezone

import psutil

from inferometer.agent.hardware.conditions import own_cpu_s
from inferometer.agent.hardware.environment import read_environment
from inferometer.agent.inference.registry import Registry
from inferometer.agent.protocol.agent_info import AgentInfo, RunnableModel
from inferometer.agent.server.calls import CallContext, Method, methods_of
from inferometer.agent.serving.prediction_watch import AgentLoad, Trouble
from inferometer.manifests.catalog import Catalog
from inferometer.manifests.errors import InferometerError
from inferometer.protos.inferometer.v1 import registry_pb2

_SERVICE = registry_pb2.DESCRIPTOR.services_by_name["RegistryService"]
SERVICE = _SERVICE.full_name


class RegistryService:
    """Lists frameworks and models, and describes the agent."""

    def __init__(self, catalog: Catalog, registry: Registry, load: Callable[[], AgentLoad]) -> None:
        self._catalog = catalog
        self._registry = registry
        self._load = load
        self._started_ns = time.perf_counter_ns()
        self._started_at = datetime.fromtimestamp(int(time.time()), timezone.utc)
        self.http_port: int | None = None
        """The address on which the agent serves HTTP; set it before ``start``."""
        self._agent_info: AgentInfo | None = None
        self._lock = threading.Lock()

    @property
    def agent_info(self) -> AgentInfo:
        """The agent's description; read once, because querying the GPU driver is slow."""
        with self._lock:
            if self._agent_info is None:
                self._agent_info = read_agent_info(
                    self._catalog, self._registry, self._started_at, self.http_port
                )
            return self._agent_info

    def start(self) -> None:
        """Starts reading ``agent_info``, so that no call waits for it; the end of the program does."""
        threading.Thread(target=self._read, name="read-agent-info", daemon=False).start()

    def _read(self) -> None:
        with suppress(InferometerError):  # every call raises it
            _ = self.agent_info

    def methods(self) -> list[Method]:
        """The service's methods, which respond even when the agent is busy."""
        return methods_of(_SERVICE, self, aside=[method.name for method in _SERVICE.methods])

    @property
    def open_sessions(self) -> int:
        """The number of open models."""
        return self._load().sessions

    def describe(self, _: registry_pb2.DescribeRequest, __: CallContext) -> registry_pb2.DescribeResponse:
        """Describes the agent."""
        agent_info = self.agent_info
        return registry_pb2.DescribeResponse(
            hostname=agent_info.hostname,
            architecture=agent_info.architecture,
            cpu_model=agent_info.cpu_model,
            gpus=agent_info.gpus,
            inferometer_version=agent_info.inferometer_version,
            started_unix_ms=int(self._started_at.timestamp() * 1000),
            open_sessions=self.open_sessions,
            http_port=agent_info.http_port or 0,
        )

    def list_frameworks(
        self, _: registry_pb2.ListFrameworksRequest, __: CallContext
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
        self, request: registry_pb2.ListModelsRequest, _: CallContext
    ) -> registry_pb2.ListModelsResponse:
        """Lists the models, of all frameworks or of one."""
        wanted = self._registry.find(request.framework_name).name if request.framework_name else None
        versions = {name.casefold(): version for name, version in self._registry.versions.items()}
        return registry_pb2.ListModelsResponse(
            models=[
                registry_pb2.Model(
                    name=manifest.name,
                    version=manifest.version,
                    framework_name=manifest.framework.name,
                    framework_constraint=manifest.framework.version,
                    description=manifest.description,
                    runnable=manifest.runs_in(versions.get(manifest.framework.name.casefold())),
                )
                for manifest in self._catalog.models
                if wanted is None or manifest.framework.name.casefold() == wanted.casefold()
            ]
        )

    def status(self, _: registry_pb2.StatusRequest, __: CallContext) -> registry_pb2.StatusResponse:
        """Returns the status of the agent."""
        agent_info, load = self.agent_info, self._load()
        children = [child.pid or 0 for child in multiprocessing.active_children()]
        return registry_pb2.StatusResponse(
            health="SERVING" if load.serving else "NOT_SERVING",
            inferometer_version=agent_info.inferometer_version,
            started_unix_ms=int(self._started_at.timestamp() * 1000),
            uptime_ns=time.perf_counter_ns() - self._started_ns,
            open_sessions=load.sessions,
            models=[
                registry_pb2.LoadedModel(
                    name=model.manifest.name,
                    version=model.manifest.version,
                    framework_name=model.manifest.framework.name,
                    device=str(model.description.device),
                    waiting_requests=model.waiting,
                    busy_ns=model.busy_ns,
                    predicted_inputs=model.statistics.totals.inputs,
                    instances=model.options.instances,
                    instances_alive=model.alive,
                )
                for model in load.models
            ],
            troubles=troubles(load.trouble),
            gpus=agent_info.gpus,
            resident_memory_bytes=sum(map(_resident_bytes, (os.getpid(), *children))),
            cpu_ns=round(own_cpu_s(children) * 1e9),
        )


def read_agent_info(
    catalog: Catalog, registry: Registry, started_at: datetime, http_port: int | None = None
) -> AgentInfo:
    """Returns the properties of an agent on this machine that has been serving since ``started_at``."""
    versions = registry.versions
    environment = read_environment(versions)
    by_name = {name.casefold(): version for name, version in versions.items()}
    return AgentInfo(
        hostname=environment.hostname,
        architecture=environment.architecture,
        cpu_model=environment.cpu_model,
        gpus=tuple(gpu.name for gpu in environment.gpus),
        frameworks=environment.frameworks,
        models=tuple(
            RunnableModel(model.name, model.version, model.framework.name)
            for model in catalog.models
            if model.runs_in(by_name.get(model.framework.name.casefold()))
        ),
        inferometer_version=environment.inferometer_version,
        started_at=started_at,
        http_port=http_port,
    )


def _resident_bytes(process: int) -> int:
    with suppress(psutil.Error):  # it has ended meanwhile
        return int(psutil.Process(process).memory_info().rss)
    return 0


def troubles(trouble: Trouble) -> list[str]:
    """Returns the reasons why an agent, or an instance of a model, is unhealthy, one per line."""
    lost = [f"{device} is lost: {message}" for device, message in trouble.lost_devices]
    hanging = [
        f"model {model}: a prediction has run for {ns / 1e9:.1f} s"
        + f"; instances that are alive: {alive}" * bool(alive)
        for model, ns, alive in trouble.hanging
    ]
    return lost + hanging
