"""Which store an address means."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING

from evaluators.store.base import EvaluationStore
from manifests.errors import ConfigurationError

if TYPE_CHECKING:
    from evaluators.store.agent_directory import AgentDirectory
    from evaluators.store.collection_store import Connection

_NAME = re.compile(r"[A-Za-z0-9_-]{1,60}")
_WITHOUT_STORE = "evaluate with --publish=false"
_SCHEMES = ("mongodb://", "mongodb+srv://")


def open_store(address: str | None, name: str, data_dir: Path) -> EvaluationStore:
    """Opens the store of evaluations; the caller closes it.

    A database that cannot be reached fails here, within a few seconds.

    Args:
        address: None for a local file; else ``host``, ``host:port``, ``mongodb://…`` or ``mongodb+srv://…``.
        name: The database; dots in it become ``_``.
        data_dir: The folder of the local file ``<name>.db``; it is made if it is not there.

    Raises:
        ConfigurationError: The address or the name makes no sense.
        StoreError: The database cannot be reached or opened.
    """
    from evaluators.store.collection_store import CollectionStore

    return CollectionStore(_connect(address, name, data_dir, _WITHOUT_STORE))


def open_agent_directory(address: str | None, name: str, data_dir: Path) -> AgentDirectory:
    """Opens the directory of agents in a database; see ``open_store``.

    Raises:
        ConfigurationError: The address or the name makes no sense.
        StoreError: The database cannot be reached or opened.
    """
    from evaluators.store.agent_directory import AgentDirectory

    return AgentDirectory(_connect(address, name, data_dir))


def local_file(name: str, data_dir: Path) -> Path:
    """Where a database is that has no address.

    Raises:
        ConfigurationError: The name cannot be used.
    """
    return data_dir / f"{_database_name(name)}.db"


def check_address(address: str) -> str:
    """Returns a database's address as it is used, without asking whether anything is there.

    Raises:
        ConfigurationError: It makes no sense.
    """
    if not address.strip() or ("://" in address and not address.startswith(_SCHEMES)):
        from evaluators.store.mongodb import without_credentials

        raise ConfigurationError(
            f'database address "{without_credentials(address)}" makes no sense; allowed: host, host:port, '
            "mongodb://… or mongodb+srv://…"
        )
    return address.strip()


def _connect(address: str | None, name: str, data_dir: Path, otherwise: str = "") -> Connection:
    """Each kind of database takes a while to import, and only one is needed."""
    if address is None:
        from evaluators.store.sqlite import connect_sqlite

        return connect_sqlite(local_file(name, data_dir), otherwise)
    from evaluators.store.mongodb import MongoConnection

    return MongoConnection(check_address(address), _database_name(name), otherwise)


def _database_name(name: str) -> str:
    """The name as a file and MongoDB can both have it."""
    sanitised = name.strip().replace(".", "_")
    if not _NAME.fullmatch(sanitised):
        raise ConfigurationError(
            f"database name {name!r} cannot be used; allowed: up to 60 letters, digits, _ and -, and dots, "
            "which become _"
        )
    return sanitised
