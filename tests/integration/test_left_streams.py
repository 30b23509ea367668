"""Streams of a served language model whose clients leave: the others are right, and nothing stays behind.

``INFEROMETER_SOAK_STREAMS`` is the number of streams; ``make soak`` takes 10,000.
"""

from __future__ import annotations

import http.client
import json
import os
import random
import socket
import struct
import subprocess
import sys
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path

import psutil
import pytest
from test_killed_processes import Agent, serve, wait_for

STREAMS = int(os.environ.get("INFEROMETER_SOAK_STREAMS", "300"))
KILLS = max(1, STREAMS // 1000)
"""Of each half of the streams; each killed client has ``OF_A_KILLED`` streams."""
OF_A_KILLED = 6
MOST_GROWTH = 1.05 if STREAMS >= 5_000 else 1.2
"""Of the memory after half of the streams; a short run has not filled every cache by then."""
AT_ONCE, MOST_ROUNDS, STEADY_ROUNDS = 48, 40, 4
"""Of the requests that fill the agent's pools of threads, which have room for 40."""
CLIENTS = 12
LIMIT_S = 60 + STREAMS / 20
RESET = struct.pack("ii", 1, 0)
LONG = {"prompt": "You may", "max_tokens": 1_900, "ignore_eos": True}
PROMPTS = [{"prompt": f"Part {n}", "max_tokens": 4 + 7 * n, "ignore_eos": True} for n in range(8)]
_KILLED_CLIENT = """
import socket, sys, time
host, port, count = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
request = sys.stdin.buffer.read()
kept = [socket.create_connection((host, port)) for _ in range(count)]
for each in kept:
    each.sendall(request)
for each in kept:
    assert each.recv(4096).startswith(b"HTTP/1.1 200")
print("streaming", flush=True)
time.sleep(600)
"""


def request_of(prompt: dict[str, object], at: str) -> bytes:
    body = json.dumps({"model": "ToyLlama", "temperature": 0, "stream": True, **prompt})
    head = f"POST /v1/completions HTTP/1.1\r\nHost: {at}\r\nContent-Length: {len(body)}\r\n\r\n"
    return (head + body).encode()


class Client:
    """Streams of one thread, each of which ends in a way of its own."""

    def __init__(self, at: str, truths: list[str], seed: int) -> None:
        self.ended: Counter[str] = Counter()
        self._at, self._truths, self._draw = at, truths, random.Random(seed)

    def stream(self, _: int) -> None:
        way = self._draw.choice((self.whole, self.leave, self.leave, self.never_read, self.half_ask))
        way()
        self.ended[way.__name__] += 1

    def whole(self) -> None:
        number = self._draw.randrange(len(PROMPTS))
        assert text_of(self._at, PROMPTS[number]) == self._truths[number]

    def leave(self) -> None:
        """Reads some pieces, and closes or resets the connection."""
        with self._connected() as connection:
            connection.sendall(request_of(LONG, self._at))
            for _ in range(self._draw.randrange(1, 6)):
                assert connection.recv(200)
            if self._draw.random() < 0.5:
                connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET)

    def never_read(self) -> None:
        with self._connected() as connection:
            connection.sendall(request_of(LONG, self._at))

    def half_ask(self) -> None:
        with self._connected() as connection:
            connection.sendall(request_of(LONG, self._at)[:-9])

    def _connected(self) -> socket.socket:
        host, _, port = self._at.rpartition(":")
        return socket.create_connection((host, int(port)), LIMIT_S)


def text_of(at: str, prompt: dict[str, object]) -> str:
    connection = http.client.HTTPConnection(at, timeout=LIMIT_S)
    body = {"model": "ToyLlama", "temperature": 0, "stream": True, **prompt}
    connection.request("POST", "/v1/completions", json.dumps(body))
    lines = connection.getresponse().read().decode().split("\n\n")
    connection.close()
    assert lines[-2:] == ["data: [DONE]", ""], lines[-3:]
    pieces = [json.loads(line.removeprefix("data: ")) for line in lines[:-2]]
    return "".join(choice["text"] for piece in pieces for choice in piece["choices"])


def fill_pools(agent: Agent, at: str) -> None:
    """Sends many requests at once, which are long and refused, until the agent starts no more threads."""
    prompt = {"model": "ToyLlama", "prompt": "x" * 20_000}

    def refused(_: int) -> bool:
        with closing(http.client.HTTPConnection(at, timeout=LIMIT_S)) as connection:
            connection.request("POST", "/v1/completions", json.dumps(prompt))
            return connection.getresponse().status == http.HTTPStatus.BAD_REQUEST

    counts = list[int]()
    with ThreadPoolExecutor(AT_ONCE) as pool:
        while len(set(counts[-STEADY_ROUNDS:])) != 1 or len(counts) < STEADY_ROUNDS:
            assert len(counts) < MOST_ROUNDS, counts
            assert all(pool.map(refused, range(AT_ONCE)))
            counts.append(agent.process.num_threads())


def run_half(at: str, truths: list[str], seed: int) -> Counter[str]:
    host, _, port = at.rpartition(":")
    arguments = [sys.executable, "-c", _KILLED_CLIENT, host, port, str(OF_A_KILLED)]
    clients = [Client(at, truths, seed * CLIENTS + number) for number in range(CLIENTS)]
    with ThreadPoolExecutor(CLIENTS + 1) as pool:
        each_sends = range(STREAMS // 2 // CLIENTS)
        running = [pool.submit(lambda client=client: [*map(client.stream, each_sends)]) for client in clients]
        for _ in range(KILLS):
            with subprocess.Popen(arguments, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as killed:
                assert killed.stdin is not None
                assert killed.stdout is not None
                killed.stdin.write(request_of(LONG, at))
                killed.stdin.close()
                assert killed.stdout.readline() == b"streaming\n"
                killed.kill()
        for each in running:
            each.result()
    return sum((client.ended for client in clients), Counter())


def is_idle(process: psutil.Process) -> bool:
    """Whether nothing computes: a stream of those left would last for seconds."""
    before = process.cpu_times()
    time.sleep(0.3)
    after = process.cpu_times()
    return after.user + after.system - before.user - before.system < 0.05


def state_of(agent: Agent) -> tuple[int, int, int]:
    """Waits until the agent is idle; returns its memory in bytes, its threads and its open descriptors."""
    wait_for(lambda: is_idle(agent.process))
    process = agent.process
    return process.memory_info().rss, process.num_threads(), process.num_fds()


@pytest.mark.timeout(2 * LIMIT_S + 120)
def test_clients_that_leave_disturb_no_other_and_leave_nothing(tmp_path: Path) -> None:
    (tmp_path / "config.yml").write_text("{}")
    with serve(tmp_path, "--max_batch_size=8") as agent:
        at = agent.url.removeprefix("http://")
        truths = [text_of(at, prompt) for prompt in PROMPTS]
        fill_pools(agent, at)
        ended = run_half(at, truths, 0)
        half = state_of(agent)
        began_s = time.monotonic()
        ended += run_half(at, truths, 1)
        ran_s = time.monotonic() - began_s
        end = state_of(agent)
        assert [text_of(at, prompt) for prompt in PROMPTS] == truths
    sys.stdout.write(f"{ended}; memory, threads and descriptors: {half} → {end}; half {ran_s:.1f} s\n")
    assert min(ended.values()) > 0
    assert end[0] <= MOST_GROWTH * half[0]
    assert end[1] <= half[1]
    assert end[2] <= half[2] + 2
