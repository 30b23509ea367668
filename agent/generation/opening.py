"""Opens the language models of an agent: a manifest becomes an engine, a tokenizer and a chat template."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import cast

from inferometer.agent.artifacts.files import ArtifactCache, get_file, resolve_artifacts
from inferometer.agent.artifacts.locations import tokenizer_files
from inferometer.agent.generation.engine import Engine, LanguageModel
from inferometer.agent.generation.tokenizers import (
    ByteTokenizer,
    ChatTemplate,
    FileTokenizer,
    Tokenizer,
    chat_prompt,
)
from inferometer.agent.hardware.environment import PredictorOptions, container_architecture, read_environment
from inferometer.agent.inference.registry import Registry
from inferometer.agent.inference.requirements import GENERATION, unsupported
from inferometer.agent.inference.stages import SystemDescription
from inferometer.manifests.errors import (
    AgentError,
    ConfigurationError,
    InputError,
    ManifestError,
    UnknownModelError,
)
from inferometer.manifests.schema import ModelManifest

_MOST_CHARACTERS = 64  # of a token


@dataclass(frozen=True, slots=True)
class GenerationOptions:
    """How a language model runs.

    Attributes:
        predictor: The device, threads and precision.
        max_batch_size: The largest number of requests in a step.
        max_waiting: The largest number of requests that wait to join.
    """

    predictor: PredictorOptions = PredictorOptions()  # noqa: RUF009 - frozen
    max_batch_size: int = 1
    max_waiting: int = 1024


@dataclass(frozen=True, slots=True)
class Generator:
    """An open language model.

    Attributes:
        manifest: The model.
        engine: Generates its texts.
        tokenizer: Its tokenizer.
        template: Its chat template, if it has one.
        description: The model, with the checksums of its files, and the system that runs it.
    """

    manifest: ModelManifest
    engine: Engine
    tokenizer: Tokenizer
    template: ChatTemplate | None
    description: SystemDescription

    def tokens(self, text: str, *, special: bool = True) -> tuple[int, ...]:
        """Returns the tokens of a prompt; raises InputError at once if it is far too long for the context."""
        if len(text) > (most := _MOST_CHARACTERS * self.engine.context_length):
            raise InputError(f"the prompt has {len(text)} characters; at most {most} are tokenized")
        return self.tokenizer.encode(text, special=special)

    def chat_tokens(self, messages: Sequence[Mapping[str, str]]) -> tuple[int, ...]:
        """Returns the tokens of the prompt for the next message of a chat; raises InputError."""
        return self.tokens(chat_prompt(messages, self.template), special=self.template is None)

    def close(self) -> None:
        """Ends its requests and frees the model; calling it again does nothing."""
        self.engine.close()


def open_generator(
    manifest: ModelManifest,
    registry: Registry,
    options: GenerationOptions = GenerationOptions(),
    *,
    cache: ArtifactCache | None = None,
) -> Generator:
    """Opens a language model. Its tokenizer is that of its text input, or bytes if its input is a tensor.

    A ``tokenizer_config.json`` beside the ``config.json`` may have a chat template.

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
    checksums = dict(artifacts.checksums) | ({"tokenizer": files[0].checksum} if files else {})
    predictor = options.predictor
    model = model_type(artifacts, predictor, options.max_batch_size)
    description = SystemDescription(
        manifest=manifest,
        checksums=checksums,
        framework_version=entry.installed_version or "",
        device=predictor.device,
        threads=predictor.operator_threads,
        preprocess_threads=0,
        overlap=False,
        environment=read_environment(registry.versions, details=model.details()),
        precision=predictor.precision,
    )
    engine = Engine(
        model,
        tokenizer,
        manifest.name,
        max_batch_size=options.max_batch_size,
        max_waiting=options.max_waiting,
    )
    return Generator(manifest, engine, tokenizer, template, description)


class Generators:
    """The language models of an agent. Thread-safe.

    A model is opened for its first request and stays open until the agent stops.

    Args:
        models: Returns the manifests of all models, of any task, the highest version of each first.
        registry: The frameworks.
        cache: Downloads files; without one, all must be on this machine.
        options_of: Returns how a model runs.
    """

    def __init__(
        self,
        models: Callable[[], Sequence[ModelManifest]],
        registry: Registry,
        cache: ArtifactCache | None = None,
        *,
        options_of: Callable[[ModelManifest], GenerationOptions] = lambda _: GenerationOptions(),
    ) -> None:
        self._models = models
        self._registry = registry
        self._options_of = options_of
        self._cache = cache
        self._lock = threading.Lock()
        self._open: dict[str, Generator] = {}
        self._is_closed = False

    def models(self) -> list[ModelManifest]:
        """Returns the highest version of each language model that an installed framework can run."""
        versions = {name.casefold(): version for name, version in self._registry.versions.items()}
        found: dict[str, ModelManifest] = {}
        for model in self._models():
            if model.output.type == GENERATION and model.runs_in(
                versions.get(model.framework.name.casefold())
            ):
                found.setdefault(model.name, model)
        return list(found.values())

    def get(self, name: str) -> Generator:
        """Returns a model, which it opens if necessary.

        Raises:
            UnknownModelError: There is no such model, or it generates no text.
            InferometerError: The model cannot be opened; see ``open_generator``.
        """
        key = name.strip().casefold()
        if (found := self._open.get(key)) is not None:
            return found
        known = {model.name.casefold(): model for model in self.models()}
        if key not in known:
            raise UnknownModelError.of(name, (model.name for model in known.values()))
        with self._lock:
            if self._is_closed:
                raise AgentError("the agent is stopping")
            if key not in self._open:
                manifest, registry = known[key], self._registry
                options = self._options_of(manifest)
                self._open[key] = open_generator(manifest, registry, options, cache=self._cache)
            return self._open[key]

    def close(self) -> None:
        """Closes all models; none is opened any more."""
        with self._lock:
            self._is_closed = True
            for each in self._open.values():
                each.close()
