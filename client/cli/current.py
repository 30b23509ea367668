"""The invocation of the command that is running."""

from __future__ import annotations

from typing import Any

import click

from inferometer.client.api.invocation import INVOCATION, Invocation
from inferometer.client.api.logs import set_logging


def current_invocation() -> Invocation:
    """Returns the invocation of the command that is running; logging follows its flags.

    Must be called from within a command; all calls within it return the same object.
    """
    flags: dict[str, Any] = click.get_current_context().ensure_object(dict)
    if INVOCATION not in flags:
        set_logging(flags)
        flags[INVOCATION] = Invocation(flags)
    invocation: Invocation = flags[INVOCATION]
    return invocation
