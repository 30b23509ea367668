"""JSON of any length: the same values as Python's parser and writer, while other threads run."""

from __future__ import annotations

import json
import sys
import threading
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from inferometer.agent.open_inference.http_codec import LONG_BYTES, list_text, read_object, text_of
from inferometer.manifests.errors import InputError

NUMBERS = np.random.default_rng(1).random(300_000).tolist()
TEXT = memoryview(json.dumps({"data": NUMBERS}).encode())
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=12,
)


def padded(text: str, length: int) -> memoryview:
    return memoryview(text.encode() + b" " * length)


@given(value=st.dictionaries(st.text(max_size=3), VALUES, max_size=4))
def test_long_text_has_the_values_of_a_short_one(value: dict[str, Any]) -> None:
    text = json.dumps(value)
    for length in (0, LONG_BYTES):
        found = read_object(padded(text, length))
        assert (found, repr(found)) == (value, repr(value))


@pytest.mark.parametrize(
    "text", ['{"a": 1.0.0}', "[1]", '{"a": 1', "\ufeff{}", "{" * 5, '{"a": 1' + "0" * 5000 + "}"]
)
def test_what_is_no_object_is_refused_at_any_length(text: str) -> None:
    messages = set()
    for length in (0, LONG_BYTES):
        with pytest.raises(InputError, match="the request") as error:
            read_object(padded(text, length))
        messages.add(str(error.value).partition(":")[0])
    assert len(messages) == 1


@pytest.mark.parametrize("count", [0, 1, 4096, 4097, 10_000])
def test_list_is_written_as_one(count: int) -> None:
    elements = [*NUMBERS[:count]]
    assert list_text(elements) == text_of(elements)


@pytest.fixture
def brisk() -> Iterator[None]:
    """Threads take turns often, so that a short text shows whether they do."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-4)
    yield
    sys.setswitchinterval(before)


@pytest.mark.usefixtures("brisk")
@pytest.mark.parametrize(
    "work", [lambda: read_object(TEXT), lambda: list_text(NUMBERS)], ids=["read", "write"]
)
def test_other_threads_run_meanwhile(work: Callable[[], object]) -> None:
    began, ended, turns = threading.Event(), threading.Event(), 0

    def run() -> None:
        began.set()
        work()
        ended.set()

    thread = threading.Thread(target=run)
    thread.start()
    assert began.wait(30)
    while not ended.wait(1e-4):  # which hands the interpreter over, and waits to get it back
        turns += 1
    thread.join(30)
    assert turns > 8  # one that holds the interpreter leaves two to four
