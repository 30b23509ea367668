"""The locations of the program's own files: its configuration, its cache and its data."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

PROGRAM = "inferometer"
CONFIG_VARIABLE = "AGENT_CONFIG"
_DIRECTORIES = {"cache": ("AGENT_CACHE_DIR", "a cache"), "data": ("AGENT_DATA_DIR", "data")}
"""The environment variables that name the directories, and the words for their content in messages."""
_EARLIER = "inferscope"
"""The program's former name; existing directories with this name are reported."""

Notify = Callable[[str], None]


def configuration_path(named: str | None, notify: Notify) -> Path | None:
    """Returns the path of the configuration file; None if none is named and the default one does not exist.

    Without a path ``named`` by a flag, the environment variable applies. ``notify`` is called with one line
    if only a directory with the program's earlier name exists.
    """
    path = named or os.environ.get(CONFIG_VARIABLE)
    if path:
        return Path(path)
    default = _default("configuration", "user_config_path", notify) / "config.yaml"
    return default if default.exists() else None


def directory(kind: str, configured: Path | None, notify: Notify) -> Path:
    """Returns the path of the ``cache`` or ``data`` directory.

    The environment takes precedence over the configuration, and the configuration over the default.
    """
    variable, what = _DIRECTORIES[kind]
    if named := os.environ.get(variable):
        return expanded(Path(named))
    return configured or _default(what, f"user_{kind}_path", notify)


def expanded(path: Path) -> Path:
    """Returns the path with ``~`` expanded, or the unchanged path if that home directory is unknown."""
    return Path(os.path.expanduser(path))  # noqa: PTH111 - Path.expanduser fails where there is none


def _default(what: str, function: str, notify: Notify) -> Path:
    """Returns a default directory; if only one with the earlier name exists, reports how to move it.

    The reported command is safe even after the new directory was created: ``mv`` moves the old database next
    to the new one instead of replacing it.
    """
    import platformdirs  # takes as long as the rest of `agent --help`

    directory_of: Callable[[str], Path] = getattr(platformdirs, function)
    new, old = directory_of(PROGRAM), directory_of(_EARLIER)
    if old.is_dir() and not new.exists():
        import shlex

        source, target = shlex.quote(str(old)), shlex.quote(str(new))
        move = f"mkdir -p {target} && mv -n {source}/* {target}"
        if (old / f"{_EARLIER}.db").exists():
            move += f" && mv --backup=numbered {target}/{_EARLIER}.db {target}/{PROGRAM}.db"
        notify(f"found {what} of an earlier version in {old}; to keep it, run: {move}")
    return new
