"""Where the program's own files are, as far as no configuration file says otherwise."""

from __future__ import annotations

import os
from pathlib import Path

import platformdirs

PROGRAM = "inferscope"
CONFIG_VARIABLE = "AGENT_CONFIG"
CACHE_VARIABLE = "AGENT_CACHE_DIR"


def configuration_path(named: str | None = None) -> Path | None:
    """Returns where the configuration is; None where none was named and the default file is not there.

    Args:
        named: The file that a flag names.
    """
    path = named or os.environ.get(CONFIG_VARIABLE)
    if path:
        return Path(path)
    default = default_configuration_path()
    return default if default.exists() else None


def default_configuration_path() -> Path:
    """Where the configuration file is when none is named."""
    return platformdirs.user_config_path(PROGRAM) / "config.yaml"


def cache_directory(configured: Path | None = None) -> Path:
    """Returns where downloads are kept: as the environment variable says, or the file, or the default."""
    if variable := os.environ.get(CACHE_VARIABLE):
        return expanded(Path(variable))
    return configured or platformdirs.user_cache_path(PROGRAM)


def expanded(path: Path) -> Path:
    """The path with the home directory for ``~``; as it is, where there is no such home."""
    return Path(os.path.expanduser(path))  # noqa: PTH111 - Path.expanduser fails where there is none
