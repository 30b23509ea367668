"""The information that clients use to choose an agent: its machine, frameworks and models."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime


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
