"""What other tools would have said of one stream: each of them by its own definitions, from the same times.

The definitions were read in aiperf 0.13.0, guidellm 0.8.1 and ``vllm bench serve`` 0.32.0 (chat completions),
and seen in LoadGen 6.0. ``docs/generation.md`` has their figures of the stream in
``tests/data/generation_stream.json``, which a client recorded from the server with known times.
"""

from __future__ import annotations

import http.client
import json
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import asdict, dataclass
from functools import partial
from itertools import pairwise
from pathlib import Path
from statistics import fmean
from typing import Any

from tests.integration.generation_truth import serving

LATE_NS = 2_000_000
"""How late the recorded request was sent, as by a client that was busy."""
RECORDED = Path(__file__).parent / "data" / "generation_stream.json"


@dataclass(frozen=True)
class Stream:
    """One answer as a client saw it; times in nanoseconds.

    Attributes:
        due_ns: When the request was due.
        sent_ns: When it was sent.
        events: When each event came, with its kind: ``role``, ``text``, ``finish``, ``usage`` or ``done``.
        last_byte_ns: When the answer was over.
        tokens: Those of the output, by the server's usage.
        first_tokens: Those of the first chunk, which only the server knows.
    """

    due_ns: int
    sent_ns: int
    events: Sequence[tuple[int, str]]
    last_byte_ns: int
    tokens: int
    first_tokens: int

    @classmethod
    def recorded(cls) -> Stream:
        return cls(**json.loads(RECORDED.read_text(encoding="utf-8")))

    def times_ns(self, *kinds: str) -> Sequence[int]:
        """When the events of some kinds came."""
        return [time_ns for time_ns, kind in self.events if kind in kinds]


def _ms(begin_ns: float, end_ns: float) -> float:
    return (end_ns - begin_ns) / 1e6


def _gap_ms(times_ns: Sequence[int]) -> float:
    return fmean(_ms(*pair) for pair in pairwise(times_ns))


def ours(stream: Stream) -> Mapping[str, float]:
    chunks = stream.times_ns("text")
    return {
        "TTFT": _ms(stream.due_ns, chunks[0]),
        "TPOT": _ms(chunks[0], chunks[-1]) / (stream.tokens - 1),
        "ICL": _gap_ms(chunks),
        "e2e": _ms(stream.due_ns, stream.last_byte_ns),
    }


def aiperf(stream: Stream, *, per_chunk_usage: bool = False) -> Mapping[str, float]:
    """From sending; the latency ends with the last content, and ITL divides what follows the first chunk."""
    chunks = stream.times_ns("text")
    first_tokens = stream.first_tokens if per_chunk_usage else 1
    return {
        "TTFT": _ms(stream.sent_ns, chunks[0]),
        "TPOT": _ms(chunks[0], chunks[-1]) / (stream.tokens - first_tokens),
        "ICL": _gap_ms(chunks),
        "e2e": _ms(stream.sent_ns, chunks[-1]),
    }


def guidellm(stream: Stream) -> Mapping[str, float]:
    """From sending; ``TPOT`` here is its inter-token latency, and ``over all`` its time per output token."""
    chunks = stream.times_ns("text")
    return {
        "TTFT": _ms(stream.sent_ns, chunks[0]),
        "TPOT": _ms(chunks[0], chunks[-1]) / (stream.tokens - 1),
        "over all": _ms(stream.sent_ns, chunks[-1]) / stream.tokens,
        "e2e": _ms(stream.sent_ns, stream.times_ns("done")[0]),
    }


def vllm(stream: Stream) -> Mapping[str, float]:
    """From sending; every event with choices counts: the role is the first token, and the finish the last."""
    chunks = stream.times_ns("role", "text", "finish")
    return {
        "TTFT": _ms(stream.sent_ns, chunks[0]),
        "TPOT": _ms(chunks[0], chunks[-1]) / (stream.tokens - 1),
        "ICL": _gap_ms(chunks),
        "e2e": _ms(stream.sent_ns, chunks[-1]),
    }


def mlperf(stream: Stream) -> Mapping[str, float]:
    """From when the query was due; the harness reports the first content, and the end of the answer."""
    first_ns = stream.times_ns("text")[0]
    return {
        "TTFT": _ms(stream.due_ns, first_ns),
        "TPOT": _ms(first_ns, stream.last_byte_ns) / (stream.tokens - 1),
        "e2e": _ms(stream.due_ns, stream.last_byte_ns),
    }


COLUMNS = {
    "inferometer": ours,
    "aiperf": aiperf,
    "aiperf, usage per chunk": partial(aiperf, per_chunk_usage=True),
    "guidellm": guidellm,
    "vllm bench serve": vllm,
    "LoadGen": mlperf,
}
ROWS = ("TTFT", "TPOT", "over all", "ICL", "e2e")


def table(stream: Stream) -> Sequence[str]:
    """The lines of the table in ``docs/generation.md``, in milliseconds."""
    figures = [found(stream) for found in COLUMNS.values()]
    head = [f"| ms | {' | '.join(COLUMNS)} |", f"|---{len(COLUMNS) * '|---'}|"]
    return head + [
        f"| {row} | {' | '.join(f'{each[row]:.2f}' if row in each else '' for each in figures)} |"
        for row in ROWS
    ]


def record() -> Stream:
    """Records one answer of the known server, in chunks of 3 tokens, to a request that is sent late."""
    asked = {"model": "tiny", "stream": True, "stream_options": {"include_usage": True}}
    body = json.dumps({**asked, "max_tokens": 32, "messages": [{"role": "user", "content": "one two"}]})
    events: list[tuple[int, str]] = []
    with serving(chunk=3) as server, closing(http.client.HTTPConnection(server.address)) as connection:
        connection.connect()
        due_ns = time.perf_counter_ns()
        time.sleep(LATE_NS / 1e9)
        sent_ns = time.perf_counter_ns()
        connection.request("POST", "/v1/chat/completions", body)
        response = connection.getresponse()
        while line := response.readline():
            if line.startswith(b"data: "):
                events.append((time.perf_counter_ns() - due_ns, _kind(line)))
        last_byte_ns = time.perf_counter_ns() - due_ns
        [sent] = server.sent()
    return Stream(0, sent_ns - due_ns, events, last_byte_ns, sent.tokens, sent.chunks[0][1])


def _kind(line: bytes) -> str:
    if line.startswith(b"data: [DONE]"):
        return "done"
    event: dict[str, Any] = json.loads(line.removeprefix(b"data: "))
    if not event["choices"]:
        return "usage"
    [choice] = event["choices"]
    if choice["finish_reason"]:
        return "finish"
    return "text" if choice["delta"]["content"] else "role"


if __name__ == "__main__":
    RECORDED.write_text(f"{json.dumps(asdict(record()))}\n", encoding="utf-8")
    sys.stdout.write("\n".join(table(Stream.recorded())))
