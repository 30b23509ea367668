"""JSON text, parsed and written without blocking other threads for long."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from inferometer.manifests.errors import InputError, one_line

LONG_BYTES = 64 * 1024
"""Larger JSON takes milliseconds, so it is parsed and written in a thread."""
_ELEMENTS = 4096


def read_object(content: memoryview) -> dict[str, Any]:
    """Parses a JSON object; raises InputError if the text is not one.

    Python's parser blocks all other threads until it finishes, which takes seconds for tens of megabytes. In
    a long text, a Python function therefore parses each number, so that other threads can run in between.
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
    """Returns a list as JSON, as ``text_of`` does, in pieces so that other threads can run in between."""
    pieces = (text_of(elements[at : at + _ELEMENTS])[1:-1] for at in range(0, len(elements), _ELEMENTS))
    return f"[{','.join(pieces)}]"


def _read_float(text: str) -> float:
    return float(text)


def _read_int(text: str) -> int:
    return int(text)
