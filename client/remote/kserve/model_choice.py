"""The choice of the manifest that describes a server's model."""

from __future__ import annotations

from dataclasses import dataclass

from packaging.version import Version

from agent.predictor import Weights
from manifests.catalog import Catalog
from manifests.errors import UnknownModelError
from manifests.schema import ModelManifest


@dataclass(frozen=True, slots=True)
class ModelChoice:
    """Which manifest describes the model.

    Attributes:
        name: The manifest's name of the model.
        version: A version or a constraint; None means the highest.
        framework: The framework of the manifest, which need not be installed; None means any.
    """

    name: str
    version: str | None = None
    framework: str | None = None

    def find(self, catalog: Catalog, weights: Weights, platform: str = "") -> ModelManifest:
        """Returns the manifest.

        One that can have the weights comes first, then the highest version, then the one for the framework
        that the server runs the model in.

        Args:
            catalog: The manifests.
            weights: The weights that the server's model is taken to have.
            platform: What the server runs the model in, such as ``onnxruntime_onnx``; empty where it is not
                known.

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
