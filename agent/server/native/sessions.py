"""The open sessions of an agent: found by id, limited in number, and closed when idle or abandoned.

A session is opened for the model that a request names; several clients may share its model.
"""

from __future__ import annotations

import secrets
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace

from inferometer.agent.inference.registry import Registry
from inferometer.agent.inference.session import SessionOptions, select_model
from inferometer.agent.protocol.conversion import read_options
from inferometer.agent.serving.served_model import Lease, ServedModel
from inferometer.agent.serving.served_models import ModelSettings
from inferometer.manifests.catalog import Catalog
from inferometer.manifests.errors import SessionError, SessionLimitError
from inferometer.manifests.schema import ModelManifest
from inferometer.protos.inferometer.v1 import predict_pb2


@dataclass(frozen=True, slots=True)
class ModelFinder:
    """Finds those models of an agent that requests name. Thread-safe.

    ``settings_of`` returns the settings of a model, whose number of threads per operator applies to requests
    that specify none, and whose GPUs to those that ask for the first of them.
    """

    catalog: Catalog
    registry: Registry
    settings_of: Callable[[ModelManifest], ModelSettings]

    def find(self, request: predict_pb2.OpenRequest) -> tuple[ModelManifest, SessionOptions]:
        """Returns the model that a request names, and the options to open it with.

        Raises:
            UnknownModelError, UnknownFrameworkError, FrameworkUnavailableError: The model cannot be run here.
            ConfigurationError: The request's options are invalid, or the model generates text.
            ArtifactError: The request requires pretrained weights, and the model has none.
        """
        options = read_options(request)
        manifest = select_model(
            self.catalog,
            self.registry,
            request.model_name,
            request.model_version or None,
            request.framework_name or None,
            options.weights,
        )
        manifest.require_predictions()
        settings = self.settings_of(manifest)
        threads = settings.threads if options.threads is None else options.threads
        device = settings.device if settings.device.of(0) == options.device else options.device
        return manifest, replace(options, threads=threads, device=device.first(settings.batching.instances))


GIVES_WAY_S = 30.0
"""After this idle time, a session may be closed to make room for another one."""
ABANDONED_S = 5.0
"""After this idle time, a session whose client is gone may be closed."""
_MAX_REMEMBERED = 4096


@dataclass(slots=True, eq=False)
class _Entry:
    lease: Lease
    last_used_s: float
    users: int = 0
    open: bool = True
    holds: list[Callable[[], object]] = field(default_factory=list)
    """The callbacks that end the calls by which clients show that they are connected."""
    abandoned: bool = False
    """Whether the last of those calls ended on its own: the client died or lost its connection."""


class Sessions:
    """The open sessions of an agent, at most ``limit`` at once. Thread-safe.

    A session that is idle for ``idle_s`` seconds may be closed. It may be closed earlier if its client is
    gone or if another session needs its place; the least recently used one is closed first. A session in use
    is removed from the list, but closed only when its last user leaves.
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
        """The number of sessions that are open, or closed but still in use."""
        with self._lock:
            return len(self._entries) + self._leaving

    def open(self, make: Callable[[], Lease]) -> tuple[str, Lease]:
        """Opens a session; exceptions of ``make``, which loads the model, are raised unchanged.

        Returns the session's id, which cannot be guessed, and the lease on its model.

        Raises:
            SessionLimitError: The limit is reached, and no session has been idle for long enough.
        """
        self.close_idle()
        while unused := self._begin_opening():
            self._close(*unused)
        try:
            lease = make()
        except BaseException:
            with self._lock:
                self._opening -= 1
            raise
        id_ = secrets.token_urlsafe(16)
        with self._lock:
            self._opening -= 1
            self._entries[id_] = _Entry(lease, self._clock())
        return id_, lease

    @contextmanager
    def use(self, id_: str) -> Iterator[ServedModel]:
        """Lends the model of the session with this id for a ``with`` block.

        Raises SessionError if the session is not open.
        """
        with self._lock:
            entry = self._open_entry(id_)
            entry.users += 1
        try:
            yield entry.lease.model
        finally:
            with self._lock:
                entry.users -= 1
                entry.last_used_s = self._clock()
                last = not entry.open and not entry.users
            if last:  # closing can be slow, and this may be the event loop
                threading.Thread(target=self._close, args=(entry,), name="close-session", daemon=True).start()

    @contextmanager
    def hold(self, id_: str, end: Callable[[], object]) -> Iterator[None]:
        """Marks the client of a session as connected until the ``with`` block ends.

        ``end`` is called once, in any thread, when the session ends or ``end_holds`` is called; the caller
        then ends the block. If the last such block of a session ends before that, the session's client is
        gone.

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
        """Ends every ``hold``, including later ones; the sessions stay open."""
        with self._lock:
            self._holds_end = True
            for entry in self._entries.values():
                _end_holds(entry)

    def least_recently_used(self, models: Mapping[ServedModel, int]) -> ServedModel | None:
        """Returns the model to release first, all of whose users are sessions that may be closed.

        ``models`` are the candidates, with the number of users of each.
        """
        with self._lock:
            last_used_s: dict[ServedModel, list[float]] = {}
            for entry in self._entries.values():
                if self._gives_way(entry):
                    last_used_s.setdefault(entry.lease.model, []).append(entry.last_used_s)
            free = [model for model, times in last_used_s.items() if len(times) == models.get(model)]
            return min(free, key=lambda model: max(last_used_s[model]), default=None)

    def give_up(self, model: ServedModel) -> None:
        """Closes those sessions of a model that may be closed to make room."""
        self._end(lambda _, entry: entry.lease.model is model and self._gives_way(entry), for_others=True)

    def close(self, id_: str) -> None:
        """Closes the session with this id; unknown ids have no effect."""
        self._end(lambda known, _: known == id_)

    def close_idle(self) -> int:
        """Closes the sessions that have been idle for too long, and returns their number."""
        abandoned_s = min(ABANDONED_S, self._idle_s)

        def is_idle(_: str, entry: _Entry) -> bool:
            idle_s = self._clock() - entry.last_used_s
            return not entry.users and idle_s >= (abandoned_s if entry.abandoned else self._idle_s)

        return self._end(is_idle)

    def close_all(self) -> int:
        """Closes all sessions, and returns their number."""
        return self._end(lambda *_: True)

    def _end(self, which: Callable[[str, _Entry], bool], *, for_others: bool = False) -> int:
        """Closes some sessions, which give way ``for_others``, and returns their number."""
        with self._lock:
            ids = [id_ for id_, entry in self._entries.items() if which(id_, entry)]
            unused = self._remove(ids, for_others=for_others)
        self._close(*unused)
        return len(ids)

    def wait_for_none(self, timeout_s: float) -> bool:
        """Waits until no session is open or in use; returns False on timeout."""
        with self._lock:
            return self._lock.wait_for(lambda: not (self._entries or self._leaving), timeout_s)

    def _begin_opening(self) -> list[_Entry]:
        """Reserves a place.

        Returns the sessions to close before the next attempt, or none if a place was reserved.
        """
        with self._lock:
            # Those that are being closed still hold their memory, and count.
            if len(self._entries) + self._opening + self._leaving < self._limit:
                self._opening += 1
                return []
            idle = [id_ for id_, entry in self._entries.items() if self._gives_way(entry)]
            if not idle:
                raise SessionLimitError(
                    f"the agent's limit of {self._limit} open sessions is reached, and all are in use; close "
                    "one, or try again later"
                )
            oldest = min(idle, key=lambda id_: self._entries[id_].last_used_s)
            return self._remove([oldest], for_others=True)

    def _gives_way(self, entry: _Entry) -> bool:
        """Returns whether a session may be closed when another one needs its place."""
        idle_s = self._clock() - entry.last_used_s
        return not entry.users and (entry.abandoned or idle_s >= GIVES_WAY_S)

    def _open_entry(self, id_: str) -> _Entry:
        """Returns the open session with this id. The caller holds the lock.

        Raises SessionError if none is open.
        """
        entry = self._entries.get(id_)
        if entry is not None:
            return entry
        if id_ in self._gave_way:
            raise SessionError(
                "the session is not open: another one needed its place, and it was unused for "
                f"{GIVES_WAY_S:g} s or its connection was lost; open another (the agent's --max_sessions "
                "limits their number)"
            )
        raise SessionError(
            "the session is not open: it was closed, was idle too long or never existed; open another"
        )

    def _remove(self, ids: list[str], *, for_others: bool) -> list[_Entry]:
        """Removes sessions from the list; returns the unused ones, for closing. The caller holds the lock."""
        self._gave_way.extend(ids if for_others else ())
        entries = list(map(self._entries.pop, ids))
        for entry in entries:
            entry.open = False
            _end_holds(entry)
        self._leaving += len(entries)
        return [entry for entry in entries if not entry.users]

    def _close(self, *entries: _Entry) -> None:
        for entry in entries:
            try:
                entry.lease.release()
            finally:
                with self._lock:
                    self._leaving -= 1
                    self._lock.notify_all()


def _end_holds(entry: _Entry) -> None:
    """Ends the calls that hold a session. The caller holds the lock."""
    while entry.holds:
        entry.holds.pop()()
