"""Connections to a SQLite file through neosqlite, which several processes use without a server."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import neosqlite
from neosqlite import exceptions
from neosqlite.connection import sqlite3  # neosqlite chooses between two builds of this module

from inferometer.evaluators.store.evaluation_store import indexes
from inferometer.manifests.errors import StoreError

_TIMEOUT_S = 60.0
_RETRY_S = 0.02


def connect_sqlite(path: Path, otherwise: str = "") -> SqliteConnection:
    """Opens the database in a file, read-only if it cannot be written; creates a missing one.

    Args:
        path: The file.
        otherwise: The user's alternative to a database, for messages; empty if there is none.

    Raises:
        StoreError: The file cannot be created or opened, is not a database, or stays locked by another
            process.
    """
    or_otherwise = f", or {otherwise}" if otherwise else ""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise StoreError(
            f"{path.parent}: cannot create the folder for evaluations: {error.strerror or error}; "
            f"name a database with --database_address{or_otherwise}"
        ) from error
    deadline = time.monotonic() + _TIMEOUT_S
    while True:
        try:
            return SqliteConnection(path)
        except _ERRORS as error:
            # Two processes that create the file at once collide where SQLite does not wait.
            if "lock" in str(error) and time.monotonic() < deadline:
                time.sleep(_RETRY_S)
                continue
            raise StoreError(
                f"{path}: cannot be opened as a database of evaluations: {_reason(error)}; "
                f"use another --database_name{or_otherwise}"
            ) from error


class _Connection(neosqlite.Connection):  # type: ignore[misc]
    """A connection whose file may be unusable.

    neosqlite looks up a missing attribute as a collection, which needs the connection's attributes in turn.
    When a partly constructed connection is collected, that recursion may overflow the stack of the thread
    that collects it, and crash the process.
    """

    db: Any = None
    _closed = False
    _is_clone = False


class SqliteConnection:
    """One connection to a SQLite file in WAL mode: readers do not wait, and writers wait for one another.

    Every transaction is durable once it ends (``synchronous=FULL``).
    """

    def __init__(self, path: Path) -> None:
        self.location = str(path)
        self.errors: tuple[type[Exception], ...] = _ERRORS
        self.duplicate_error: type[Exception] = sqlite3.IntegrityError
        # First its text: from SQLite 3.45 on, the date is compared in JSONB, where the length comes first.
        # What neosqlite filters in Python has no text.
        self.creation: tuple[str, ...] = ("created_at.$date", "created_at")
        # SQLite reads a file in WAL mode only where it can write beside it, or if nothing changes it: then it
        # does not look into the log, which must be empty
        is_fixed = path.exists() and not os.access(path.parent, os.W_OK) and not _has_log(path)
        name = f"{path.absolute().as_uri()}?immutable=1" if is_fixed else str(path)
        # neosqlite's default auto_vacuum writes whenever it opens a file, which waits for other writers.
        self._connection = _Connection(
            name, uri=is_fixed, timeout=_TIMEOUT_S, auto_vacuum="NONE", write_concern={"j": True}
        )
        self.database: Any = self._connection
        try:
            if not is_fixed:
                self._make_collections()
        except BaseException:
            self._connection.close()
            raise

    @contextmanager
    def transaction(self) -> Iterator[None]:
        """Makes the writes inside it atomic; holds the lock until its end."""
        with self._connection.start_session() as session, session.start_transaction():
            yield

    def prepare_to_write(self) -> None:
        """Does nothing: the tables and indexes exist already."""

    def reason(self, error: Exception) -> str:
        """Returns the reason for an error as one line."""
        return _reason(error)

    def close(self) -> None:
        """Closes the file."""
        self._connection.close()

    def _make_collections(self) -> None:
        """Creates missing tables and indexes in one transaction.

        Outside a transaction, neosqlite silently skips an index whose table another process has locked.
        """
        if set(indexes()) <= set(self._connection.list_collection_names()):
            return
        with self.transaction():
            for name, indexed in indexes().items():
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


def _has_log(path: Path) -> bool:
    """Returns whether the write-ahead log holds writes that are not yet in the file."""
    log = Path(f"{path}-wal")
    return log.exists() and log.stat().st_size > 0


def _reason(error: Exception) -> str:
    text = " ".join(str(error).split())
    if "lock" in text:
        return f"another process has kept it locked for more than {_TIMEOUT_S:.0f} s"
    return text[:200]
