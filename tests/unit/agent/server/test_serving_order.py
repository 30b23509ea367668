"""The order in which a served agent stops after a signal."""

import os
import signal

from inferometer.agent.server.server import serve


class Server:
    address = "127.0.0.1:1"

    def __init__(self):
        self.steps = []

    def start(self):
        self.steps.append("start")

    def stop(self):
        self.steps.append("stop")
        return True


def test_it_is_told_that_it_stops_before_anything_is_stopped():
    server = Server()

    def on_ready(address):
        server.steps.append(f"ready at {address}")
        os.kill(os.getpid(), signal.SIGTERM)

    serve(server, on_ready, lambda: server.steps.append("stopping"))

    assert server.steps == ["start", "ready at 127.0.0.1:1", "stopping", "stop"]
