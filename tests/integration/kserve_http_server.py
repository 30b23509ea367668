"""A small server of the Open Inference Protocol over HTTP, built only on the standard library; JSON only."""

import json
import threading
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import grpc
import numpy as np
from kserve_server import DTYPES, HELD_S, Served

STATUSES = {
    grpc.StatusCode.UNAUTHENTICATED: 401,
    grpc.StatusCode.NOT_FOUND: 404,
    grpc.StatusCode.UNIMPLEMENTED: 404,
    grpc.StatusCode.INVALID_ARGUMENT: 400,
    grpc.StatusCode.RESOURCE_EXHAUSTED: 429,
    grpc.StatusCode.UNAVAILABLE: 503,
}


class _Requests(BaseHTTPRequestHandler):
    """Answers as ``served`` says; a subclass has the server's own."""

    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    served: Served
    chunked = False
    closes = False
    closes_silently = False
    """Whether each connection is closed, without an announcement, when its second request comes."""

    def log_message(self, *_):
        pass

    def handle_one_request(self):
        if self.closes_silently and hasattr(self, "raw_requestline"):
            self.rfile.peek(1)
            self.close_connection = True
        else:
            super().handle_one_request()

    def _answer(self, status, value=None):
        content = b"" if value is None else json.dumps(value).encode()
        self.send_response(status)
        if self.closes:
            self.send_header("Connection", "close")
        if self.chunked:
            self.send_header("Transfer-Encoding", "chunked")
            self.end_headers()
            for start in range(0, len(content), 7):
                piece = content[start : start + 7]
                self.wfile.write(b"%X;why=not\r\n%b\r\n" % (len(piece), piece))
            self.wfile.write(b"0\r\n\r\n")
        else:
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

    def _enter(self, method):
        """Whether the method answers at all."""
        served = self.served
        if method in served.holds:
            served.begun.set()
            served.release.wait(HELD_S)
        if method in served.fails:
            code, message = served.fails[method]
            self._answer(STATUSES[code], {"error": message})
            return False
        return True

    def do_GET(self):
        served, parts = self.served, self.path.strip("/").split("/")
        match parts:
            case ["v2", "health", "ready"]:
                if self._enter("ServerReady"):
                    self._answer(200 if served.server_ready else 400)
            case ["v2"]:
                if self._enter("ServerMetadata"):
                    self._answer(200, {"name": served.server_name, "version": "9.8", "extensions": []})
            case ["v2", "models", name, *_] if name != served.model_name:
                self._answer(404, {"error": f"no model {name} here"})
            case ["v2", "models", _, *rest] if rest[-1:] == ["ready"]:
                if self._enter("ModelReady"):
                    self._answer(200, {"name": served.model_name, "ready": served.model_ready})
            case ["v2", "models", name, *rest] if rest[-1:] == ["config"]:
                if served.max_batch_size is None:
                    self._answer(404, {"detail": "Not Found"})
                else:
                    self._answer(200, {"name": name, "max_batch_size": served.max_batch_size, "newer": 1})
            case ["v2", "models", name, *_]:
                if self._enter("ModelMetadata"):
                    self._answer(200, self._metadata(name))
            case _:
                self._answer(404, {"detail": "Not Found"})

    def _metadata(self, name):
        served = self.served
        return {
            "name": name,
            "versions": list(served.versions),
            "platform": served.platform,
            "inputs": [vars(tensor) for tensor in served.inputs],
            "outputs": [vars(tensor) for tensor in served.outputs],
        }

    def do_POST(self):
        served = self.served
        body = self.rfile.read(int(self.headers["Content-Length"]))
        request = json.loads(body)
        served.calls.append(({k.lower(): v for k, v in self.headers.items()}, request))
        if not self._enter("ModelInfer"):
            return
        [item] = request["inputs"]
        try:
            outputs = served.model(np.array(item["data"], DTYPES[item["datatype"]]).reshape(item["shape"]))
        except ValueError as error:
            self._answer(500, {"error": str(error)})
            return
        wanted = [output["name"] for output in request.get("outputs", ())] or list(outputs)
        response = {
            "model_name": served.model_name,
            "parameters": served.parameters,
            "outputs": [self._output(name, outputs[name]) for name in wanted],
        }
        served.change(response)
        self._answer(200, response)

    def _output(self, name, array):
        [datatype] = [key for key, dtype in DTYPES.items() if dtype == array.dtype]
        return {
            "name": name,
            "datatype": datatype,
            "shape": list(array.shape),
            "data": array.reshape(-1).tolist(),
        }


class _Server(ThreadingHTTPServer):
    """Closes its connections when it is told to die."""

    daemon_threads = True
    request_queue_size = 256

    def __init__(self, *arguments):
        super().__init__(*arguments)
        self.open = set()
        self.made = 0
        self.dies = False

    def get_request(self):
        connection, address = super().get_request()
        self.open.add(connection)
        self.made += 1
        if self.dies:  # it was on its way
            connection.shutdown(2)
        return connection, address

    def shutdown_request(self, request):
        self.open.discard(request)
        super().shutdown_request(request)

    def handle_error(self, request, client_address):
        """Says nothing of clients that have gone away."""


@dataclass
class Running:
    """A server that runs."""

    address: str
    server: _Server

    @property
    def connections(self):
        """How many were made."""
        return self.server.made

    def die(self):
        """Closes every connection in the middle of what it does."""
        self.server.dies = True
        self.server.server_close()
        for connection in tuple(self.server.open):
            with suppress(OSError):
                connection.shutdown(2)


@contextmanager
def running_http(served: Served, **options):
    """Runs the server on a free port."""
    kind = type("Requests", (_Requests,), {"served": served, **options})
    server = _Server(("127.0.0.1", 0), kind)
    thread = threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True)
    thread.start()
    try:
        yield Running(f"kserve+http://127.0.0.1:{server.server_address[1]}", server)
    finally:
        served.release.set()
        server.shutdown()
        server.server_close()
        thread.join()
