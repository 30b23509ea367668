"""Dynamic batching in a served agent: DigitsCNN with 16 requests in flight, with and without it.

Two agents run in separate processes, one with batching and one with the defaults, with one thread per
operator. The client keeps 16 calls of one input each in flight: each response triggers the next call. The
client and gRPC's threads share the processors with the agent, and batching does not save their time per call.
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

from inferometer.agent.inference.registry import Registry
from inferometer.agent.inference.session import SessionOptions
from inferometer.agent.protocol.messages import encode_batch_request
from inferometer.agent.server.server import AgentServer, ServerOptions
from inferometer.agent.serving.batching import BatchingOptions
from inferometer.agent.serving.served_models import ServingOptions
from inferometer.client.remote.native.agent import RemoteAgent, open_remote_agent
from inferometer.manifests.catalog import Catalog
from tests.perf.ratios import Row, divided, interleaved, print_table

MODEL = "DigitsCNN"
FRAMEWORKS = ("PyTorch", "MXNet", "ONNXRuntime")
IN_FLIGHT = 16
CALLS = 2000
ROUNDS = 5
DELAY_MS = 5.0
WAYS = {
    # a quick model would be predicted on the event loop, which is another comparison
    "without": BatchingOptions(inline_predict_us=0),
    "with": BatchingOptions(max_batch_size=IN_FLIGHT, max_queue_delay_ms=DELAY_MS),
}


def measure() -> list[Row]:
    """Measures each installed framework."""
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
    """Opens the model at an agent in a separate process."""
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
        server.stdin.close()  # ends the server
        server.wait()
        server.stdout.close()


class _ClosedLoop:
    """Keeps calls in flight; the gRPC thread that receives a response sends the next call.

    Responses are parsed afterwards, if at all, because the client's work takes processor time from the agent.
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
    """Returns the mean size of the batch that a call is part of."""
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
