"""Work in steps: it says what it waits for, so that a thread or an event loop can do the waiting.

A function in steps is a generator that yields each ``Step`` and is sent what came of it. ``taken`` takes the
steps one after the other, in a thread; ``agent.server.loop`` takes those of many calls by turns.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from dataclasses import dataclass
from typing import Any, Protocol, TypeAlias, TypeVar

_Result = TypeVar("_Result")


class Awaited(Protocol):
    """Something that will be there."""

    def wait(self, timeout_ns: int | None) -> bool:
        """Waits for it, or for that time; says whether it is there."""
        ...

    def tell(self, listener: Callable[[], None]) -> None:
        """Has one listener told when it is there, in whatever thread that is known; perhaps twice."""
        ...


@dataclass(frozen=True, slots=True)
class Wait:
    """A step that is over when something is there, or after a time.

    It comes to whether it is there.

    Attributes:
        awaited: What.
        timeout_ns: How long, in nanoseconds; None for any time.
    """

    awaited: Awaited
    timeout_ns: int | None = None


@dataclass(frozen=True, slots=True)
class Work:
    """A step that takes a thread for a while, such as loading a model; it comes to what the work returns."""

    work: Callable[[], Any]


Step: TypeAlias = Wait | Work
Steps: TypeAlias = Generator[Step, Any, _Result]


def taken(steps: Steps[_Result]) -> _Result:
    """Takes steps in this thread, and returns their result; whatever they raise comes through."""
    try:
        step = next(steps)
        while True:
            try:
                result = step.awaited.wait(step.timeout_ns) if isinstance(step, Wait) else step.work()
            except BaseException as error:  # noqa: BLE001 - it is the steps' to deal with
                step = steps.throw(error)
            else:
                step = steps.send(result)
    except StopIteration as end:
        return end.value  # type: ignore[no-any-return]  # a StopIteration does not know of what it is
