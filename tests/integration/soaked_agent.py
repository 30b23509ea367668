"""An agent of sound and faulty models in a process of its own, which serves until a signal."""

import sys
from pathlib import Path

from faulty_framework import faulty_registry

from agent.batching import BatchingOptions
from agent.server.models.served_models import ServingOptions
from agent.server.server import AgentServer, ServerOptions, serve
from manifests.catalog import Catalog

SECRET = "open sesame"
MAX_MESSAGE_BYTES = 200_000
MAX_SESSIONS = 24


def _say(text: str) -> None:
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    options = ServerOptions(
        port=0,
        secret=SECRET,
        max_message_bytes=MAX_MESSAGE_BYTES,
        max_sessions=MAX_SESSIONS,
        metrics_port=0,
        serving=ServingOptions(batching=BatchingOptions(max_batch_size=4), predict_timeout_s=60),
    )
    serve(AgentServer(Catalog([Path(sys.argv[1])]), faulty_registry(), options), _say)
    _say("stopped")
