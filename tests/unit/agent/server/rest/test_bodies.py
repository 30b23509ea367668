"""Bodies of requests in pieces of any size, aligned and bounded; and the choice of a compression."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from inferometer.agent.protocol.status import HttpRequestError
from inferometer.agent.server.rest.app import accepted_encoding, deflated, inflated, receive_body
from inferometer.manifests.errors import InputError, RequestCancelledError


def received(pieces: Sequence[bytes], headers: dict[str, str], most: int = 1000, head: int = 0) -> memoryview:
    events: list[dict[str, Any]] = [
        {"type": "http.request", "body": piece, "more_body": number + 1 < len(pieces)}
        for number, piece in enumerate(pieces)
    ]

    async def receive() -> dict[str, Any]:
        return events.pop(0) if events else {"type": "http.disconnect"}

    return asyncio.run(receive_body(receive, headers, most, head))


@given(st.lists(st.binary(max_size=100), min_size=1, max_size=5), st.integers(0, 40), st.booleans())
def test_body_is_what_was_sent_and_its_binary_part_is_aligned(
    pieces: list[bytes], head: int, is_told: bool
) -> None:
    whole = b"".join(pieces)
    headers = {"content-length": str(len(whole))} if is_told else {}
    found = received(pieces, headers, head=head)
    assert bytes(found) == whole
    assert found.readonly
    if len(whole) >= head + 16 and (head % 16 or len(pieces) > 1):
        assert np.frombuffer(found[head:], np.uint8).ctypes.data % 16 == 0


@pytest.mark.parametrize(
    ("pieces", "headers"),
    [
        ([b"x" * 1001], {"content-length": "1001"}),
        ([], {"content-length": "1001"}),
        ([b"x" * 500, b"x" * 501], {}),
        ([b"x" * 1001], {}),
        ([b"x" * 600, b"x" * 600, b"never read"], {}),
    ],
)
def test_body_over_the_limit_is_refused(pieces: list[bytes], headers: dict[str, str]) -> None:
    with pytest.raises(HttpRequestError, match="more than 1000 bytes") as error:
        received(pieces, headers)
    assert error.value.status == 413


def test_client_that_has_gone_is_noticed() -> None:
    with pytest.raises(RequestCancelledError):
        received([], {"content-length": "5"})


@pytest.mark.parametrize(
    ("header", "encoding"),
    [
        ("gzip", "gzip"),
        ("deflate", "deflate"),
        ("gzip, deflate", "gzip"),
        ("gzip;q=0.1, deflate;q=0.2", "deflate"),
        ("GZIP ; q=1", "gzip"),
        ("gzip;q=0", None),
        ("*", "gzip"),
        ("br, zstd", None),
        ("identity", None),
        ("gzip;q=soon", None),
        (",;,", None),
        ("", None),
    ],
)
def test_client_gets_the_compression_that_it_prefers(header: str, encoding: str | None) -> None:
    assert accepted_encoding(header) == encoding


@pytest.mark.parametrize("encoding", ["gzip", "deflate"])
def test_what_is_deflated_can_be_inflated_up_to_the_limit(encoding: str) -> None:
    content = deflated([b"ab" * 5000, memoryview(b"cd" * 5000)], encoding)
    assert content is not None
    assert inflated(memoryview(content), encoding, 20_000) == b"ab" * 5000 + b"cd" * 5000
    with pytest.raises(HttpRequestError):
        inflated(memoryview(content), encoding, 19_999)
    with pytest.raises(InputError):
        inflated(memoryview(content)[:-1], encoding, 20_000)


def test_noise_is_not_compressed() -> None:
    assert deflated([np.random.default_rng(0).bytes(50_000)], "gzip") is None
