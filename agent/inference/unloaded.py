"""The description of a model that is not loaded, for uses that need only its manifest and this machine."""

from __future__ import annotations

import platform

from inferometer.agent.hardware.device import CPU
from inferometer.agent.hardware.environment import container_architecture, read_environment
from inferometer.agent.inference.registry import Registry
from inferometer.agent.inference.requirements import require_supported
from inferometer.agent.inference.results import SystemDescription
from inferometer.agent.preprocessing.model_preprocessor import model_preprocessor_of
from inferometer.manifests.schema import ModelManifest


def describe_unloaded(
    manifest: ModelManifest, registry: Registry, *, preprocess_threads: int = 0, overlap: bool = False
) -> SystemDescription:
    """Describes a model without its files, on the CPU of this machine, whose framework does not run.

    Raises:
        ManifestError: The manifest requires something that is not supported, or other hardware.
        UnknownFrameworkError: The framework is unknown.
        FrameworkUnavailableError: The library that decodes the model's images is not installed.
    """
    require_supported(manifest, container_architecture(platform.machine()))
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
