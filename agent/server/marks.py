"""Marks on the behaviour of a method, which say how it is answered; what is put around it bears them, too."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

_Behaviour = TypeVar("_Behaviour", bound=Callable[..., Any])
IN_STEPS = "in_steps"
"""It is a function in steps: see ``agent.server.steps``."""
AT_ANY_TIME = "at_any_time"
"""It is given what sends a response, at any time, and at last None, and takes no time itself."""
THREADS = "threads"
"""The executor whose threads it takes instead of those that predict."""


def in_steps(behaviour: _Behaviour) -> _Behaviour:
    """Marks a behaviour as one in steps."""
    setattr(behaviour, IN_STEPS, True)
    return behaviour


def at_any_time(behaviour: _Behaviour) -> _Behaviour:
    """Marks a behaviour as one that is given what sends its responses."""
    setattr(behaviour, AT_ANY_TIME, True)
    return behaviour


def is_marked(behaviour: Callable[..., Any], mark: str) -> bool:
    """Whether a behaviour bears a mark."""
    return bool(getattr(behaviour, mark, False))
