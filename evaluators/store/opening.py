"""Which store an address means."""

from __future__ import annotations

import re
from pathlib import Path

from evaluators.store.base import EvaluationStore
from manifests.errors import ConfigurationError

_NAME = re.compile(r"[A-Za-z0-9_-]{1,60}")
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
    name = _database_name(name)
    if address is None:
        from evaluators.store.sqlite import (
            open_sqlite,
        )  # each takes a while to import, and only one is needed

        return open_sqlite(data_dir / f"{name}.db")
    from evaluators.store.mongodb import open_mongodb, without_credentials

    if not address.strip() or ("://" in address and not address.startswith(_SCHEMES)):
        raise ConfigurationError(
            f'database address "{without_credentials(address)}" makes no sense; allowed: host, host:port, '
            "mongodb://… or mongodb+srv://…"
        )
    return open_mongodb(address.strip(), name)


def _database_name(name: str) -> str:
    """The name as a file and MongoDB can both have it."""
    sanitised = name.strip().replace(".", "_")
    if not _NAME.fullmatch(sanitised):
        raise ConfigurationError(
            f"database name {name!r} cannot be used; allowed: up to 60 letters, digits, _ and -, and dots, "
            "which become _"
        )
    return sanitised
