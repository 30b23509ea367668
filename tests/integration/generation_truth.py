"""What a server with known times really did, in the figures of ``agent measure generation``."""

import json
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
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
