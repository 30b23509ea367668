"""What a server with known times really did, in the figures of ``agent measure generation``."""

import json
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from tests.integration import generation_server
from tests.integration.generation_server import Sent


class Serving:
    """A server in a process of its own."""

    def __init__(self, process: "subprocess.Popen[str]") -> None:
        self._process = process
        self.address = f"127.0.0.1:{process.stdout.readline().strip()}"

    def sent(self) -> list[Sent]:
        """What the server did since this was last asked, in the order in which the requests came."""
        self._process.stdin.write("\n")
        self._process.stdin.flush()
        found = json.loads(self._process.stdout.readline())
        return sorted((Sent(**each) for each in found), key=lambda sent: sent.received_ns)


@contextmanager
def serving(**behaviour: Any) -> Iterator[Serving]:
    """Starts a server with a ``generation_server.Behaviour``."""
    command = [sys.executable, generation_server.__file__, json.dumps(behaviour)]
    with ExitStack() as stack:
        pipe = subprocess.PIPE
        process = stack.enter_context(subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True))
        stack.callback(process.kill)
        yield Serving(process)


@dataclass(frozen=True)
class Truth:
    """What a request really took, in milliseconds, and its tokens; from the stamps of the server.

    ``tpot_ms`` is None with fewer than two tokens or chunks.
    """

    ttft_ms: float
    ttfo_ms: float
    tpot_ms: float | None
    gaps_ms: Sequence[float]
    e2e_ms: float
    tokens: int
    last_ns: int


def truth_of(sent: Sent, due_ns: int) -> Truth:
    """The truth of a request that was due at a time of the server's clock, and whose answer is whole."""
    times_ns = [time_ns for time_ns, _, _ in sent.chunks]
    spread_ms = (times_ns[-1] - times_ns[0]) / 1e6
    return Truth(
        ttft_ms=(times_ns[0] - due_ns) / 1e6,
        ttfo_ms=(times_ns[sent.reasoning] - due_ns) / 1e6,
        tpot_ms=spread_ms / (sent.tokens - 1) if sent.tokens > 1 and len(times_ns) > 1 else None,
        gaps_ms=[(later - earlier) / 1e6 for earlier, later in pairwise(times_ns)],
        e2e_ms=(sent.last_ns - due_ns) / 1e6,
        tokens=sent.tokens,
        last_ns=sent.last_ns,
    )
