"""The configuration file: what is otherwise said by flags and environment variables.

A flag goes before an environment variable, that before the configuration, and that before the default.
"""

from __future__ import annotations

import os
from pathlib import Path

import platformdirs
import yaml
from pydantic import BaseModel, ConfigDict, ValidationError

from manifests.errors import ConfigurationError

PROGRAM = "inferscope"
CONFIG_VARIABLE = "AGENT_CONFIG"
DATA_VARIABLE = "AGENT_DATA_DIR"


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


class Configuration(_Part):
    """The content of a configuration file; every field may be left out.

    Attributes:
        database: The database.
        tracer: The tracer.
        manifests: Directories with manifests, relative to the configuration file.
        framework: The framework that is used when none is named.
        agent: The remote agent, ``host:port``, that is used when none is named.
        data_dir: Where evaluations, and results that could not be published, are kept.
    """

    database: DatabaseSettings = DatabaseSettings()
    tracer: TracerSettings = TracerSettings()
    manifests: tuple[Path, ...] = ()
    framework: str | None = None
    agent: str | None = None
    data_dir: Path | None = None

    @property
    def data_directory(self) -> Path:
        """The directory that the program keeps its data in."""
        if variable := os.environ.get(DATA_VARIABLE):
            return Path(variable)
        return self.data_dir or platformdirs.user_data_path(PROGRAM)


def default_path() -> Path:
    """Where the configuration file is when none is named."""
    return platformdirs.user_config_path(PROGRAM) / "config.yaml"


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
    if path is None:
        path = default_path()
        if not path.exists():
            return Configuration()
    try:
        content = yaml.safe_load(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigurationError(f"configuration file {path}: {error.strerror or error}") from error
    except (yaml.YAMLError, ValueError) as error:
        raise ConfigurationError(
            f"configuration file {path}: is not YAML: {' '.join(str(error).split())}"
        ) from error
    try:
        configuration = Configuration.model_validate({} if content is None else content)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        field = ".".join(map(str, first["loc"])) or "(the whole)"
        known = ", ".join(Configuration.model_fields)
        raise ConfigurationError(
            f"configuration file {path}: field {field}: {first['msg']}; fields: {known}"
        ) from error
    directories = tuple(path.parent / directory.expanduser() for directory in configuration.manifests)
    return configuration.model_copy(update={"manifests": directories})
