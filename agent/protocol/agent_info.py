"""The information that clients use to choose an agent: its machine, frameworks and models."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime

from inferometer.agent.hardware.environment import read_environment
from inferometer.agent.inference.registry import Registry
from inferometer.manifests.catalog import Catalog


@dataclass(frozen=True, slots=True)
class RunnableModel:
    """A model that an agent can run because its framework is installed there."""

    name: str
    version: str
    framework: str


@dataclass(frozen=True, slots=True)
class AgentInfo:
    """The properties of an agent that do not change while it runs.

    The processor's name is empty if unknown. ``frameworks`` maps names to installed versions; ``models`` are
    the models that the agent can run. ``started_at`` is in UTC; None if unknown. ``http_port`` is the port of
    the Open Inference Protocol over HTTP, or None if it is not served.
    """

    hostname: str
    architecture: str
    cpu_model: str
    gpus: tuple[str, ...]
    frameworks: Mapping[str, str]
    models: tuple[RunnableModel, ...]
    inferometer_version: str
    started_at: datetime | None
    http_port: int | None = None


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
