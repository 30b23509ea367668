"""Asking several agents at once."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import TypeVar

_Item = TypeVar("_Item")
_Result = TypeVar("_Result")


def side_by_side(items: Sequence[_Item], call: Callable[[_Item], _Result]) -> list[_Result | Exception]:
    """Calls a function with each item, each in a thread of its own, and waits for all.

    The threads are no hindrance to an exit: Ctrl-C does not wait for an agent that hangs.

    Returns:
        What each call gave, or the exception that it raised, in the order of the items.
    """
    outcomes: list[_Result | Exception] = [RuntimeError("not called")] * len(items)

    def run(place: int, item: _Item) -> None:
        try:
            outcomes[place] = call(item)
        except Exception as error:  # noqa: BLE001 - handed to the caller, who raises what it does not expect
            outcomes[place] = error

    threads = [
        threading.Thread(target=run, args=each, name="side-by-side", daemon=True) for each in enumerate(items)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return outcomes
