"""Opening of the database that an address names: the store of evaluations, and the directory of agents."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING

from inferometer.manifests.errors import ConfigurationError

if TYPE_CHECKING:
    from inferometer.evaluators.store.agent_directory import AgentDirectory
    from inferometer.evaluators.store.evaluation_store import Connection, EvaluationStore

_NAME = re.compile(r"[A-Za-z0-9_-]{1,60}")
_WITHOUT_STORE = "evaluate with --publish=false"
_SCHEMES = ("mongodb://", "mongodb+srv://")


def open_store(address: str | None, name: str, data_dir: Path) -> EvaluationStore:
    """Opens the store of evaluations; the caller closes it.

    A database that cannot be reached fails here, within a few seconds.

    Args:
        address: None for a local file; else ``host``, ``host:port``, ``mongodb://…`` or ``mongodb+srv://…``.
        name: The database; dots in it become ``_``.
        data_dir: The folder of the local file ``<name>.db``; it is created if it is missing.

    Raises:
        ConfigurationError: The address or the name is invalid.
        StoreError: The database cannot be reached or opened.
    """
    from inferometer.evaluators.store.evaluation_store import EvaluationStore

    return EvaluationStore(_connect(address, name, data_dir, _WITHOUT_STORE))


def open_agent_directory(address: str | None, name: str, data_dir: Path) -> AgentDirectory:
    """Opens the directory of agents in a database; see ``open_store``.

    Raises:
        ConfigurationError: The address or the name is invalid.
        StoreError: The database cannot be reached or opened.
    """
    from inferometer.evaluators.store.agent_directory import AgentDirectory

    return AgentDirectory(_connect(address, name, data_dir))


def local_file(name: str, data_dir: Path) -> Path:
    """Returns the file of a database without an address.

    Raises:
        ConfigurationError: The name cannot be used.
    """
    return data_dir / f"{_database_name(name)}.db"


def check_address(address: str) -> str:
    """Returns the address of a database without surrounding blanks; contacts nothing.

    Raises:
        ConfigurationError: It is invalid.
    """
    if not address.strip() or ("://" in address and not address.startswith(_SCHEMES)):
        from inferometer.evaluators.store.databases.mongodb import without_credentials

        raise ConfigurationError(
            f'database address "{without_credentials(address)}" makes no sense; allowed: host, host:port, '
            "mongodb://… or mongodb+srv://…"
        )
    return address.strip()


def _connect(address: str | None, name: str, data_dir: Path, otherwise: str = "") -> Connection:
    # either driver takes long to import, and only one is needed
    if address is None:
        from inferometer.evaluators.store.databases.sqlite import connect_sqlite

        return connect_sqlite(local_file(name, data_dir), otherwise)
    from inferometer.evaluators.store.databases.mongodb import MongoConnection

    return MongoConnection(check_address(address), _database_name(name), otherwise)


def _database_name(name: str) -> str:
    """Returns the name in the form that both a file and MongoDB accept."""
    sanitised = name.strip().replace(".", "_")
    if not _NAME.fullmatch(sanitised):
        raise ConfigurationError(
            f"database name {name!r} cannot be used; allowed: up to 60 letters, digits, _ and -, and dots, "
            "which become _"
        )
    return sanitised
