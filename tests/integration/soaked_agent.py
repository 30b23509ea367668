"""An agent with sound and faulty models in a separate process, which serves until a signal."""

import sys
from pathlib import Path

from faulty_framework import faulty_registry

from inferometer.agent.server.server import AgentServer, ServerOptions, serve
from inferometer.agent.serving.batching import BatchingOptions
from inferometer.agent.serving.served_models import ServingOptions
from inferometer.manifests.catalog import Catalog

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
