"""The only user of the LMDB library: an environment that is written."""

from __future__ import annotations

from pathlib import Path

import lmdb

_FIRST_MAP_BYTES = 1 << 30


class LmdbEnvironment:
    """An LMDB that grows as it is written. Not thread-safe.

    Args:
        folder: The folder of ``data.mdb``.

    Raises:
        OSError: It cannot be opened or written; every method may raise it.
    """

    def __init__(self, folder: Path) -> None:
        try:
            self._environment = lmdb.open(str(folder), map_size=_FIRST_MAP_BYTES)
        except lmdb.Error as error:
            raise OSError(str(error)) from error
        self._pending: list[tuple[bytes, bytes]] = []

    def put(self, key: bytes, value: bytes) -> None:
        """Adds a value, which ``commit`` writes."""
        self._pending.append((key, value))

    def commit(self) -> None:
        """Writes all added values in one transaction, and returns once they are on the disk."""
        while True:
            try:
                with self._environment.begin(write=True) as transaction:
                    for key, value in self._pending:
                        transaction.put(key, value)
            except lmdb.MapFullError:
                self._environment.set_mapsize(self._environment.info()["map_size"] * 2)
            except lmdb.Error as error:
                raise OSError(str(error)) from error
            else:
                self._pending.clear()
                return

    def close(self) -> None:
        """Closes the environment without uncommitted data."""
        self._environment.close()
