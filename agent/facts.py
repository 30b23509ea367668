"""What an agent says of itself to those who look for one: its machine, its frameworks and its models."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime

from agent.environment import read_environment
from agent.registry import Registry
from manifests.catalog import Catalog


@dataclass(frozen=True, slots=True)
class RunnableModel:
    """A model that an agent can run: the framework that it needs is installed there."""

    name: str
    version: str
    framework: str


@dataclass(frozen=True, slots=True)
class AgentFacts:
    """What an agent is. It does not change while the agent runs.

    Attributes:
        hostname: Its machine's name.
        architecture: The processor's architecture, such as ``x86_64``.
        cpu_model: The processor's name; empty where the system does not tell.
        gpus: The name of each GPU.
        frameworks: The installed version of each framework by name.
        models: What it can run.
        inferscope_version: Its program's version.
        started_at: When it began to serve, in UTC; None where that is not known.
    """

    hostname: str
    architecture: str
    cpu_model: str
    gpus: tuple[str, ...]
    frameworks: Mapping[str, str]
    models: tuple[RunnableModel, ...]
    inferscope_version: str
    started_at: datetime | None


def read_facts(catalog: Catalog, registry: Registry, started_at: datetime) -> AgentFacts:
    """Reads what an agent on this machine is.

    Args:
        catalog: The models; those that are hidden are not told.
        registry: The frameworks.
        started_at: When it began to serve, in UTC.
    """
    versions = registry.versions
    environment = read_environment(versions)
    by_name = {name.casefold(): version for name, version in versions.items()}
    return AgentFacts(
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
        inferscope_version=environment.inferscope_version,
        started_at=started_at,
    )
