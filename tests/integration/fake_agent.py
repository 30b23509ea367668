"""An agent of the fake framework in a separate process: prints its addresses and serves until a signal."""

import sys
from pathlib import Path

from fake_framework import fake_registry

from inferometer.agent.server.server import AgentServer, ServerOptions, serve
from inferometer.manifests.catalog import Catalog


def _say(text: str) -> None:
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    folder, grace_s, drain_s = Path(sys.argv[1]), float(sys.argv[2]), float(sys.argv[3])
    options = ServerOptions(port=0, http_port=0, grace_s=grace_s, drain_s=drain_s)
    server = AgentServer(Catalog([folder]), fake_registry(), options)
    serve(server, lambda address: _say(f"{address} {server.http_url}"))
    _say("stopped")
