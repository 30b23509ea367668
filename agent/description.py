"""What a system under test says of itself, for the record of an evaluation."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from agent.device import Device
from agent.environment import Environment
from agent.predictor import Weights
from manifests.schema import ModelManifest


@dataclass(frozen=True, slots=True)
class SystemDescription:
    """An open model, and what it runs on.

    Attributes:
        manifest: The model.
        checksums: ``sha256:…`` of its files.
        framework_version: The installed version of the manifest's framework. Where all that is known is the
            server, the manifest names it as the framework, and this is its version; empty if not known.
        device: Where the model runs.
        threads: Threads that one operator may use on the CPU; None where the framework does not tell.
        preprocess_threads: Threads that read and preprocess ahead; 0 when nothing runs ahead.
        overlap: Whether they go on while a batch is predicted.
        environment: The machine that runs the model, as far as it is known.
        agent: ``local`` for this process, else the address of the agent.
        weights: Where the weights came from.
        seed: What random weights were drawn from; None for others.
    """

    manifest: ModelManifest
    checksums: Mapping[str, str]
    framework_version: str
    device: Device
    threads: int | None
    preprocess_threads: int
    overlap: bool
    environment: Environment
    agent: str = "local"
    weights: Weights = Weights.PRETRAINED
    seed: int | None = None
