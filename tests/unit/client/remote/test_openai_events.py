"""Streams of events are read whatever their pieces, and each chunk has the time of what completed it."""

from __future__ import annotations

import json
from typing import Any

import pytest

from inferometer.client.remote.openai.events import read_answer, read_events
from inferometer.client.remote.rest.responses import Incoming
from inferometer.evaluators.load.streams import Answer, ChunkKind

HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"


def event(delta: dict[str, object] | None = None, **more: object) -> str:
    choice = {"index": 0, "delta": delta or {}, "finish_reason": more.pop("finish", None)}
    return json.dumps({"choices": [choice], **more}, ensure_ascii=False)


def stream(*data: str, end: str = "\n\n") -> bytes:
    return "".join(f"data: {each}{end}" for each in data).encode()


def read(body: bytes, *, piece: int = 10_000, http_chunk: int = 10_000, text: bool = True) -> Answer:
    """Reads a body that arrives in HTTP chunks and pieces of these sizes, one a microsecond."""
    framed = b"".join(
        b"%x\r\n%b\r\n" % (len(part), part)
        for part in (body[at : at + http_chunk] for at in range(0, len(body), http_chunk))
    )
    content, incoming, arrivals = HEAD + framed + b"0\r\n\r\n", Incoming(), []
    for number, at in enumerate(range(0, len(content), piece)):
        incoming.feed(content[at : at + piece])
        arrivals.append((1000 * number, incoming.arrived))
    return read_answer(incoming.content, arrivals, text=text)


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        (b"data: a\n\ndata: b\n\n", [b"a", b"b"]),
        (b"data: a\r\n\r\ndata:b\r\n\r\n", [b"a", b"b"]),
        (b"data: a\r\rdata: b\r\r", [b"a", b"b"]),
        (b"\xef\xbb\xbfdata: a\n\n", [b"a"]),
        (b": ping\n\ndata: a\nid: 3\nevent: x\n\n", [b"a"]),
        (b"data: a\ndata: b\n\n", [b"a\nb"]),
        (b"data: a\n\ndata: cut of", [b"a"]),
        (b"\xef\xbb\xbfdata: [DONE]", [b"[DONE]"]),
        pytest.param(b"data: a\n\ndata: " + b"x" * 2**20, [b"a"], id="much is cut off"),
        (b"data: a\n\ndata: [DONE]", [b"a", b"[DONE]"]),
        (b"data: a\n\ndata: [DONE]\n", [b"a", b"[DONE]"]),
        (b"\n\n\n", []),
        (b"", []),
    ],
)
def test_events_are_those_of_the_standard(body: bytes, expected: list[bytes]) -> None:
    assert [data for _, data in read_events(body)] == expected


TOLD = stream(
    event({"role": "assistant", "content": ""}),
    event({"reasoning_content": "größe"}),
    event({"content": " 日本"}),
    event({"tool_calls": [{"function": {"name": "f", "arguments": '{"error": 1}'}}]}),
    event(finish="length"),
    json.dumps({"choices": [], "usage": {"prompt_tokens": 9, "completion_tokens": 7}}),
    "[DONE]",
)


@pytest.mark.parametrize("piece", [1, 2, 3, 7, 64, 10_000])
@pytest.mark.parametrize("http_chunk", [1, 5, 10_000])
def test_pieces_that_split_lines_and_characters_change_nothing(piece: int, http_chunk: int) -> None:
    found = read(TOLD, piece=piece, http_chunk=http_chunk)

    assert (found.error, found.finish, found.input_tokens, found.output_tokens) == ("", "length", 9, 7)
    assert [(kind, size) for _, kind, size in found.chunks] == [
        (ChunkKind.REASONING, 5),
        (ChunkKind.TEXT, 3),
        (ChunkKind.TOOL_CALL, 13),
    ]
    assert found.text == 'größe 日本f{"error": 1}'
    times = [when for when, _, _ in found.chunks]
    assert times == sorted(times)


def test_a_chunk_arrives_with_the_piece_that_completes_its_event() -> None:
    first, second = stream(event({"content": "a"})), stream(event({"content": "b"}), event(finish="stop"))
    content = HEAD + first + second
    halfway = len(HEAD) + len(first) + 10

    found = read_answer(content, [(5, len(HEAD)), (70, halfway), (90, len(content))])

    assert [when for when, _, _ in found.chunks] == [70, 90]
    assert (found.first_byte_ns, found.last_byte_ns) == (5, 90)


def test_bytes_of_an_incomplete_chunk_count_as_arrived() -> None:
    incoming = Incoming()
    incoming.feed(HEAD + b"20\r\n" + b"x" * 10)

    assert incoming.arrived == len(HEAD) + 10


@pytest.mark.parametrize(
    ("body", "chunks", "error"),
    [
        (stream(event({"content": "a"})), 1, "the stream ended after 1 chunks, without a reason to finish"),
        (
            stream(event({"content": "a"}), '{"error": {"message": "out of\\nmemory"}}', "[DONE]"),
            1,
            "the stream has an error: out of memory",
        ),
        (stream(event({"content": "a"}), "{no"), 1, "an event is no JSON: {no"),
        (stream("[1]", "null", "[DONE]"), 0, ""),
        (stream('{"choices": null, "usage": {"completion_tokens": true}}', "[DONE]"), 0, ""),
        (stream('{"choices": [{"text": " x"}, 3, {"delta": 4}]}', "[DONE]"), 1, ""),
        (b"", 0, "the stream ended after 0 chunks, without a reason to finish"),
    ],
)
def test_what_is_wrong_is_told(body: bytes, chunks: int, error: str) -> None:
    found = read(body)

    assert (len(found.chunks), found.error, found.output_tokens) == (chunks, error, -1)


@pytest.mark.parametrize(
    ("usage", "cached"),
    [
        ({"prompt_tokens": 9, "prompt_tokens_details": {"cached_tokens": 8}}, 8),
        ({"prompt_tokens": 9, "prompt_tokens_details": {"cached_tokens": 0, "audio_tokens": None}}, 0),
        ({"prompt_tokens": 9, "prompt_tokens_details": None}, -1),
        ({"prompt_tokens": 9, "prompt_tokens_details": {"cached_tokens": "8"}}, -1),
        ({"prompt_tokens": 9}, -1),
    ],
)
def test_tokens_that_the_server_had_in_its_cache_are_read(usage: dict[str, Any], cached: int) -> None:
    found = read(stream(event(finish="stop"), json.dumps({"choices": [], "usage": usage}), "[DONE]"))

    assert (found.input_tokens, found.cached_tokens) == (9, cached)


def test_reasoning_under_both_of_its_names_counts_once() -> None:
    found = read(stream(event({"reasoning": "so", "reasoning_content": "so"}), "[DONE]"))

    assert [(kind, size) for _, kind, size in found.chunks] == [(ChunkKind.REASONING, 2)]


@pytest.mark.parametrize(
    ("content", "error"),
    [
        (b"", "no response arrived"),
        (b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\n\r\n{}", "it answers application/json"),
        (b"HTTP/1.1 200 OK\r\n\r\n{}", "it answers without a content type"),
    ],
)
def test_an_answer_that_is_no_stream_is_none(content: bytes, error: str) -> None:
    assert error in read_answer(content, [(1, len(content))]).error
