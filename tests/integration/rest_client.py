"""Clients of the Open Inference Protocol over HTTP: requests of raw bytes, and what comes back."""

import http.client
import json
import socket
from dataclasses import dataclass

import numpy as np

TIMEOUT_S = 60.0
HEADER_LENGTH = "Inference-Header-Content-Length"
INFER = "/v2/models/{}/infer"


@dataclass
class Answer:
    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def json(self):
        head = int(self.headers.get(HEADER_LENGTH.lower(), len(self.body)))
        return json.loads(self.body[:head])

    @property
    def binary(self) -> bytes:
        return self.body[int(self.headers[HEADER_LENGTH.lower()]) :]

    @property
    def error(self) -> str:
        """The one line of a refusal, which is all of its body."""
        assert self.status >= 400, self
        found = json.loads(self.body)
        assert list(found) == ["error"]
        assert len(found["error"].splitlines()) == 1
        assert "Traceback" not in found["error"]
        return found["error"]


class Rest:
    """Sends one request after the other over one connection, which it makes anew where it was closed."""

    def __init__(self, url: str) -> None:
        self.address = url.partition("://")[2]
        self._connection = http.client.HTTPConnection(self.address, timeout=TIMEOUT_S)

    def __call__(self, verb, path, body=None, headers=None) -> Answer:
        if body is not None and not isinstance(body, bytes) and not hasattr(body, "__next__"):
            body = json.dumps(body).encode()
        self._connection.request(verb, path, body, headers or {})
        found = self._connection.getresponse()
        return Answer(found.status, {k.lower(): v for k, v in found.getheaders()}, found.read())

    def get(self, path, **headers) -> Answer:
        return self("GET", path, None, headers)

    def infer(self, head, *binary, model="Mean", headers=None) -> Answer:
        """Sends a request for inference; what is binary follows the JSON."""
        text = json.dumps(head).encode()
        given = {HEADER_LENGTH: str(len(text))} if binary else {}
        return self("POST", INFER.format(model), text + b"".join(binary), {**given, **(headers or {})})

    def close(self) -> None:
        self._connection.close()


def json_input(array, datatype="FP32", name="data", flat=True, **more):
    """An input with its elements in JSON."""
    data = array.reshape(-1).tolist() if flat else array.tolist()
    return {"name": name, "datatype": datatype, "shape": list(array.shape), "data": data, **more}


def binary_input(array, datatype="FP32", name="data", size=None):
    """An input whose elements follow the JSON."""
    parameters = {"binary_data_size": array.nbytes if size is None else size}
    return {"name": name, "datatype": datatype, "shape": list(array.shape), "parameters": parameters}


def raw_request(text: str, body: bytes = b"") -> bytes:
    """A request with its lines as given."""
    return "\r\n".join([*text.strip().split("\n"), "", ""]).encode() + body


def connect(url: str) -> socket.socket:
    host, _, port = url.partition("://")[2].rpartition(":")
    return socket.create_connection((host, int(port)), TIMEOUT_S)


def received(connection: socket.socket, ends: bytes = b"") -> bytes:
    """What a server sends until it closes the connection, or until that has been seen."""
    found = b""
    while (not ends or ends not in found) and (part := connection.recv(65536)):
        found += part
    return found


def scores_of(answer: Answer) -> np.ndarray:
    [output] = answer.json["outputs"]
    data = output["data"] if "data" in output else np.frombuffer(answer.binary, np.float32)
    return np.array(data, np.float32).reshape(output["shape"])
