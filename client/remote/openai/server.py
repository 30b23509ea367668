"""A server of OpenAI's protocol: its models, a request that waits, and a load target whose answers stream."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import Any, cast

import grpc

from inferometer.agent.hardware.environment import Device, DeviceKind, unknown_environment
from inferometer.agent.inference.stages import SystemDescription
from inferometer.agent.tracing.recorder import SpanKind, http_client_call
from inferometer.client.remote.address import OpenAIAddress
from inferometer.client.remote.call_target import CallFlight, CallTarget, Outcome
from inferometer.client.remote.connection import CONNECT_TIMEOUT_S, Hints, RemoteOptions, explain, with_tls
from inferometer.client.remote.openai.events import DONE, read_answer
from inferometer.client.remote.rest.connection import encode_request, fixed_headers, successful, with_headers
from inferometer.client.remote.rest.sockets import Endpoint, Exchanges, Flights, HttpCall
from inferometer.evaluators.load.streams import Answer, Prompt
from inferometer.manifests.errors import AgentError, SessionError, UnknownModelError, suggestion
from inferometer.manifests.schema import ModelManifest

_HINTS = Hints(
    refused="is the server running, and is it the right port?",
    no_grpc="does not speak HTTP/1.1 there",
    unauthenticated="refuses the key: {}; give it with --secret_file or AGENT_SECRET",
    unimplemented="does not speak OpenAI's protocol ({})",
    crashed="the server",
    secure_scheme="openai+https:",
)
_FORBIDDEN = 403
_PATHS = {True: "/v1/chat/completions", False: "/v1/completions"}
_MOST_KEPT_BYTES = 256 * 1024 * 1024
"""The size of all answers of a run that are read only after it; further ones are read on arrival."""
_GRACE_S = 1.0
"""How much longer than its query a call may take, so that the query has timed out before it fails."""


def open_openai(
    address: str, model: str | None, remote: RemoteOptions, say: Callable[[str], None]
) -> OpenAISystem:
    """Opens a model on a server of OpenAI's protocol.

    Args:
        address: ``openai+http://host:port``; see ``OpenAIAddress``.
        model: The server's name of the model; None for the only one that it has.
        remote: The secret, which is the server's key, TLS, and the timeouts.
        say: Receives the name of the model if it was not given.

    Raises:
        ConfigurationError: The address is invalid.
        UnknownModelError: The server does not have the model, or it has several and none is named.
        AgentError: The server cannot be reached, refuses the key, or does not list its models.
    """
    connection = _Connection(OpenAIAddress.parse(address), remote)
    try:
        owners = connection.models()
        names = list(owners)
        where = f"server {connection.address.server}"
        if model is None:
            if len(names) != 1:
                listed = ", ".join(names) or "none"
                raise UnknownModelError(
                    f"{where}: has {len(names)} models ({listed}); name one with --model_name"
                )
            [model] = names
            say(f"model {model}, the only one of {connection.address}")
        elif names and model not in names:
            raise UnknownModelError(f'{where}: has no model "{model}"; {suggestion(model, names)}')
        return OpenAISystem(connection, model, owners.get(model, ""))
    except BaseException:
        connection.close()
        raise


class _Connection:
    """Connections to a server: for requests that wait, and for those under load. Thread-safe."""

    def __init__(self, address: OpenAIAddress, remote: RemoteOptions) -> None:
        agent = with_tls(address.agent, remote.tls)
        self.address = replace(address, agent=agent)
        self.name = f"server {address.server}"
        self.timeout_s = remote.call_timeout_s
        self._fixed = fixed_headers(agent, remote.secret, "openai+https")
        self._endpoint = Endpoint(agent, remote.tls)
        self._exchanges = Exchanges(self._endpoint, self.name)
        self.flights: Flights | None = None

    def encode(self, verb: str, path: str, body: Mapping[str, Any] | None = None) -> bytes:
        """Returns a request."""
        content = b"" if body is None else json.dumps(body, ensure_ascii=False).encode()
        more = "content-type: application/json\r\n" if content else ""
        return encode_request(verb, self.address.path + path, self._fixed, content, more=more)

    def exchange(self, request: bytes, timeout_s: float | None) -> bytes:
        """Returns a successful response; raises AgentError for any other, and if there is none."""
        try:
            return successful(self._exchanges.exchange(request, timeout_s))
        except grpc.RpcError as error:
            raise AgentError(f"{self.name}: {self.explained(error)}") from error

    def explained(self, error: grpc.RpcError) -> str:
        """Returns what a failure means, in one line."""
        code, details = error.code(), error.details() or ""
        if getattr(error, "http_status", None) == _FORBIDDEN:
            code = grpc.StatusCode.UNAUTHENTICATED
        return explain(code, details, self.address.agent, _HINTS)

    def models(self) -> dict[str, str]:
        """Returns who owns each of the server's models, by name; that is often the name of the server."""
        content = self.exchange(self.encode("GET", "/v1/models"), CONNECT_TIMEOUT_S)
        with suppress(ValueError, TypeError, KeyError, AttributeError, RecursionError):
            listed = json.loads(content.partition(b"\r\n\r\n")[2])["data"]
            return {str(each["id"]): str(each.get("owned_by") or "") for each in listed}
        raise AgentError(f"{self.name}: does not speak OpenAI's protocol: /v1/models has no list of models")

    def hold(self) -> Callable[[], object]:
        """Starts the thread for streams under load; returns a function that ends it."""
        flights = self.flights = Flights(self._endpoint)
        return flights.close

    def close(self) -> None:
        """Closes the connections; calling it again does nothing."""
        if self.flights is not None:
            self.flights.close()
        self._exchanges.close()


class OpenAISystem:
    """A model of a server of OpenAI's protocol; satisfies ``evaluators.load.streams.GenerationSystem``."""

    in_process = False

    def __init__(self, connection: _Connection, model: str, server: str) -> None:
        self._connection = connection
        self._model = model
        manifest = ModelManifest.model_validate(
            {
                "name": model,
                "framework": {"name": server or "server without a name"},
                "inputs": [{"type": "tensor", "parameters": {"dimensions": [-1], "element_type": "int64"}}],
                "output": {"type": "generation"},
                "model": {"architecture": model},
            }
        )
        self.description = SystemDescription(
            manifest=manifest,
            checksums={},
            framework_version="",
            device=Device(DeviceKind.REMOTE),
            threads=None,
            preprocess_threads=0,
            overlap=False,
            environment=unknown_environment({}, {}),
            agent=str(connection.address),
            precision=None,
        )

    def encode(self, prompt: Prompt) -> bytes:
        """Returns the request for the answer to a prompt, as a stream."""
        body = dict[str, Any](model=self._model)
        if not prompt.chat:
            body["prompt"] = prompt.content
        elif isinstance(prompt.content, str):
            body["messages"] = [{"role": "user", "content": prompt.content}]
        else:
            body["messages"] = list(prompt.content)
        body |= {"max_tokens": prompt.output_tokens, "temperature": prompt.temperature}
        if prompt.temperature > 0:
            body["seed"] = prompt.seed
        if prompt.ignore_eos:
            body |= {"ignore_eos": True, "min_tokens": prompt.output_tokens}
        body |= {"stream": True, "stream_options": {"include_usage": True}}
        return self._connection.encode("POST", _PATHS[prompt.chat], body)

    def ask(self, prompt: Prompt) -> Answer:
        """Asks once and waits for the whole answer; see ``GenerationSystem``."""
        connection = self._connection
        found = read_answer(connection.exchange(self.encode(prompt), connection.timeout_s), ())
        if found.error:
            raise AgentError(f"{connection.name}: {found.error}")
        return found

    def target(self, prompts: Sequence[Prompt], *, timeout_s: float, text: bool) -> OpenAITarget:
        """Returns a target whose query n asks prompt n modulo their number; see ``GenerationSystem``."""
        requests = list(map(self.encode, prompts))
        address = self._connection.address
        path = address.path + _PATHS[prompts[0].chat]
        call = http_client_call("POST", path, address.agent.host, address.agent.port)
        return OpenAITarget(
            self.description, self._connection, requests, call, timeout_s + _GRACE_S, text=text
        )

    def close(self) -> None:
        """Closes the connections; calling it again does nothing."""
        self._connection.close()


class OpenAITarget(CallTarget):
    """A server under load, whose answers are streams; satisfies ``evaluators.load.streams.StreamTarget``.

    The pieces of an answer are stamped as they arrive, and read after the run.

    Args:
        description: The model.
        connection: The connections to the server, which the target does not close.
        requests: The encoded requests, in turn.
        call: The span of a call.
        timeout_s: How long an answer may take.
        text: Whether answers keep their text.
    """

    def __init__(
        self,
        description: SystemDescription,
        connection: _Connection,
        requests: Sequence[bytes],
        call: SpanKind,
        timeout_s: float,
        *,
        text: bool,
    ) -> None:
        self._connection, self._requests = connection, requests
        self._call, self._timeout_s, self._text = call, timeout_s, text
        self._calls: dict[int, HttpCall | Answer] = {}
        self._kept_bytes = 0
        self._of: CallFlight | None = None
        super().__init__(description, max(map(len, requests)), connection.hold, self._reply_of)

    @property
    def call(self) -> SpanKind:
        """The span of a query's call."""
        return self._call

    def send(self, query: int, run: CallFlight) -> None:
        """Sends a query; see ``CallTarget``. The first one of a run drops the answers of the run before."""
        if run is not self._of:
            self._of, self._calls, self._kept_bytes = run, {}, 0
        run.send(query, self._requests[query % len(self._requests)], partial(self._begin, query))

    def _begin(self, query: int, request: bytes) -> grpc.Future[bytes]:
        flights = self._connection.flights
        if flights is None:
            raise SessionError(f"the connection to {self._connection.name} is closed; open another")
        request = with_headers(request, self.traced_metadata(query))
        call = self._calls[query] = flights.begin(request, self._timeout_s, stamped=True)
        call.add_done_callback(partial(self._bound_memory, query))
        return cast("grpc.Future[bytes]", call)

    def _bound_memory(self, query: int, call: Any) -> None:
        """Reads an answer on arrival if those that wait to be read take too much memory."""
        self._kept_bytes += call.incoming.arrived
        if self._kept_bytes > _MOST_KEPT_BYTES:
            self._calls[query] = self._answer_of(call)

    def _reply_of(self, call: grpc.Future[bytes]) -> bytes:
        try:
            return successful(call.result())
        except grpc.RpcError as error:
            raise AgentError(self._connection.explained(error)) from error

    def answered(self, reply: bytes) -> Outcome:
        """Reads a reply; see ``CallTarget``. A whole stream without an error is right as it stands."""
        if reply.rstrip().endswith(DONE) and b'"error"' not in reply:  # within a text, quotes are escaped
            return Outcome(1)
        error = read_answer(reply, ()).error
        return Outcome(0, error) if error else Outcome(1)

    def answers(self, count: int) -> Sequence[Answer]:
        """Returns the answers to the first ``count`` queries of the last run; see ``StreamTarget``."""
        found = []
        for query in range(count):
            call = self._calls.get(query, Answer())
            found.append(call if isinstance(call, Answer) else self._answer_of(call))
        return found

    def _answer_of(self, call: HttpCall) -> Answer:
        content = call.incoming.content
        found = read_answer(content, call.arrivals or (), text=self._text)
        try:
            if content:
                successful(content)
            if call.done() and not call.cancelled():
                call.result()
        except grpc.RpcError as error:
            found.error = self._connection.explained(error)
        return found
