"""A place for one model: what loads it, who uses it, and how it is lent."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from dataclasses import dataclass, field

from agent.device import Device
from agent.server.models.served_model import ServedModel


@dataclass(frozen=True, slots=True)
class Loading:
    """What loads a model.

    Attributes:
        name: Names it in errors.
        device: Where it will run.
        expected_bytes: The memory that it takes at the least, as far as that is known before.
        load: Loads it; is given what is to be told when it is closed again.
    """

    name: str
    device: Device
    expected_bytes: int
    load: Callable[[Callable[[], None]], ServedModel]


class Own:
    """The key of a model that is nobody else's."""


@dataclass(slots=True, eq=False)
class Slot:
    """A model that is loaded, being loaded, or still to be closed."""

    key: Hashable
    loading: Loading
    model: ServedModel | None = None
    error: BaseException | None = None
    users: int = 0
    last_used_s: float = 0.0
    memory_bytes: int = 0
    kept: bool = False
    """Whether it stays although nobody uses it for long."""
    listed: bool = True


@dataclass(slots=True, eq=False)
class Lease:
    """A loaded model that is lent; it stays loaded until ``release``."""

    model: ServedModel
    _release: Callable[[], None] = field(repr=False)
    _released: bool = False

    def release(self) -> None:
        """Gives the model back; calling it again does nothing."""
        if not self._released:
            self._released = True
            self._release()
