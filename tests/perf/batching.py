"""Dynamic batching in a served agent: DigitsCNN with 16 requests in flight, with it over without it.

The agents run in processes of their own, one with batching and one as it is by default, with one thread for
an operator. The client keeps 16 calls of one input each in flight: with each answer the next call is sent. It
shares the processors with the agent, and so do the threads of gRPC, whose time per call batching cannot save.
"""

from __future__ import annotations

import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from functools import partial

import grpc
import numpy as np

from agent.batching import BatchingOptions
from agent.registry import Registry
from agent.server.messages import encode_batch_request
from agent.server.models.served_models import ServingOptions
from agent.server.server import AgentServer, ServerOptions
from agent.session import SessionOptions
from client.remote.agent import RemoteAgent, open_remote_agent
from manifests.catalog import Catalog
from tests.perf.ratios import Row, divided, interleaved, print_table

MODEL = "DigitsCNN"
FRAMEWORKS = ("PyTorch", "MXNet", "ONNXRuntime")
IN_FLIGHT = 16
CALLS = 2000
ROUNDS = 5
DELAY_MS = 5.0
WAYS = {
    "without": BatchingOptions(),
    "with": BatchingOptions(max_batch_size=IN_FLIGHT, max_queue_delay_ms=DELAY_MS),
}


def measure() -> list[Row]:
    """Measures each framework that is installed."""
    installed = [name for name in FRAMEWORKS if Registry().versions.get(name)]
    return [_measured(name) for name in installed]


def _measured(framework: str) -> Row:
    with ExitStack() as stack:
        agents = {way: stack.enter_context(_agent(framework, way)) for way in WAYS}
        taken = interleaved(ROUNDS, {way: partial(_rate, agent) for way, agent in agents.items()})
        size = _mean_batch(agents["with"])
    return Row(
        f"{MODEL} in {framework}, {IN_FLIGHT} in flight: throughput with batching / without",
        divided(taken["with"], taken["without"]),
        "≥ 2",
        " / ".join(f"{statistics.median(taken[way]):.0f}" for way in ("with", "without"))
        + f" calls/s, batches of {size:.1f}",
    )


@contextmanager
def _agent(framework: str, way: str) -> Iterator[RemoteAgent]:
    """The model, open at an agent in a process of its own."""
    server = subprocess.Popen(
        [sys.executable, "-m", "tests.perf.batching", "serve", way],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert server.stdin is not None
    assert server.stdout is not None
    try:
        address = server.stdout.readline().strip()
        options = SessionOptions(threads=1)
        with open_remote_agent(address, MODEL, framework_name=framework, options=options) as agent:
            yield agent
    finally:
        server.stdin.close()  # which ends the server
        server.wait()
        server.stdout.close()


class _ClosedLoop:
    """Keeps calls in flight, each sent by the thread of gRPC that takes an answer.

    The answers are read afterwards, if at all: what the client does takes the processor from the agent.
    """

    def __init__(self, agent: RemoteAgent, calls: int) -> None:
        parameters = agent.description.manifest.inputs[0].parameters
        shape = (1, *parameters.dimensions)
        self._request = encode_batch_request(agent.session_id, np.zeros(shape, parameters.element_type.value))
        self._agent = agent
        self._left = calls
        self._flying = 0
        self._lock = threading.Lock()
        self._done = threading.Event()
        self.answers: list[bytes] = []

    def run(self) -> None:
        """Makes the calls."""
        for _ in range(IN_FLIGHT):
            self._send()
        self._done.wait()

    def _send(self) -> None:
        with self._lock:
            if self._left == 0:
                return
            self._left -= 1
            self._flying += 1
        self._agent.connection.begin_predict(self._request).add_done_callback(self._answered)

    def _answered(self, call: grpc.Future[bytes]) -> None:
        self.answers.append(call.result())
        self._send()
        with self._lock:
            self._flying -= 1
            if not self._flying:
                self._done.set()


def _rate(agent: RemoteAgent) -> float:
    """Calls per second."""
    loop = _ClosedLoop(agent, CALLS)
    started_s = time.perf_counter()
    loop.run()
    return CALLS / (time.perf_counter() - started_s)


def _mean_batch(agent: RemoteAgent) -> float:
    """The mean size of the batch that a call is in."""
    loop = _ClosedLoop(agent, CALLS)
    loop.run()
    results = [agent.connection.read(answer) for answer in loop.answers]
    return statistics.mean(result.queue.batch_size for result in results if result.queue)


def _serve(way: str) -> None:
    """Runs an agent until standard input ends."""
    options = ServerOptions(port=0, serving=ServingOptions(batching=WAYS[way]))
    with AgentServer(Catalog([]), Registry(), options) as server:
        print(server.address, flush=True)
        sys.stdin.read()


if __name__ == "__main__":
    if sys.argv[1:2] == ["serve"]:
        _serve(sys.argv[2])
    else:
        print_table("Dynamic batching", measure())
