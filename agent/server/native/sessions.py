"""The open sessions of an agent: found by id, limited in number, closed when idle or abandoned."""

from __future__ import annotations

import secrets
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field

from inferometer.agent.server.native.opening import QueuedSession
from inferometer.agent.serving.served_model import ServedModel
from inferometer.manifests.errors import SessionError, SessionLimitError

GIVES_WAY_S = 30.0
"""A session that was unused for so long is closed when another one needs its place."""
ABANDONED_S = 5.0
"""A session whose client is gone is closed when it was unused for so long."""
_MAX_REMEMBERED = 4096


@dataclass(slots=True, eq=False)
class _Entry:
    session: QueuedSession
    last_used_s: float
    users: int = 0
    open: bool = True
    holds: list[Callable[[], object]] = field(default_factory=list)
    """What ends each call that shows that a client is there."""
    abandoned: bool = False
    """Whether the last of those calls ended by itself: the client died, or its connection was lost."""


class Sessions:
    """The open sessions of an agent, ``limit`` at once. Thread-safe.

    One that was unused for ``idle_s`` seconds may be closed; sooner if its client is gone, or if another one
    needs its place, the least recently used first. A session in use is never closed under its user: it is
    removed from the list, and closed when its last user leaves.
    """

    def __init__(self, limit: int, idle_s: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._limit = limit
        self._idle_s = idle_s
        self._clock = clock
        self._lock = threading.Condition()
        self._entries: dict[str, _Entry] = {}
        self._opening = 0
        self._leaving = 0
        self._holds_end = False
        self._gave_way: deque[str] = deque(maxlen=_MAX_REMEMBERED)

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
        while unused := self._begin_opening():
            self._close(*unused)
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
            entry = self._open_entry(id_)
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

    @contextmanager
    def hold(self, id_: str, end: Callable[[], object]) -> Iterator[None]:
        """Shows that the client of a session is there, until the block ends, which the caller makes it.

        ``end`` is called, once and in any thread, when the session has ended or ``end_holds`` is called. If
        the block of the last who held the session ends before, its client is gone.

        Raises:
            SessionError: The session is not open.
        """
        with self._lock:
            entry = self._open_entry(id_)
            entry.abandoned = False
            entry.holds.append(end)
            if self._holds_end:
                _end_holds(entry)
        try:
            yield
        finally:
            with self._lock:
                if end in entry.holds:
                    entry.holds.remove(end)
                    entry.abandoned = not entry.holds
                    entry.last_used_s = self._clock()

    def end_holds(self) -> None:
        """Ends every ``hold``, also those to come; the sessions stay open."""
        with self._lock:
            self._holds_end = True
            for entry in self._entries.values():
                _end_holds(entry)

    def least_recently_used(self, models: Mapping[ServedModel, int]) -> ServedModel | None:
        """Returns which model to give up first, of those whose users are all sessions that give way.

        ``models`` are the candidates, with the number of the users of each.
        """
        with self._lock:
            last_used_s: dict[ServedModel, list[float]] = {}
            for entry in self._entries.values():
                if self._gives_way(entry):
                    last_used_s.setdefault(entry.session.model, []).append(entry.last_used_s)
            free = [model for model, times in last_used_s.items() if len(times) == models.get(model)]
            return min(free, key=lambda model: max(last_used_s[model]), default=None)

    def give_up(self, model: ServedModel) -> None:
        """Closes the sessions of a model that give way."""
        with self._lock:
            unused = self._close_for_others(
                [
                    id_
                    for id_, entry in self._entries.items()
                    if entry.session.model is model and self._gives_way(entry)
                ]
            )
        self._close(*unused)

    def close(self, id_: str) -> None:
        """Closes the session of an id; does nothing for an unknown one."""
        with self._lock:
            unused = self._remove([id_])
        self._close(*unused)

    def close_idle(self) -> int:
        """Closes the sessions that have been idle for too long, and returns their number."""
        with self._lock:
            now_s = self._clock()
            idle = [
                id_
                for id_, entry in self._entries.items()
                if not entry.users
                and now_s - entry.last_used_s
                >= (min(ABANDONED_S, self._idle_s) if entry.abandoned else self._idle_s)
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

    def _begin_opening(self) -> list[_Entry]:
        """Takes a place; returns the sessions to close before the next try, and none if it has one."""
        with self._lock:
            # Those that are being closed still hold their memory, and count.
            if len(self._entries) + self._opening + self._leaving < self._limit:
                self._opening += 1
                return []
            idle = [id_ for id_, entry in self._entries.items() if self._gives_way(entry)]
            if not idle:
                raise SessionLimitError(
                    f"the agent has its limit of {self._limit} sessions open, all in use; close one, or try "
                    "again later"
                )
            return self._close_for_others([min(idle, key=lambda id_: self._entries[id_].last_used_s)])

    def _gives_way(self, entry: _Entry) -> bool:
        """Whether a session is closed when another one needs its place."""
        idle_s = self._clock() - entry.last_used_s
        return not entry.users and (entry.abandoned or idle_s >= GIVES_WAY_S)

    def _close_for_others(self, ids: list[str]) -> list[_Entry]:
        self._gave_way.extend(ids)
        return self._remove(ids)

    def _open_entry(self, id_: str) -> _Entry:
        """The session of an id, under the lock; raises SessionError if it is not open."""
        entry = self._entries.get(id_)
        if entry is not None:
            return entry
        if id_ in self._gave_way:
            raise SessionError(
                "the session is not open: another one needed its place, and it was unused for "
                f"{GIVES_WAY_S:g} s or its connection was lost; open another (the agent's --max_sessions "
                "is how many there may be)"
            )
        raise SessionError(
            "the session is not open: it was closed, idle for too long or never there; open another"
        )

    def _remove(self, ids: list[str]) -> list[_Entry]:
        """Takes sessions off the list, under the lock; returns those that nobody uses, for closing."""
        entries = [self._entries.pop(id_) for id_ in ids if id_ in self._entries]
        for entry in entries:
            entry.open = False
            _end_holds(entry)
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


def _end_holds(entry: _Entry) -> None:
    """Ends the calls that hold a session, under the lock."""
    while entry.holds:
        entry.holds.pop()()
