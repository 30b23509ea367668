"""Reads a stream of server-sent events with the chunks of one answer, in the form of OpenAI's protocol.

It reads whole responses, after their pieces were stamped: a piece may end within a line or a character.
"""

from __future__ import annotations

import json
import re
from bisect import bisect_left
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from inferometer.evaluators.load.streams import UNKNOWN, Answer, ChunkKind

DONE = b"[DONE]"
"""The data of the event that ends a stream."""
EVENT_STREAM = "text/event-stream"
_BYTE_ORDER_MARK = b"\xef\xbb\xbf"
_BODY = b"\r\n\r\n"
_CONTENT_TYPE = re.compile(rb"\r\ncontent-type:[ \t]*([^\r]*)", re.IGNORECASE)
_MOST_CHARACTERS = 300


def read_events(body: bytes) -> Iterator[tuple[int, bytes]]:
    """Yields the data of each event, and the offset in ``body`` at which the event ends.

    Lines end with CR LF, LF or CR, an event with an empty line, and comments begin with a colon (WHATWG HTML,
    "Server-sent events", 9.2.6). An event that the body cuts off is left out; ``[DONE]`` needs no empty line.
    """
    data: list[bytes] = []
    end = len(_BYTE_ORDER_MARK) if body.startswith(_BYTE_ORDER_MARK) else 0
    for ended in body[end:].splitlines(keepends=True):
        line = ended.rstrip(b"\r\n")
        if line == ended:  # the body cuts it off
            data = data or [line[5:].strip()] * line.startswith(b"data:")
            break
        end += len(ended)
        if not line:
            if data:
                yield end, b"\n".join(data)
            data = []
        elif line.startswith(b"data:"):
            data.append(line[5:].removeprefix(b" "))
    if data == [DONE]:
        yield len(body), DONE


def read_answer(content: bytes, arrivals: Sequence[tuple[int, int]], *, text: bool = False) -> Answer:
    """Reads a response, or the part of it that arrived, into an answer.

    A chunk arrived with the piece of the response that completed its event.

    Args:
        content: The head and the body of the response; see ``Incoming.content``.
        arrivals: For each piece, when it arrived, and how many bytes of ``content`` had arrived by then.
        text: Whether the answer keeps its text.
    """
    found = Answer()
    if arrivals:
        found.first_byte_ns, found.last_byte_ns = arrivals[0][0], arrivals[-1][0]
    start = content.find(_BODY) + len(_BODY)
    if start < len(_BODY):
        found.error = "no response arrived"
        return found
    found_type = _CONTENT_TYPE.search(content, 0, start)
    kind = found_type[1].decode("latin-1") if found_type else ""
    if EVENT_STREAM not in kind.lower():
        found.error = f"the server does not stream: it answers {kind or 'without a content type'}"
        return found
    totals, texts, done = [total for _, total in arrivals], list[str](), False
    for end, data in read_events(content[start:]):
        if data == DONE:
            done = True
            break
        try:
            event = json.loads(data)
        except (ValueError, RecursionError):
            found.error = f"an event is no JSON: {error_text(data.decode('utf-8', 'replace'))}"
            break
        if not isinstance(event, dict):
            continue
        if event.get("error"):
            found.error = f"the stream has an error: {error_text(event['error'])}"
            break
        place = min(bisect_left(totals, start + end), len(totals) - 1)
        arrived_ns = arrivals[place][0] if arrivals else UNKNOWN
        for chunk_kind, piece in _pieces(event, found):
            found.chunks.append((arrived_ns, chunk_kind, len(piece)))
            if text:
                texts.append(piece)
    if not (found.error or done or found.finish):
        found.error = f"the stream ended after {len(found.chunks)} chunks, without a reason to finish"
    found.text = "".join(texts)
    return found


def error_text(error: object) -> str:
    """Returns the message of an error object, or any other text, in one line."""
    message = error.get("message") if isinstance(error, Mapping) else None
    return " ".join(str(message or error).split())[:_MOST_CHARACTERS]


_FIELDS = {
    "content": ChunkKind.TEXT,
    "refusal": ChunkKind.TEXT,
    "reasoning_content": ChunkKind.REASONING,
    "reasoning": ChunkKind.REASONING,
}
"""The fields of a delta with content, by the servers' names for them."""


def _pieces(event: Mapping[str, Any], found: Answer) -> Iterator[tuple[ChunkKind, str]]:
    """Yields the content of an event, and keeps its usage, its reason to finish, its id and its model."""
    found.id, found.model = (str(event.get(name) or getattr(found, name)) for name in ("id", "model"))
    usage = event.get("usage")
    if isinstance(usage, Mapping):
        found.input_tokens = _count(usage.get("prompt_tokens"), found.input_tokens)
        found.output_tokens = _count(usage.get("completion_tokens"), found.output_tokens)
        details = usage.get("prompt_tokens_details")
        if isinstance(details, Mapping):
            found.cached_tokens = _count(details.get("cached_tokens"), found.cached_tokens)
    choices = event.get("choices")
    for choice in choices if isinstance(choices, list) else ():
        if not isinstance(choice, Mapping):
            continue
        found.finish = str(choice.get("finish_reason") or found.finish)
        if isinstance(choice.get("text"), str) and choice["text"]:
            yield ChunkKind.TEXT, choice["text"]
        delta = choice.get("delta")
        if not isinstance(delta, Mapping):
            continue
        seen = set[str]()  # some servers send the reasoning under both of its names
        for name, kind in _FIELDS.items():
            piece = delta.get(name)
            if isinstance(piece, str) and piece and piece not in seen:
                seen.add(piece)
                yield kind, piece
        calls = delta.get("tool_calls")
        for call in calls if isinstance(calls, list) else ():
            function = call.get("function") if isinstance(call, Mapping) else None
            if isinstance(function, Mapping):
                piece = "".join(str(function.get(each) or "") for each in ("name", "arguments"))
                if piece:
                    yield ChunkKind.TOOL_CALL, piece


def _count(value: object, otherwise: int) -> int:
    known = isinstance(value, int) and not isinstance(value, bool) and value >= 0
    return value if known else otherwise  # type: ignore[return-value] # a number, if known
