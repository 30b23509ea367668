"""The configuration file, whose settings apply unless a flag or an environment variable overrides them.

The order of precedence is: flag, environment variable, configuration file, default.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal, get_args

import yaml
from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError
from pydantic_core import PydanticCustomError

from inferometer.client.api.clusters import ClusterProfile
from inferometer.client.api.directories import expanded
from inferometer.manifests.errors import ConfigurationError, explained, shown_value

ARCHITECTURES_VARIABLE = "AGENT_ARCHITECTURES"
_Count = Annotated[int, Field(ge=1)]


def _count_or_auto(value: Any) -> Any:
    if value != "auto" and not (type(value) is int and value >= 1):
        raise PydanticCustomError("count_or_auto", "a whole number of at least 1, or auto")
    return value


_Instances = Annotated[int | Literal["auto"], BeforeValidator(_count_or_auto)]
_SINGLE_OR_SEVERAL = BeforeValidator(lambda value: (value,) if isinstance(value, str) else value)
_LISTED = BeforeValidator(lambda found: ",".join(map(str, found)) if isinstance(found, list) else found)
_Positive = Annotated[float, Field(gt=0, allow_inf_nan=False)]


class _Part(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class AgentTlsSettings(_Part):
    """The client's TLS settings for connections to agents; paths are relative to the configuration file.

    ``ca`` are the authorities to trust; ``cert`` and ``key`` belong to the client; ``server_name`` is the
    name to expect in agents' certificates.
    """

    ca: Path | None = None
    cert: Path | None = None
    key: Path | None = None
    server_name: str | None = None


class SafetySettings(_Part):
    """TLS settings and limits of a served agent, named like the flags; None keeps the default."""

    tls_cert: Path | None = None
    tls_key: Path | None = None
    tls_ca: Path | None = None
    insecure: bool | None = None
    allowed_hosts: tuple[str, ...] | None = None
    max_message_mb: Annotated[int, Field(ge=1, le=2047)] | None = None
    max_sessions: _Count | None = None
    max_inputs: _Count | None = None
    max_pixels: _Count | None = None
    max_streams: _Count | None = None
    max_client_streams: _Count | None = None
    max_client_rps: _Positive | None = None
    client_burst: _Count | None = None
    max_connections: _Count | None = None
    max_connection_age_s: _Positive | None = None
    max_connection_idle_s: _Positive | None = None


class DatabaseSettings(_Part):
    """The database of evaluations; if no address is set, a file in ``data_dir``. The name has a default."""

    address: str | None = None
    name: str | None = None


class TracerSettings(_Part):
    """The collector for spans, the URL at which users view traces, and the default trace level."""

    address: str | None = None
    url: str | None = None
    level: str | None = None


MAX_WORKERS = 128
"""The maximum number of processes of one agent."""


class ModelServingSettings(_Part):
    """Instances, GPUs, threads and batching of one model, named like the flags; None: as for all models."""

    max_batch_size: _Count | None = None
    max_queue_delay_ms: Annotated[float, Field(ge=0, allow_inf_nan=False)] | None = None
    preferred_batch_sizes: tuple[_Count, ...] | None = None
    max_queue: _Count | None = None
    instances: _Instances | None = None
    gpus: Annotated[str, _LISTED] | None = None
    threads: _Count | None = None


class ServingSettings(ModelServingSettings, SafetySettings):
    """Defaults for the flags of ``agent serve`` with the same names; None keeps the program's default.

    ``models`` has the settings of models that are not served like the others, by name.
    """

    memory_limit: _Positive | None = None
    priority_levels: _Count | None = None
    default_priority_level: _Count | None = None
    default_queue_policy: str | None = None
    priority_queue_policy: tuple[str, ...] | None = None
    inline_predict_us: Annotated[float, Field(ge=0, allow_inf_nan=False)] | None = None
    pin: bool | None = None
    workers: Annotated[int, Field(ge=1, le=MAX_WORKERS)] | None = None
    version_policy: Annotated[tuple[str, ...], _SINGLE_OR_SEVERAL] | None = None
    models: dict[str, ModelServingSettings] = Field(default_factory=dict)

    def with_models(self, models: Mapping[str, Any]) -> ServingSettings:
        """Returns the settings with other ``models``; raises ConfigurationError if a value is invalid."""
        try:
            found = Configuration.model_validate({"serving": {"models": models}}).serving.models
        except ValidationError as error:
            raise ConfigurationError(_explain(error).removeprefix("field serving.")) from error
        return self.model_copy(update={"models": found})


class Configuration(_Part):
    """The content of a configuration file; every field is optional.

    Attributes:
        database: The database.
        tracer: The tracer.
        serving: Models, batching and limits of a served agent.
        manifests: Directories with manifests, relative to the configuration file.
        architectures: Directories with architectures defined in code, relative to the configuration file.
        datasets: The paths of datasets that users obtain themselves, by name; relative to this file.
        framework: The framework to use if no flag names one.
        agent: The default of ``--agent``.
        agents: The addresses of remote agents, ``host:port``, among which ``--agent any`` chooses.
        agent_tls: The client's TLS settings for connections to agents.
        clusters: The profiles of clusters that run Slurm, by name.
        secret_file: The file with the secret of served agents; relative to the configuration file.
        data_dir: The directory of evaluations and unpublished results; relative to the configuration file.
        cache_dir: The directory of downloaded files; relative to the configuration file.
        max_download_gib: The maximum size of a downloaded file and of an unpacked archive, in GiB.
    """

    database: DatabaseSettings = DatabaseSettings()
    tracer: TracerSettings = TracerSettings()
    serving: ServingSettings = ServingSettings()
    manifests: tuple[Path, ...] = ()
    architectures: tuple[Path, ...] = ()
    datasets: dict[str, Path] = Field(default_factory=dict)
    framework: str | None = None
    agent: str | None = None
    agents: tuple[str, ...] = ()
    agent_tls: AgentTlsSettings = AgentTlsSettings()
    clusters: dict[str, ClusterProfile] = Field(default_factory=dict)
    secret_file: Path | None = None
    data_dir: Path | None = None
    cache_dir: Path | None = None
    max_download_gib: _Positive = 32.0

    @property
    def architecture_directories(self) -> tuple[Path, ...]:
        """The directories of code-defined architectures: first from the environment, then from this file."""
        variable = os.environ.get(ARCHITECTURES_VARIABLE, "")
        named = tuple(expanded(Path(part)) for part in variable.split(os.pathsep) if part.strip())
        return (*named, *self.architectures)


def load_configuration(path: Path | None) -> Configuration:
    """Reads the configuration file; returns the defaults if ``path`` is None.

    Raises:
        ConfigurationError: The file cannot be read, or is invalid. The message names the file and field.
    """
    if path is None:
        return Configuration()
    try:
        with explained(ConfigurationError, f"configuration file {path}"):
            content = yaml.safe_load(path.read_text(encoding="utf-8"))
    except (yaml.YAMLError, ValueError) as error:
        raise ConfigurationError(
            f"configuration file {path}: is not YAML: {' '.join(str(error).split())}"
        ) from error
    if content is None:
        return Configuration()
    if not isinstance(content, dict):
        raise ConfigurationError(
            f"configuration file {path}: holds {shown_value(content)}; allowed: a mapping of the fields "
            f"{_FIELDS}"
        )
    try:
        # A field without a value, for example above commented-out lines, counts as unset.
        configuration = Configuration.model_validate({k: v for k, v in content.items() if v is not None})
    except ValidationError as error:
        raise ConfigurationError(f"configuration file {path}: {_explain(error)}") from error
    resolved: Configuration = _resolved(path.parent, configuration)
    return resolved


def _resolved(folder: Path, value: Any) -> Any:
    """Returns a value with its relative paths, at any depth, resolved against a folder."""
    match value:
        case Path():
            return folder / expanded(value)
        case tuple():
            return tuple(_resolved(folder, item) for item in value)
        case dict():
            return {name: _resolved(folder, item) for name, item in value.items()}
        case BaseModel():
            parts = {name: _resolved(folder, getattr(value, name)) for name in type(value).model_fields}
            return value.model_copy(update=parts)
    return value


_FIELDS = ", ".join(Configuration.model_fields)
_ALLOWED = {
    "string_type": "text",
    "tuple_type": "a list",
    "path_type": "a path",
    "model_type": "a mapping",
    "dict_type": "a mapping",
}
"""The values that fields accept, in YAML terms, keyed by pydantic's error types."""


def _explain(error: ValidationError) -> str:
    """Returns the first validation error as one line."""
    first = error.errors(include_url=False)[0]
    field = ".".join(map(str, first["loc"]))
    if first["type"] == "extra_forbidden":
        kind: Any = Configuration
        for name in first["loc"][:-1]:
            is_part = hasattr(kind, "model_fields")  # else a mapping, whose values have a type
            kind = kind.model_fields[name].annotation if is_part else get_args(kind)[-1]
        return f"field {field}: is not known; fields: {', '.join(kind.model_fields)}"
    allowed = _ALLOWED.get(first["type"], first["msg"])
    return f"field {field}: found {shown_value(first['input'])}; allowed: {allowed}"
