"""The open sessions of an agent: found by id, limited in number, closed when idle."""

from __future__ import annotations

import secrets
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from inferometer.agent.server.native.opening import QueuedSession
from inferometer.manifests.errors import SessionError, SessionLimitError


@dataclass(slots=True, eq=False)
class _Entry:
    session: QueuedSession
    last_used_s: float
    users: int = 0
    open: bool = True


class Sessions:
    """The open sessions of an agent, ``limit`` at once. Thread-safe.

    One that was unused for ``idle_s`` seconds may be closed. A session in use is never closed under its user:
    it is removed from the list, and closed when its last user leaves.
    """

    def __init__(self, limit: int, idle_s: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._limit = limit
        self._idle_s = idle_s
        self._clock = clock
        self._lock = threading.Condition()
        self._entries: dict[str, _Entry] = {}
        self._opening = 0
        self._leaving = 0

    def __len__(self) -> int:
        """The number of sessions that are open, or still held by someone after they were closed."""
        with self._lock:
            return len(self._entries) + self._leaving

    def open(self, make: Callable[[], QueuedSession]) -> tuple[str, QueuedSession]:
        """Opens a session; whatever ``make``, which loads the model, raises comes through.

        Returns the session's id, which cannot be guessed, and the session.

        Raises:
            SessionLimitError: The limit is reached, and no session has been idle for long enough.
        """
        self.close_idle()
        with self._lock:
            # Those that are being closed still hold their memory, and count.
            if len(self._entries) + self._opening + self._leaving >= self._limit:
                raise SessionLimitError(
                    f"the agent has its limit of {self._limit} sessions open; close one, or try again later"
                )
            self._opening += 1
        try:
            session = make()
        except BaseException:
            with self._lock:
                self._opening -= 1
            raise
        id_ = secrets.token_urlsafe(16)
        with self._lock:
            self._opening -= 1
            self._entries[id_] = _Entry(session, self._clock())
        return id_, session

    @contextmanager
    def use(self, id_: str) -> Iterator[QueuedSession]:
        """Lends the session of an id; raises SessionError if it is not open."""
        with self._lock:
            entry = self._entries.get(id_)
            if entry is None:
                raise SessionError(
                    "the session is not open: it was closed, idle for too long or never there; open another"
                )
            entry.users += 1
        try:
            yield entry.session
        finally:
            with self._lock:
                entry.users -= 1
                entry.last_used_s = self._clock()
                last = not entry.open and not entry.users
            if last:  # closing may take long, and this may be the event loop
                threading.Thread(target=self._close, args=(entry,), name="close-session", daemon=True).start()

    def close(self, id_: str) -> None:
        """Closes the session of an id; does nothing for an unknown one."""
        with self._lock:
            unused = self._remove([id_])
        self._close(*unused)

    def close_idle(self) -> int:
        """Closes the sessions that have been idle for too long, and returns their number."""
        with self._lock:
            oldest_s = self._clock() - self._idle_s
            idle = [
                id_
                for id_, entry in self._entries.items()
                if not entry.users and entry.last_used_s <= oldest_s
            ]
            unused = self._remove(idle)
        self._close(*unused)
        return len(idle)

    def close_all(self) -> int:
        """Closes every session, and returns their number."""
        with self._lock:
            count = len(self._entries)
            unused = self._remove(list(self._entries))
        self._close(*unused)
        return count

    def wait_for_none(self, timeout_s: float) -> bool:
        """Waits until no session is open or held by anyone; False if some still are after that time."""
        with self._lock:
            return self._lock.wait_for(lambda: not (self._entries or self._leaving), timeout_s)

    def _remove(self, ids: list[str]) -> list[_Entry]:
        """Takes sessions off the list, under the lock; returns those that nobody uses, for closing."""
        entries = [self._entries.pop(id_) for id_ in ids if id_ in self._entries]
        for entry in entries:
            entry.open = False
        self._leaving += len(entries)
        return [entry for entry in entries if not entry.users]

    def _close(self, *entries: _Entry) -> None:
        for entry in entries:
            try:
                entry.session.close()
            finally:
                with self._lock:
                    self._leaving -= 1
                    self._lock.notify_all()
