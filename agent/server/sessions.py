"""The sessions that an agent has open: found by id, limited in number, closed when nobody uses them."""

from __future__ import annotations

import secrets
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from agent.session import Session
from manifests.errors import SessionError, SessionLimitError


@dataclass(slots=True, eq=False)
class _Entry:
    session: Session
    last_used_s: float
    users: int = 0
    open: bool = True


class Sessions:
    """The open sessions of an agent. Thread-safe.

    A session that is in use is never closed under its user: it is taken off the list, and closed by the last
    one that leaves it.

    Args:
        limit: The most sessions that are open at once.
        idle_s: How long a session may be unused, in seconds, before it is closed.
        clock: A monotonic clock in seconds.
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

    def open(self, make: Callable[[], Session]) -> tuple[str, Session]:
        """Opens a session.

        Args:
            make: Loads the model; whatever it raises comes through.

        Returns:
            The session's id, which cannot be guessed, and the session.

        Raises:
            SessionLimitError: As many are open as may be, and none of them is idle for long enough.
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
    def use(self, id_: str) -> Iterator[Session]:
        """Lends the session of an id.

        Raises:
            SessionError: It is not open.
        """
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
            if last:  # which may take long, and this may be the thread that all calls share
                threading.Thread(target=self._close, args=(entry,), name="close-session", daemon=True).start()

    def close(self, id_: str) -> None:
        """Closes the session of an id; where there is none, nothing is done."""
        with self._lock:
            unused = self._remove([id_])
        self._close(*unused)

    def close_idle(self) -> int:
        """Closes the sessions that nobody has used for too long, and returns their number."""
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
