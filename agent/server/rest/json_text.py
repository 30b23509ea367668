"""JSON as text, read and written so that other threads go on meanwhile."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from inferometer.manifests.errors import InputError, one_line

LONG_BYTES = 64 * 1024
"""JSON of more bytes takes milliseconds, and is read and written in a thread."""
_ELEMENTS = 4096


def read_object(content: memoryview) -> dict[str, Any]:
    """Reads an object of JSON; raises InputError if this is none.

    Python's parser lets no other thread run until it has finished, seconds later with tens of megabytes.
    Where the text is long, each number is therefore read by a function in Python, which others may interrupt.
    """
    try:
        text = str(content, "utf-8")
        if len(content) > LONG_BYTES:
            found = json.loads(text, parse_float=_read_float, parse_int=_read_int)
        else:
            found = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise InputError(f"the request is no JSON: {one_line(error, 100)}") from error
    if not isinstance(found, dict):
        raise InputError("the request's JSON is no object")
    return found


def text_of(value: Any) -> str:
    """Returns a value as JSON without spaces."""
    return json.dumps(value, separators=(",", ":"))


def list_text(elements: Sequence[Any]) -> str:
    """Returns a list as JSON, as ``text_of`` does, in pieces between which other threads run."""
    pieces = (text_of(elements[at : at + _ELEMENTS])[1:-1] for at in range(0, len(elements), _ELEMENTS))
    return f"[{','.join(pieces)}]"


def _read_float(text: str) -> float:
    return float(text)


def _read_int(text: str) -> int:
    return int(text)
