"""The store in one SQLite file, through neosqlite: without a server, for several processes at once."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import neosqlite
from neosqlite import exceptions
from neosqlite.connection import sqlite3  # neosqlite chooses between two builds of this module

from evaluators.store.collection_store import INDEXES, CollectionStore, Database
from manifests.errors import StoreError

_PATIENCE_S = 60.0
_RETRY_S = 0.02


def open_sqlite(path: Path) -> CollectionStore:
    """Opens the store in the file ``path``; see ``connect_sqlite``."""
    return CollectionStore(connect_sqlite(path))


def connect_sqlite(path: Path, otherwise: str = "") -> SqliteConnection:
    """Opens the database in the file ``path``, which is made if it is not there.

    Args:
        path: The file.
        otherwise: What the user may do without a database; empty for nothing.

    Raises:
        StoreError: The file cannot be made or opened, is no database, or stays locked by another process.
    """
    or_otherwise = f", or {otherwise}" if otherwise else ""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise StoreError(
            f"{path.parent}: the folder for evaluations cannot be made: {error.strerror or error}; "
            f"name a database with --database_address{or_otherwise}"
        ) from error
    deadline = time.monotonic() + _PATIENCE_S
    while True:
        try:
            return SqliteConnection(path)
        except _ERRORS as error:
            # Two processes that make the file at once collide where SQLite does not wait by itself.
            if "lock" in str(error) and time.monotonic() < deadline:
                time.sleep(_RETRY_S)
                continue
            raise StoreError(
                f"{path}: cannot be opened as a database of evaluations: {_reason(error)}; "
                f"use another --database_name{or_otherwise}"
            ) from error


class SqliteConnection:
    """One connection to a SQLite file in WAL mode: readers do not wait, writers wait for one another.

    Every transaction is on the disk when it ends (``synchronous=FULL``).
    """

    def __init__(self, path: Path) -> None:
        self.location = str(path)
        self.errors: tuple[type[Exception], ...] = _ERRORS
        self.duplicate_error: type[Exception] = sqlite3.IntegrityError
        # What cannot be opened is to fail here: a connection of neosqlite, half made, calls itself without
        # end when it is collected, which may take the process down.
        sqlite3.connect(str(path)).close()
        # neosqlite's own setting of auto_vacuum is a write at each opening, which waits for other writers.
        self._connection = neosqlite.Connection(
            str(path), timeout=_PATIENCE_S, auto_vacuum="NONE", write_concern={"j": True}
        )
        self.database: Database = self._connection
        try:
            self._make_collections()
        except BaseException:
            self._connection.close()
            raise

    @contextmanager
    def transaction(self) -> Iterator[None]:
        """Takes what is written inside as one; the lock is held from here to the end."""
        with self._connection.start_session() as session, session.start_transaction():
            yield

    def reason(self, error: Exception) -> str:
        """Says in one line why something failed."""
        return _reason(error)

    def close(self) -> None:
        """Closes the file."""
        self._connection.close()

    def _make_collections(self) -> None:
        """Makes tables and indexes in one transaction, unless all are there.

        Outside a transaction neosqlite would go on without an index whose table another process has locked.
        """
        if set(INDEXES) <= set(self._connection.list_collection_names()):
            return
        with self.transaction():
            for name, indexed in INDEXES.items():
                collection = self._connection[name]
                for field in indexed:
                    collection.create_index(field)


_ERRORS: tuple[type[Exception], ...] = (
    sqlite3.Error,
    exceptions.MalformedDocument,
    exceptions.MalformedQueryException,
    exceptions.CollectionInvalid,
    exceptions.InvalidOperation,
    ValueError,
    OverflowError,
)


def _reason(error: Exception) -> str:
    text = " ".join(str(error).split())
    if "lock" in text:
        return f"another process has kept it locked for more than {_PATIENCE_S:.0f} s"
    return text[:200]
