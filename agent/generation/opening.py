"""Opens a language model: a manifest becomes an engine with a tokenizer and a chat template."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

from inferometer.agent.artifacts.files import ArtifactCache, get_file, resolve_artifacts
from inferometer.agent.artifacts.locations import tokenizer_files
from inferometer.agent.generation.engine import Engine, LanguageModel
from inferometer.agent.generation.tokenizers import ByteTokenizer, ChatTemplate, FileTokenizer, Tokenizer
from inferometer.agent.hardware.environment import PredictorOptions, container_architecture, read_environment
from inferometer.agent.inference.registry import Registry
from inferometer.agent.inference.requirements import require_supported
from inferometer.agent.inference.stages import SystemDescription
from inferometer.manifests.errors import ConfigurationError
from inferometer.manifests.schema import ModelManifest


def open_engine(
    manifest: ModelManifest,
    registry: Registry,
    cache: ArtifactCache | None = None,
    options: PredictorOptions | None = None,
    *,
    max_batch_size: int = 1,
    **more: Any,
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
        more: Further arguments of ``Engine``.

    Raises:
        ManifestError: The manifest requires something that is not supported.
        UnknownFrameworkError, FrameworkUnavailableError: The framework or a library is missing.
        ConfigurationError: The model generates no text, or the framework runs no language models.
        ArtifactError: A file is missing, changed or damaged.
        DeviceError: The device is not available.
    """
    require_supported(manifest, container_architecture(), generates=True)
    if not manifest.generates:
        raise ConfigurationError(
            f"model {manifest.name} generates no text: its task is {manifest.output.type}, not generation"
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
    model = model_type(artifacts.graph, artifacts.weights, options, max_batch_size)
    description = SystemDescription(
        manifest=manifest,
        checksums=dict(artifacts.checksums) | ({"tokenizer": files[0].checksum} if files else {}),
        framework_version=entry.installed_version or "",
        device=options.device,
        threads=options.operator_threads,
        preprocess_threads=0,
        overlap=False,
        environment=read_environment(registry.versions, details=model.details()),
        precision=model.precision,
    )
    engine = Engine(model, tokenizer, manifest.name, template, max_batch_size=max_batch_size, **more)
    return engine, description
