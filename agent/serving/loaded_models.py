"""The loaded models: each loaded once, lent to many, and unloaded least recently used first."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Hashable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Protocol

from inferometer.agent.hardware.environment import Device
from inferometer.agent.serving.served_model import Lease, LoadedModel, ServedModel
from inferometer.manifests.errors import InferometerError, MemoryLimitError, SessionError, SessionLimitError


@dataclass(frozen=True, slots=True)
class Loading:
    """How to load a model: by calling ``load``, whose argument is called when the model has been closed.

    The model takes at least ``expected_bytes`` of each device's memory, as far as is known in advance.
    """

    name: str
    expected_bytes: Mapping[Device, int]
    load: Callable[[Callable[[], None]], LoadedModel]


class Borrowers(Protocol):
    """Holders of models, which give up those that they are not using to make room for others."""

    def least_recently_used(self, models: Mapping[ServedModel, int]) -> ServedModel | None:
        """Returns the model to give up first, if any; ``models`` maps each to its number of users."""

    def give_up(self, model: ServedModel) -> None:
        """Gives up a model."""


class Own:
    """The key of a model that is not shared."""


@dataclass(slots=True, eq=False)
class Slot:
    """A model that is loaded, being loaded, or still to be closed."""

    key: Hashable
    loading: Loading
    model: LoadedModel | None = None
    error: BaseException | None = None
    users: int = 0
    last_used_s: float = 0.0
    memory_bytes: Mapping[Device, int] = field(default_factory=dict)
    kept: bool = False
    """Whether the model stays loaded even if it is idle for long."""
    listed: bool = True


_BYTES_PER_MIB = 1024 * 1024
_UNLOADING_S = 30.0
"""How long to wait for a model that is being unloaded to make room."""
_log = logging.getLogger(__name__)


class LoadedModels:
    """Loads each model once, however many clients request it, and unloads unused models. Thread-safe.

    With a memory limit, models are loaded one at a time: a model's memory is taken as the growth of the
    process while it loads, but at least the size of its files. Memory that predictions add is unknown at that
    point. The limit applies to each device separately. A model in use is never unloaded for another one,
    unless ``borrowers`` give it up; ``close_idle`` unloads models that were idle for ``idle_s`` seconds.
    """

    def __init__(
        self,
        limit: int,
        idle_s: float,
        memory_limit_bytes: int | None,
        used_bytes: Callable[[Device], int | None],
        clock: Callable[[], float] = time.monotonic,
        borrowers: Borrowers | None = None,
    ) -> None:
        self._borrowers = borrowers
        self._limit = limit
        self._idle_s = idle_s
        self._memory_limit_bytes = memory_limit_bytes
        self._used_bytes = used_bytes
        self._clock = clock
        self._mutex = threading.RLock()
        """The mutex of ``_lock``, which each request enters twice, as it is faster than the condition."""
        self._lock = threading.Condition(self._mutex)
        self._slots: dict[Hashable, Slot] = {}
        self._leaving: set[Slot] = set()
        self._left = 0
        self._measured_bytes: dict[Hashable, Mapping[Device, int]] = {}
        self._one_at_a_time = threading.Lock()
        self._closed = False

    def __len__(self) -> int:
        """Returns the number of models that are loaded, being loaded, or not yet freed."""
        with self._lock:
            return len(self._slots) + len(self._leaving)

    @property
    def models(self) -> Mapping[Hashable, LoadedModel]:
        """The loaded models by key."""
        with self._lock:
            return {key: slot.model for key, slot in self._slots.items() if slot.model is not None}

    @property
    def is_full(self) -> bool:
        """Whether every place is taken by an unshared model that its borrower is using."""
        with self._lock:
            if self._leaving or len(self._slots) < self._limit:
                return False
            slots = list(self._slots.values())
            if not all(isinstance(slot.key, Own) for slot in slots):
                return False
        return self._least_recently_used(slots) is None

    def is_loading(self, key: Hashable) -> bool:
        """Returns whether a model is being loaded."""
        with self._lock:
            slot = self._slots.get(key)
            return slot is not None and slot.model is None

    def lease(self, key: Hashable | None, loading: Loading, *, keep: bool = False) -> Lease[Any]:
        """Lends a model, and loads it if necessary.

        Callers with equal keys share one model; if the key is None, the model belongs to the caller and is
        unloaded on release. With ``keep``, it stays loaded even if it is idle for long.

        Raises:
            MemoryLimitError: The models in use leave too little memory.
            SessionLimitError: The limit of loaded models is reached, and all are in use.
            SessionError: The agent is stopping.
            InferometerError: The model cannot be loaded; each waiting caller gets the error.
        """
        slot, model = self._enter(Own() if key is None else key, loading)
        if model is None:
            model = self._load(slot)
        with self._lock:
            slot.kept = slot.kept or keep
        return Lease(model, partial(self._leave, slot))

    def lease_loaded(self, key: Hashable, *, keep: bool = False) -> Lease[Any] | None:
        """Lends a model if it is loaded; unlike ``lease``, does not require its expected size."""
        with self._mutex:
            slot = self._slots.get(key)
            if slot is None or slot.model is None or self._closed:
                return None
            slot.users += 1
            slot.kept = slot.kept or keep
            return Lease(slot.model, partial(self._leave, slot))

    def _enter(self, key: Hashable, loading: Loading) -> tuple[Slot, LoadedModel | None]:
        """Adds a user to a slot; returns the slot and its model, or None if this user has to load it."""
        with self._lock:
            if self._closed:
                raise SessionError("the agent is stopping; it loads no more models")
            slot = self._slots.get(key)
            if slot is None:
                slot = self._slots[key] = Slot(key, loading, users=1)
                return slot, None
            # counted before it waits, so that it is not unloaded between its loading and this one's turn
            slot.users += 1
            while slot.model is None and slot.error is None:
                self._lock.wait()
            if slot.error is None:
                return slot, slot.model
            slot.users -= 1
            if isinstance(slot.error, InferometerError):  # each that waited gets one of his own
                raise type(slot.error)(*slot.error.args) from slot.error
            raise slot.error

    def _load(self, slot: Slot) -> LoadedModel:
        """Loads a model for all waiting callers, and returns it."""
        limited = self._memory_limit_bytes is not None
        try:
            with self._one_at_a_time if limited else nullcontext():
                slot.memory_bytes = self._measured_bytes.get(slot.key, slot.loading.expected_bytes)
                self._make_room(slot)
                model = self._measured(slot) if limited else self._loaded(slot)
        except BaseException as error:
            with self._lock:
                slot.error = error
                slot.users -= 1
                self._slots.pop(slot.key, None)
                self._lock.notify_all()
            raise
        with self._lock:
            slot.model = model
            slot.last_used_s = self._clock()
            self._lock.notify_all()
        return model

    def _loaded(self, slot: Slot) -> LoadedModel:
        return slot.loading.load(partial(self._on_closed, slot))

    def _measured(self, slot: Slot) -> LoadedModel:
        """Loads a model and measures its memory; frees it again if it takes too much."""
        before = {device: self._used_bytes(device) for device in slot.loading.expected_bytes}
        model, measured = self._loaded(slot), dict(slot.memory_bytes)
        for device, used in before.items():
            after = self._used_bytes(device)
            if used is not None and after is not None:
                measured[device] = max(slot.loading.expected_bytes[device], after - used)
        slot.memory_bytes = measured
        if not isinstance(slot.key, Own):
            self._measured_bytes[slot.key] = slot.memory_bytes
        try:
            self._make_room(slot)
        except InferometerError:
            model.close()
            model.wait_closed(_UNLOADING_S)
            raise
        return model

    def _make_room(self, slot: Slot) -> None:
        """Unloads unused models, least recently used first, until there is room for a slot.

        Raises SessionLimitError or MemoryLimitError if no room can be made.
        """
        while True:
            with self._lock:
                refusal = self._refusal(slot)
                if refusal is None:
                    return
                left = self._left
                others = self._others(slot)
                unused = [other for other in others if not other.users]
                leaving = min(unused, key=lambda other: other.last_used_s, default=None)
                is_full = leaving is None and not self._leaving
                if leaving is not None:
                    self._remove(leaving)
            if is_full:
                model = self._least_recently_used(others)
                if model is None or self._borrowers is None:
                    raise refusal
                self._borrowers.give_up(model)
                continue
            if leaving is None or leaving.model is None:
                if not self._wait_for_one_more_than(left):
                    raise refusal
                continue
            _log.info("unloads %s to make room for %s", leaving.loading.name, slot.loading.name)
            leaving.model.close()
            if not leaving.model.wait_closed(_UNLOADING_S):
                raise refusal

    def _refusal(self, slot: Slot) -> InferometerError | None:
        """Returns why there is currently no room for a slot; None if there is room."""
        others = [other for other in (*self._slots.values(), *self._leaving) if other is not slot]
        if len(others) >= self._limit:
            return SessionLimitError(
                f"model {slot.loading.name}: the agent has its limit of {self._limit} models loaded, "
                "all in use; try again later"
            )
        limit = self._memory_limit_bytes
        if limit is None:
            return None
        for device, own in slot.memory_bytes.items():
            what = f"model {slot.loading.name} takes {_mib(own)} MiB on {device}"
            if own > limit:
                return MemoryLimitError(f"{what}; the agent's --memory_limit is {_mib(limit)} MiB")
            if (used := sum(other.memory_bytes.get(device, 0) for other in others)) + own > limit:
                return MemoryLimitError(
                    f"{what}, where models in use take {_mib(used)} of the agent's {_mib(limit)} MiB "
                    "(--memory_limit); try again later"
                )
        return None

    def _others(self, slot: Slot) -> list[Slot]:
        """Returns the models whose unloading would make room for a slot."""
        # where the model alone is too large, unloading others helps nobody
        limit = self._memory_limit_bytes
        if limit is not None and max(slot.memory_bytes.values()) > limit:
            return []
        over_limit = len(self._slots) + len(self._leaving) > self._limit
        return [
            other
            for other in self._slots.values()
            if other is not slot
            and other.model is not None
            and (over_limit or other.memory_bytes.keys() & slot.memory_bytes.keys())
        ]

    def _least_recently_used(self, slots: Sequence[Slot]) -> ServedModel | None:
        """Returns which of several models in use the borrowers would give up first."""
        if self._borrowers is None:
            return None
        predicting = {slot.model: slot.users for slot in slots if isinstance(slot.model, ServedModel)}
        return self._borrowers.least_recently_used(predicting)

    def _wait_for_one_more_than(self, left: int) -> bool:
        """Waits until more than ``left`` models have been unloaded; returns False on timeout."""
        with self._lock:
            return self._lock.wait_for(lambda: self._left != left, _UNLOADING_S)

    def unload(self, key: Hashable) -> bool:
        """Unloads a model; a model in use is not lent again, and is freed when its last user leaves.

        Waits for a model that is being loaded. The caller must not hold a lease: the loading may be waiting
        for the room that this lease occupies. Returns whether the model was loaded.
        """
        with self._lock:
            slot = self._slots.get(key)
            if slot is None:
                return False
            self._lock.wait_for(lambda: slot.model is not None or slot.error is not None)
            if slot.model is None or not slot.listed:
                return False
            self._remove(slot)
            unused = not slot.users
        if unused:
            slot.model.close()
        return True

    def close_idle(self) -> int:
        """Unloads the models that have been idle for too long, and returns their number."""
        with self._lock:
            oldest_s = self._clock() - self._idle_s
            idle = [
                slot
                for slot in self._slots.values()
                if slot.model and not slot.users and not slot.kept and slot.last_used_s <= oldest_s
            ]
            for slot in idle:
                self._remove(slot)
            models = [slot.model for slot in idle if slot.model]
        for model in models:
            model.close()
        return len(idle)

    def close(self) -> None:
        """Stops loading models, and unloads every model, those in use when their last user leaves."""
        with self._lock:
            self._closed = True
            slots = [slot for slot in self._slots.values() if slot.model is not None]
            for slot in slots:
                self._remove(slot)
            unused = [slot.model for slot in slots if not slot.users and slot.model is not None]
        for model in unused:
            model.close()

    def wait_for_none(self, timeout_s: float) -> bool:
        """Waits until no model is loaded; returns False on timeout."""
        with self._lock:
            return self._lock.wait_for(lambda: not (self._slots or self._leaving), timeout_s)

    def _remove(self, slot: Slot) -> None:
        """Removes a model from the list; it still has to be closed. The caller holds the lock."""
        self._slots.pop(slot.key)
        slot.listed = False
        self._leaving.add(slot)

    def _leave(self, slot: Slot) -> None:
        with self._mutex:
            slot.users -= 1
            slot.last_used_s = self._clock()
            own = isinstance(slot.key, Own)
            if slot.listed and (own or self._closed):  # or it was being loaded when all was closed
                self._remove(slot)
            last = not slot.listed and not slot.users
            waits = own and not self._closed
        if last and slot.model is not None:
            slot.model.close()
            if waits:
                slot.model.wait_closed(_UNLOADING_S)

    def _on_closed(self, slot: Slot) -> None:
        with self._lock:
            self._leaving.discard(slot)
            self._left += 1
            self._lock.notify_all()


def _mib(size: int) -> int:
    """Returns a size in MiB, rounded up."""
    return -(-size // _BYTES_PER_MIB)
