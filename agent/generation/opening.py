"""Opens the language models of an agent: a manifest becomes an engine, a tokenizer and a chat template."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, cast

from inferometer.agent.artifacts.files import ArtifactCache, get_file, resolve_artifacts
from inferometer.agent.artifacts.locations import tokenizer_files
from inferometer.agent.generation.engine import Engine, LanguageModel
from inferometer.agent.generation.tokenizers import ByteTokenizer, ChatTemplate, FileTokenizer, Tokenizer
from inferometer.agent.hardware.environment import PredictorOptions, container_architecture, read_environment
from inferometer.agent.inference.registry import Registry
from inferometer.agent.inference.requirements import GENERATION, unsupported
from inferometer.agent.inference.stages import SystemDescription
from inferometer.manifests.errors import AgentError, ConfigurationError, ManifestError, UnknownModelError
from inferometer.manifests.schema import ModelManifest


def open_engine(
    manifest: ModelManifest,
    registry: Registry,
    cache: ArtifactCache | None = None,
    options: PredictorOptions | None = None,
    *,
    max_batch_size: int = 1,
    max_waiting: int = 1024,
) -> tuple[Engine, SystemDescription]:
    """Opens a language model; returns it with its description.

    Its tokenizer is that of its text input, or bytes if its input is a tensor. A
    ``tokenizer_config.json`` beside the ``config.json`` may have a chat template.

    Args:
        manifest: The model.
        registry: The frameworks.
        cache: Downloads files; without one, all must be on this machine.
        options: The device, threads and precision.
        max_batch_size: The largest number of requests in a step.
        max_waiting: The largest number of requests that wait to join.

    Raises:
        ManifestError: The manifest requires something that is not supported.
        UnknownFrameworkError, FrameworkUnavailableError: The framework or a library is missing.
        ConfigurationError: The model generates no text, or the framework runs no language models.
        ArtifactError: A file is missing, changed or damaged.
        DeviceError: The device is not available.
    """
    if found := unsupported(manifest, container_architecture()):
        raise ManifestError(f"{manifest.source}: model {manifest.name} cannot be opened: {found[0]}")
    if manifest.output.type != GENERATION:
        raise ConfigurationError(
            f"model {manifest.name} generates no text: its task is {manifest.output.type}, not {GENERATION}"
        )
    entry = registry.find(manifest.framework.name)
    if not entry.generator:
        raise ConfigurationError(f"framework {entry.name} runs no language models here")
    model_type = cast("Callable[..., LanguageModel]", entry.import_part(entry.generator))
    artifacts = resolve_artifacts(manifest, cache=cache)
    files = [get_file(file, cache) for file in tokenizer_files(manifest).values()]
    tokenizer: Tokenizer = FileTokenizer(files[0].path) if files else ByteTokenizer()
    template = ChatTemplate.of_folder(Path(artifacts.graph).parent) if artifacts.graph else None
    options = options or PredictorOptions()
    model = model_type(artifacts, options, max_batch_size)
    description = SystemDescription(
        manifest=manifest,
        checksums=dict(artifacts.checksums) | ({"tokenizer": files[0].checksum} if files else {}),
        framework_version=entry.installed_version or "",
        device=options.device,
        threads=options.operator_threads,
        preprocess_threads=0,
        overlap=False,
        environment=read_environment(registry.versions, details=model.details()),
        precision=options.precision,
    )
    engine = Engine(
        model, tokenizer, manifest.name, template, max_batch_size=max_batch_size, max_waiting=max_waiting
    )
    return engine, description


class Engines:
    """The language models of an agent. Thread-safe.

    A model is opened for its first request and stays open until the agent stops.

    Args:
        models: Returns the manifests of all models, of any task, the highest version of each first.
        registry: The frameworks.
        cache: Downloads files; without one, all must be on this machine.
        options_of: Returns the further arguments of ``open_engine`` for a model.
    """

    def __init__(
        self,
        models: Callable[[], Iterable[ModelManifest]],
        registry: Registry,
        cache: ArtifactCache | None = None,
        *,
        options_of: Callable[[ModelManifest], Mapping[str, Any]] = lambda _: {},
    ) -> None:
        self._models = models
        self._registry = registry
        self._cache = cache
        self._options_of = options_of
        self._lock = threading.Lock()
        self._open: dict[str, Engine] = {}
        self._is_closed = False

    def models(self) -> dict[str, ModelManifest]:
        """Returns the highest version of each language model that can run here, by its name in lower case."""
        versions = {name.casefold(): version for name, version in self._registry.versions.items()}
        found: dict[str, ModelManifest] = {}
        for model in self._models():
            version = versions.get(model.framework.name.casefold())
            if model.output.type == GENERATION and model.runs_in(version):
                found.setdefault(model.name.casefold(), model)
        return found

    def get(self, name: str) -> Engine:
        """Returns a model, which it opens if necessary.

        Raises:
            UnknownModelError: There is no such model, or it generates no text.
            InferometerError: The model cannot be opened; see ``open_engine``.
        """
        key = name.strip().casefold()
        if (found := self._open.get(key)) is not None:
            return found
        known = self.models()
        if key not in known:
            raise UnknownModelError.of(name, (model.name for model in known.values()))
        with self._lock:
            if self._is_closed:
                raise AgentError("the agent is stopping")
            if key not in self._open:
                options = self._options_of(known[key])
                self._open[key], _ = open_engine(known[key], self._registry, self._cache, **options)
            return self._open[key]

    def close(self) -> None:
        """Closes all models; none is opened any more."""
        with self._lock:
            self._is_closed = True
            for each in self._open.values():
                each.close()
