"""Strategies that damage what is valid: bytes at some places, and documents in one of their values."""

from __future__ import annotations

import copy
import os
from collections.abc import Sequence
from typing import Any

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st

EXAMPLES = int(os.environ.get("INFEROMETER_FUZZ_EXAMPLES", "0"))
"""The examples of each fuzzer; 0 means those of the suite, which are the same every time."""
fuzzed = settings(
    max_examples=EXAMPLES or 60,
    derandomize=not EXAMPLES,
    database=None,
    deadline=None,
    suppress_health_check=list(HealthCheck),
    print_blob=True,
)
INTERESTING = (0, 1, 0x7F, 0x80, 0xFF)
ODD_VALUES = (
    *(None, True, "", "x", "x" * 5000, "a\nb\x1b[31m", "\ud800", "2020-01-01", "NaN"),
    *(0, 1, -1, 2**31, 2**63 - 1, 2**63, -(2**63) - 1, 10**400, 0.5, -1.5, 1e308, float("nan"), float("inf")),
    *([], [None], [[]], [-1, 2], ["x"], {}, {"a": 1}, {"$date": "x"}, {"$binary": "AA=="}),
)


@st.composite
def damaged_bytes(draw: st.DrawFn, samples: Sequence[bytes], most_edits: int = 6) -> bytes:
    """One of the samples with bytes changed, put in, cut out or repeated."""
    content = bytearray(draw(st.sampled_from(samples)))
    for _ in range(draw(st.integers(1, most_edits))):
        at = draw(st.integers(0, len(content)))
        size = draw(st.integers(1, 16))
        match draw(st.sampled_from(["set", "flip", "insert", "delete", "repeat", "truncate"])):
            case "set":
                content[at : at + 1] = bytes([draw(st.sampled_from(INTERESTING))])
            case "flip" if at < len(content):
                content[at] ^= 1 << draw(st.integers(0, 7))
            case "insert":
                content[at:at] = draw(st.binary(min_size=1, max_size=8))
            case "delete":
                del content[at : at + size]
            case "repeat":
                content[at:at] = content[at : at + size] * draw(st.integers(1, 50))
            case "truncate" if draw(st.booleans()):
                del content[at:]
    return bytes(content)


@st.composite
def damaged_document(draw: st.DrawFn, samples: Sequence[Any], most_edits: int = 3) -> Any:
    """One of the samples with values replaced, removed or repeated, at any depth."""
    document = copy.deepcopy(draw(st.sampled_from(samples)))
    for _ in range(draw(st.integers(1, most_edits))):
        inside = document
        while True:
            keys = list(inside) if isinstance(inside, dict) else list(range(len(inside)))
            if not keys:
                break
            key = draw(st.sampled_from(keys))
            below = inside[key]
            if isinstance(below, dict | list) and below and draw(st.integers(0, 3)):
                inside = below
                continue
            match draw(st.sampled_from(["replace", "replace", "remove", "rename"])):
                case "replace":
                    inside[key] = copy.deepcopy(draw(st.sampled_from(ODD_VALUES)))
                case "remove":
                    del inside[key]
                case "rename" if isinstance(inside, dict):
                    inside[draw(st.text(max_size=8))] = inside.pop(key)
                case _:
                    inside.append(copy.deepcopy(below))
            break
    return document


def assert_one_clean_line(error: Exception, most_characters: int = 2000) -> None:
    """A message is printable, on one line, and no longer than a terminal shows."""
    message = str(error)
    assert message.strip(), type(error)
    assert message.isprintable(), ascii(message[:300])
    assert len(message) <= most_characters, message[:300]
