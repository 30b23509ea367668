"""An agent of the fake framework in a process of its own: prints its address, and serves until a signal."""

import sys
from pathlib import Path

from fake_framework import fake_registry

from agent.server.server import AgentServer, ServerOptions, serve
from manifests.catalog import Catalog


def _say(text: str) -> None:
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    folder, grace_s = Path(sys.argv[1]), float(sys.argv[2])
    server = AgentServer(Catalog([folder]), fake_registry(), ServerOptions(port=0, grace_s=grace_s))
    serve(server, _say)
    _say("stopped")
