"""The configuration file: what is otherwise said by flags and environment variables.

A flag goes before an environment variable, that before the configuration, and that before the default.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated

import platformdirs
import yaml
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from client.places import CONFIG_VARIABLE, PROGRAM, cache_directory, default_configuration_path, expanded
from client.safety_settings import AgentTlsSettings, SafetySettings, relative_to
from manifests.errors import ConfigurationError

DATA_VARIABLE = "AGENT_DATA_DIR"
ARCHITECTURES_VARIABLE = "AGENT_ARCHITECTURES"
_SHOWN_CHARACTERS = 60
_BYTES_PER_GIB = 1024**3


class _Part(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class DatabaseSettings(_Part):
    """Where evaluations are kept: no address means a file in ``data_dir``; no name means the program's."""

    address: str | None = None
    name: str | None = None


class TracerSettings(_Part):
    """Where spans are sent, and how deep an evaluation looks."""

    address: str | None = None
    level: str | None = None


class ServingSettings(SafetySettings):
    """What ``agent serve`` takes where its flags of the same names are left out; None leaves the default."""

    max_batch_size: Annotated[int, Field(ge=1)] | None = None
    max_queue_delay_ms: Annotated[float, Field(ge=0, allow_inf_nan=False)] | None = None
    preferred_batch_sizes: tuple[Annotated[int, Field(ge=1)], ...] | None = None
    max_queue: Annotated[int, Field(ge=1)] | None = None
    memory_limit: Annotated[float, Field(gt=0, allow_inf_nan=False)] | None = None


class Configuration(_Part):
    """The content of a configuration file; every field may be left out.

    Attributes:
        database: The database.
        tracer: The tracer.
        serving: How a served agent loads models and puts requests together.
        manifests: Directories with manifests, relative to the configuration file.
        architectures: Directories with architectures in code, relative to the configuration file.
        framework: The framework that is used when none is named.
        agent: What ``--agent`` says when it is not given.
        agents: The addresses of remote agents, ``host:port``, among which ``--agent any`` chooses.
        agent_tls: How agents are spoken to over TLS.
        secret_file: Where the secret is, of the served agent and of others; relative to the configuration
            file.
        data_dir: Where evaluations, and results that could not be published, are kept; relative to the
            configuration file.
        cache_dir: Where files of models and datasets that were downloaded are kept; relative to the
            configuration file.
        max_download_gib: The largest file that is downloaded, and the most that an archive may hold, in GiB.
    """

    database: DatabaseSettings = DatabaseSettings()
    tracer: TracerSettings = TracerSettings()
    serving: ServingSettings = ServingSettings()
    manifests: tuple[Path, ...] = ()
    architectures: tuple[Path, ...] = ()
    framework: str | None = None
    agent: str | None = None
    agents: tuple[str, ...] = ()
    agent_tls: AgentTlsSettings = AgentTlsSettings()
    secret_file: Path | None = None
    data_dir: Path | None = None
    cache_dir: Path | None = None
    max_download_gib: Annotated[float, Field(gt=0, allow_inf_nan=False)] = 32.0

    @property
    def cache_directory(self) -> Path:
        """The directory that the program keeps in what it has downloaded."""
        return cache_directory(self.cache_dir)

    @property
    def max_download_bytes(self) -> int:
        """The largest file that is downloaded, in bytes."""
        return int(self.max_download_gib * _BYTES_PER_GIB)

    @property
    def data_directory(self) -> Path:
        """The directory that the program keeps its data in."""
        if variable := os.environ.get(DATA_VARIABLE):
            return expanded(Path(variable))
        return self.data_dir or platformdirs.user_data_path(PROGRAM)

    @property
    def architecture_directories(self) -> tuple[Path, ...]:
        """The directories with architectures in code: the environment variable's, and then these."""
        variable = os.environ.get(ARCHITECTURES_VARIABLE, "")
        named = tuple(expanded(Path(part)) for part in variable.split(os.pathsep) if part.strip())
        return (*named, *self.architectures)


def load_configuration(path: Path | None) -> Configuration:
    """Reads the configuration.

    Args:
        path: The file; None means the one that ``AGENT_CONFIG`` names, else the default one if it is there.

    Raises:
        ConfigurationError: A file that was named is not there, or a file does not fit. The message names the
            file and the field.
    """
    if path is None and (variable := os.environ.get(CONFIG_VARIABLE)):
        path = Path(variable)
    named = path is not None
    path = path or default_configuration_path()
    try:
        content = yaml.safe_load(path.read_text(encoding="utf-8"))
    except OSError as error:
        if not named and isinstance(error, FileNotFoundError | NotADirectoryError):
            return Configuration()
        raise ConfigurationError(f"configuration file {path}: {error.strerror or error}") from error
    except (yaml.YAMLError, ValueError) as error:
        raise ConfigurationError(
            f"configuration file {path}: is not YAML: {' '.join(str(error).split())}"
        ) from error
    if content is None:
        return Configuration()
    if not isinstance(content, dict):
        raise ConfigurationError(
            f"configuration file {path}: holds {_shown(content)}; allowed: a mapping of the fields {_FIELDS}"
        )
    try:
        # A field with nothing after it, as all that is below it is a comment, is left out.
        configuration = Configuration.model_validate({k: v for k, v in content.items() if v is not None})
    except ValidationError as error:
        raise ConfigurationError(f"configuration file {path}: {_explain(error)}") from error
    return configuration.model_copy(
        update={
            "manifests": tuple(path.parent / expanded(folder) for folder in configuration.manifests),
            "architectures": tuple(path.parent / expanded(folder) for folder in configuration.architectures),
            "data_dir": configuration.data_dir and path.parent / expanded(configuration.data_dir),
            "cache_dir": configuration.cache_dir and path.parent / expanded(configuration.cache_dir),
            "secret_file": configuration.secret_file and path.parent / expanded(configuration.secret_file),
            "serving": relative_to(path.parent, configuration.serving),
            "agent_tls": relative_to(path.parent, configuration.agent_tls),
        }
    )


_FIELDS = ", ".join(Configuration.model_fields)
_ALLOWED = {"string_type": "text", "tuple_type": "a list", "path_type": "a path", "model_type": "a mapping"}
"""What pydantic's complaints mean to somebody who writes YAML."""


def _explain(error: ValidationError) -> str:
    """Says the first thing that is wrong."""
    first = error.errors(include_url=False)[0]
    field = ".".join(map(str, first["loc"]))
    if first["type"] == "extra_forbidden":
        part = Configuration.model_fields.get(str(first["loc"][0])) if len(first["loc"]) > 1 else None
        kind = part.annotation if part else None
        known = kind.model_fields if isinstance(kind, type) and issubclass(kind, BaseModel) else None
        return f"field {field}: is not known; fields: {', '.join(known) if known else _FIELDS}"
    allowed = _ALLOWED.get(first["type"], first["msg"])
    return f"field {field}: found {_shown(first['input'])}; allowed: {allowed}"


def _shown(value: object) -> str:
    text = repr(value)
    return text if len(text) <= _SHOWN_CHARACTERS else text[: _SHOWN_CHARACTERS - 1] + "…"
