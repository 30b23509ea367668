"""A server of OpenAI's protocol with known times: ``python generation_server.py '{"first_ms": 50}'``.

It sends the first tokens of a request ``first_ms`` after the request has its turn, and every further chunk
``token_ms`` after the one before for each of its tokens. It keeps the time of each chunk that it sends, by
``time.perf_counter_ns``, which is one clock for all processes of a host. For each line on stdin it prints
what it has kept since the last one, a list of ``Sent`` as JSON; it ends with its stdin.
"""

import asyncio
import json
import os
import random
import selectors
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

SPIN_NS = 1_000_000  # before a chunk is due: a sleep alone is too long
WORDS = ("größer", "naïve", "été", "日本", "token", "ﬁve", "one", "the")
TOKENS = 32  # of a request that names no ``max_tokens``
CHAT_TOKENS = 4  # what the chat template adds to the prompt


@dataclass(frozen=True)
class Behaviour:
    """How the server answers.

    Attributes:
        first_ms: From a request's turn to its first chunk with content.
        token_ms: Added to the next chunk for each of its tokens.
        spread: The coefficient of variation of both times, which are drawn for each request (gamma).
        seed: Of what is drawn.
        most_tokens: At which a request ends early, unless it has ``ignore_eos``; 0 for never.
        reasoning: How many of the first tokens are reasoning.
        role: Whether a chunk without content comes first, at the request's turn.
        usage: Whether a request that asks for the usage gets it.
        cached: How many of a prompt's tokens it tells to have in its cache; -1 to tell nothing.
        slow_start: How many of the first requests take ``slow_ms`` longer.
        breaks: ``error`` for an error in the middle, ``cut`` for a connection that is reset, or a status such
            as ``429`` instead of an answer; errors repeat the key.
        breaks_after: After how many chunks.
        every: Only one in so many requests breaks.
        split_ms: How much later the second part of an event comes, which splits a character; 0 for one part.
        crlf: Whether lines end with CRLF, and comments stand between the events.
        closes: Whether the answer ends with the connection, without a chunked encoding.
        parallel: How many requests have their turn at a time; 0 for all.
        key: What a request must bring; empty for nothing.
        echoes: Whether it tells the log-probabilities of a prompt that a request has it echo: a word of n
            characters has -n / 4.
        most_words: The most words of a prompt; longer ones are refused. 0 for any number.
    """

    first_ms: float = 50.0
    token_ms: float = 4.0
    spread: float = 0.0
    seed: int = 0
    most_tokens: int = 0
    chunk: int = 1
    reasoning: int = 0
    role: bool = True
    usage: bool = True
    cached: int = -1
    slow_start: int = 0
    slow_ms: float = 100.0
    breaks: str = ""
    breaks_after: int = 3
    every: int = 1
    split_ms: float = 0.0
    crlf: bool = False
    closes: bool = False
    parallel: int = 0
    key: str = ""
    echoes: bool = False
    most_words: int = 0
    models: Sequence[str] = ("tiny",)


@dataclass
class Sent:
    """What the server did for a request; times in nanoseconds of ``time.perf_counter_ns``.

    Attributes:
        received_ns: When the last byte of the request was there.
        turn_ns: When it had its turn.
        first_byte_ns: When the header of the answer was sent.
        chunks: Each chunk with content: when it was sent, how many tokens it has, and its text.
        reasoning: How many of the chunks are reasoning.
        last_ns: When the last byte was sent.
        end: ``stop``, ``length``, ``error``, ``cut``, or ``left`` if the client left.
        body: What was asked.
    """

    received_ns: int
    body: dict[str, Any]
    turn_ns: int = 0
    first_byte_ns: int = 0
    chunks: list[tuple[int, int, str]] = field(default_factory=list)
    reasoning: int = 0
    last_ns: int = 0
    end: str = ""
    prompt_tokens: int = 0

    @property
    def tokens(self) -> int:
        return sum(count for _, count, _ in self.chunks)


async def _until(due_ns: int) -> None:
    """Waits for a time; other requests go on meanwhile, and so does the client, whose core this may be."""
    while (left_ns := due_ns - time.perf_counter_ns()) > 0:
        os.sched_yield()
        await asyncio.sleep(max(left_ns - SPIN_NS, 0) / 1e9)


class _Connection(asyncio.Protocol):
    """Reads requests, one after the other, and answers them."""

    def __init__(self, server: "_Server") -> None:
        self._server, self._read, self._answering = server, b"", None

    def connection_made(self, transport):
        self._transport = transport

    def connection_lost(self, error):
        if self._answering is not None:
            self._answering.cancel()

    def data_received(self, data):
        received_ns = time.perf_counter_ns()
        self._read += data
        head, separator, rest = self._read.partition(b"\r\n\r\n")
        if not separator:
            return
        lines = head.decode().split("\r\n")
        headers = {name.lower(): value for name, value in (line.split(": ", 1) for line in lines[1:])}
        length = int(headers.get("content-length", 0))
        if len(rest) < length:
            return
        self._read, call = rest[length:], lines[0].removesuffix(" HTTP/1.1")
        self._answering = asyncio.ensure_future(self._answer(call, headers, rest[:length], received_ns))

    async def _answer(self, call, headers, body, received_ns):
        how = self._server.how
        asked = json.loads(body or "{}")
        if how.key and headers.get("authorization") != f"Bearer {how.key}":
            self._refuse(401, "Incorrect API key provided")
        elif call in ("GET /v1/models", "GET /health"):
            models = {"object": "list", "data": [{"id": each, "object": "model"} for each in how.models]}
            self._transport.write(_document(200, models))
        elif call == "GET /metrics":
            self._transport.write(self._server.metrics())
        elif call not in ("POST /v1/chat/completions", "POST /v1/completions"):
            self._refuse(404, f"no {call} here")
        elif asked.get("model") not in how.models:
            self._refuse(404, f"The model `{asked.get('model')}` does not exist.")
        else:
            sent = Sent(received_ns, asked)
            stream = _Stream(how, self._transport, sent, "chat" in call)
            self._server.asked += 1
            try:
                async with self._server.turns:
                    sent.turn_ns = time.perf_counter_ns()
                    await stream.answer(*self._server.turn())
            except asyncio.CancelledError:
                sent.end = "left"
            self._server.asked -= 1
            self._server.kept.append(sent)

    def _refuse(self, status, message):
        self._transport.write(_refusal(status, message))


def _refusal(status: int, message: str) -> bytes:
    return _document(status, {"error": {"message": message, "code": status}})


def _document(status: int, value: Any) -> bytes:
    content = json.dumps(value).encode()
    kind = f"Content-Type: application/json\r\nContent-Length: {len(content)}"
    return f"HTTP/1.1 {status} Status\r\n{kind}\r\n\r\n".encode() + content


class _Stream:
    """The answer to one request."""

    def __init__(self, how: Behaviour, transport: Any, sent: Sent, chat: bool) -> None:
        self._how, self._transport, self._sent, self._chat = how, transport, sent, chat
        body, self._streams = sent.body, bool(sent.body.get("stream"))
        asked = body.get("max_completion_tokens") or body.get("max_tokens") or TOKENS
        early = how.most_tokens and not body.get("ignore_eos") and how.most_tokens < asked
        self._tokens, self._finish = (how.most_tokens, "stop") if early else (asked, "length")
        parts = [each["content"] for each in body["messages"]] if chat else [body["prompt"]]
        sent.prompt_tokens = len(json.dumps(parts).split()) + CHAT_TOKENS * chat  # a part may be a list

    async def answer(self, number: int, first_ms: float, token_ms: float) -> None:
        how, sent = self._how, self._sent
        due_ns = sent.turn_ns + round(first_ms * 1e6)
        if 0 < how.most_words < sent.prompt_tokens:
            sent.end = "400"
            return self._transport.write(_refusal(400, f"the prompt has {sent.prompt_tokens} tokens"))
        breaks = how.breaks and number % how.every == 0
        if breaks and how.breaks.isdigit():
            sent.end = how.breaks
            return self._transport.write(_refusal(int(how.breaks), f"too busy for {how.key}"))
        if self._streams:
            self._head()
            if how.role and self._chat:
                await self._event(self._choice({"role": "assistant", "content": ""}))
        for place, count in enumerate(self._counts()):
            due_ns += round(count * token_ms * 1e6) if place else 0
            await _until(due_ns)
            if place == how.breaks_after and breaks:
                return await self._break()
            text = "".join(f" {WORDS[(sent.tokens + each) % len(WORDS)]}" for each in range(count))
            reasons = sent.tokens < how.reasoning
            sent.reasoning += reasons
            chunk = {"reasoning_content" if reasons else "content": text}
            sent.chunks.append((await self._event(self._choice(chunk)), count, text))
        usage: dict[str, Any] = {"prompt_tokens": sent.prompt_tokens, "completion_tokens": sent.tokens}
        if how.cached >= 0:
            usage["prompt_tokens_details"] = {"cached_tokens": how.cached}
        if not self._streams:
            return self._whole(usage)
        await self._event(self._choice({}, self._finish))
        if how.usage and (sent.body.get("stream_options") or {}).get("include_usage"):
            await self._event({"choices": [], "usage": usage})
        await self._event("[DONE]")
        return self._end(self._finish)

    async def _break(self) -> None:
        if self._how.breaks == "cut":
            self._transport.abort()
            self._sent.end = "cut"
        else:
            await self._event(
                {"error": {"message": f"the engine has died{self._how.key}", "type": "server_error"}}
            )
            self._end("error")

    def _counts(self) -> Iterator[int]:
        """How many tokens each chunk has; no chunk has both reasoning and text."""
        reasoning = min(self._how.reasoning, self._tokens)
        for tokens in (reasoning, self._tokens - reasoning):
            for begin in range(0, tokens, self._how.chunk):
                yield min(self._how.chunk, tokens - begin)

    def _choice(self, delta: dict[str, str], finish: str | None = None) -> dict[str, Any]:
        said: dict[str, Any] = {"delta": delta} if self._chat else {"text": "".join(delta.values())}
        return {"choices": [{"index": 0, **said, "finish_reason": finish}]}

    async def _event(self, value: Any) -> int:
        """Sends an event; returns when its last part was sent."""
        if not self._streams:
            return time.perf_counter_ns()
        how, event = self._how, value
        if value != "[DONE]":
            kind = "chat.completion.chunk" if self._chat else "text_completion"
            known = {"id": "cmpl-1", "object": kind, "model": self._sent.body["model"]}
            event = json.dumps(value if "error" in value else known | value, ensure_ascii=False)
        end = "\r\n" if how.crlf else "\n"
        data = f"{': ping' + 2 * end if how.crlf else ''}data: {event}{2 * end}".encode()
        if not how.closes:
            data = b"%X\r\n%b\r\n" % (len(data), data)
        if how.split_ms:
            middle = next((place + 1 for place, byte in enumerate(data) if byte > 0xBF), len(data) // 2)
            self._write(data[:middle])
            await _until(time.perf_counter_ns() + round(how.split_ms * 1e6))
            data = data[middle:]
        return self._write(data)

    def _head(self) -> None:
        framing = "Connection: close" if self._how.closes else "Transfer-Encoding: chunked"
        head = f"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream; charset=utf-8\r\n{framing}\r\n\r\n"
        self._sent.first_byte_ns = self._write(head.encode())

    def _end(self, end: str) -> None:
        self._sent.end, closes = end, self._how.closes
        self._sent.last_ns = self._write(b"" if closes else b"0\r\n\r\n")
        if closes:
            self._transport.close()

    def _whole(self, usage: dict[str, Any]) -> None:
        text = "".join(text for _, _, text in self._sent.chunks)
        said = {"message": {"content": text}} if self._chat else {"text": text}
        if self._how.echoes and self._sent.body.get("echo"):
            words = self._sent.body["prompt"].split()
            said["logprobs"] = {"token_logprobs": [None, *(-len(each) / 4 for each in words[1:]), -9.0]}
        choices = [{"index": 0, **said, "finish_reason": self._finish}]
        self._sent.last_ns = self._write(_document(200, {"choices": choices, "usage": usage}))
        self._sent.end = self._finish

    def _write(self, data: bytes) -> int:
        now_ns = time.perf_counter_ns()
        self._transport.write(data)
        return now_ns


class _Server:
    def __init__(self, how: Behaviour) -> None:
        self.how, self.kept = how, []
        self.turns = asyncio.Semaphore(how.parallel or sys.maxsize)
        self._random, self._count = random.Random(how.seed), 0
        self.asked = 0  # requests that wait or are answered

    def metrics(self) -> bytes:
        """The page of metrics, as vLLM has it."""
        running = min(self.asked, self.how.parallel or self.asked)
        values = {"num_requests_running": running, "num_requests_waiting": self.asked - running}
        lines = [
            f'vllm:{name}{{model_name="{self.how.models[0]}"}} {value}\n' for name, value in values.items()
        ]
        content = "".join(lines).encode()
        head = f"HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\nContent-Length: {len(content)}\r\n\r\n"
        return head.encode() + content

    def turn(self) -> tuple[int, float, float]:
        """Which request it is, from 1; its first time and that of a token, in milliseconds."""
        how, self._count = self.how, self._count + 1
        first = token = 1.0
        if how.spread:
            shape = how.spread**-2
            first, token = (self._random.gammavariate(shape, 1 / shape) for _ in range(2))
        slow_ms = how.slow_ms * (self._count <= how.slow_start)
        return self._count, how.first_ms * first + slow_ms, how.token_ms * token


async def _serve(how: Behaviour) -> None:
    loop, server = asyncio.get_running_loop(), _Server(how)
    listening = await loop.create_server(lambda: _Connection(server), "127.0.0.1", 0)
    sys.stdout.reconfigure(line_buffering=True)
    sys.stdout.write(f"{listening.sockets[0].getsockname()[1]}\n")
    while await loop.run_in_executor(None, sys.stdin.readline):
        kept, server.kept = server.kept, []
        sys.stdout.write(json.dumps([asdict(sent) for sent in kept]) + "\n")


if __name__ == "__main__":
    # select takes microseconds where epoll takes milliseconds
    loop = asyncio.SelectorEventLoop(selectors.SelectSelector())
    loop.run_until_complete(_serve(Behaviour(**json.loads(sys.argv[1]))))
