"""A server of OpenAI's protocol: its models, a request that waits, and a load target whose answers stream."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import CancelledError
from dataclasses import replace
from functools import partial
from typing import Any, cast

import grpc

from inferometer.agent.hardware.environment import Device, DeviceKind, unknown_environment
from inferometer.agent.inference.stages import SystemDescription
from inferometer.agent.tracing.recorder import (
    AttributeValue,
    SpanKind,
    SpanRole,
    TraceLevel,
    http_client_call,
)
from inferometer.client.remote.address import OpenAIAddress
from inferometer.client.remote.call_target import MAX_KEPT_BYTES, CallFlight, CallTarget, Outcome
from inferometer.client.remote.connection import CONNECT_TIMEOUT_S, Hints, RemoteOptions, explain, with_tls
from inferometer.client.remote.openai.events import DONE, read_answer
from inferometer.client.remote.rest.connection import encode_request, fixed_headers, successful, with_headers
from inferometer.client.remote.rest.sockets import Endpoint, Exchanges, HttpCall
from inferometer.evaluators.load.streams import UNKNOWN, Answer, Prompt
from inferometer.manifests.errors import AgentError, InputError, UnknownModelError, suggestion
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
    system = OpenAISystem(OpenAIAddress.parse(address), remote)
    try:
        system.choose(model, say)
    except BaseException:
        system.close()
        raise
    return system


class OpenAISystem:
    """A server of OpenAI's protocol and one of its models; see ``evaluators.load.streams.GenerationSystem``.

    Connections are kept for requests that wait, and for those under load. Thread-safe.
    """

    def __init__(self, address: OpenAIAddress, remote: RemoteOptions) -> None:
        agent = with_tls(address.agent, remote.tls)
        self.address = replace(address, agent=agent)
        self.name = f"server {address.server}"
        self._timeout_s, self._key = remote.call_timeout_s, remote.secret
        self._fixed = fixed_headers(agent, remote.secret, "openai+https")
        self.exchanges = Exchanges(Endpoint(agent, remote.tls), self.name)
        self.model, self.owner = "", ""

    def choose(self, model: str | None, say: Callable[[str], None]) -> None:
        """Chooses the model; see ``open_openai``."""
        content = self._exchange(self._encode("GET", "/v1/models"), CONNECT_TIMEOUT_S)
        try:
            listed = json.loads(content.partition(b"\r\n\r\n")[2])["data"]
            owners = {str(each["id"]): str(each.get("owned_by") or "") for each in listed}
        except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
            text = "does not speak OpenAI's protocol: /v1/models has no list of models"
            raise AgentError(f"{self.name}: {text}") from error
        if model is None:
            if len(owners) != 1:
                has = f"has {len(owners)} models ({', '.join(owners) or 'none'})"
                raise UnknownModelError(f"{self.name}: {has}; name one with --model_name")
            [model] = owners
            say(f"model {model}, the only one of {self.address}")
        elif owners and model not in owners:
            raise UnknownModelError(f'{self.name}: has no model "{model}"; {suggestion(model, list(owners))}')
        self.model, self.owner = model, owners.get(model, "")

    def _encode(self, verb: str, path: str, body: Mapping[str, Any] | None = None) -> bytes:
        content = b"" if body is None else json.dumps(body).encode()
        more = "content-type: application/json\r\n" if content else ""
        return encode_request(verb, self.address.path + path, self._fixed, content, more=more)

    def _exchange(self, request: bytes, timeout_s: float | None) -> bytes:
        """Returns a successful response; raises AgentError for any other, and if there is none.

        A request that the server says is wrong, such as a prompt that is too long, is an InputError.
        """
        try:
            return successful(self.exchanges.exchange(request, timeout_s))
        except grpc.RpcError as error:
            is_wrong = error.code() is grpc.StatusCode.INVALID_ARGUMENT
            raise (InputError if is_wrong else AgentError)(f"{self.name}: {self.explained(error)}") from error

    def explained(self, error: grpc.RpcError) -> str:
        """Returns what a failure means, in one line."""
        code, details = error.code(), error.details() or ""
        if getattr(error, "http_status", None) == _FORBIDDEN:
            code = grpc.StatusCode.UNAUTHENTICATED
        return self.shown(explain(code, details, self.address.agent, _HINTS))

    def shown(self, said: str) -> str:
        """Returns what the server said without its key, which some servers repeat."""
        return said.replace(self._key, "…") if self._key else said

    @property
    def description(self) -> SystemDescription:
        """The model and what is known of its system."""
        manifest = ModelManifest.model_validate(
            {
                "name": self.model,
                "framework": {"name": self.owner or "server without a name"},
                "inputs": [{"type": "tensor", "parameters": {"dimensions": [-1], "element_type": "int64"}}],
                "output": {"type": "generation"},
                "model": {"architecture": self.model},
            }
        )
        return SystemDescription(
            manifest=manifest,
            checksums={},
            framework_version="",
            device=Device(DeviceKind.REMOTE),
            threads=None,
            preprocess_threads=0,
            overlap=False,
            environment=unknown_environment({}, {}),
            agent=str(self.address),
            precision=None,
        )

    def encode(self, prompt: Prompt) -> bytes:
        """Returns the request for the answer to a prompt, as a stream."""
        content, name = prompt.content, "messages" if prompt.chat else "prompt"
        if prompt.chat:
            content = [{"role": "user", "content": content}] if isinstance(content, str) else list(content)
        body: dict[str, Any] = {"model": self.model, name: content}
        body |= {"max_tokens": prompt.output_tokens, "temperature": prompt.temperature}
        if prompt.temperature > 0:
            body["seed"] = prompt.seed
        if prompt.ignore_eos:
            body |= {"ignore_eos": True, "min_tokens": prompt.output_tokens}
        body |= {"stream": True, "stream_options": {"include_usage": True}}
        return self._encode("POST", _PATHS[prompt.chat], body)

    def ask(self, prompt: Prompt) -> Answer:
        """Asks once and waits for the whole answer; see ``GenerationSystem``."""
        found = read_answer(self._exchange(self.encode(prompt), self._timeout_s), ())
        if found.error:
            raise AgentError(f"{self.name}: {self.shown(found.error)}")
        return found

    def log_probabilities(self, prompt: Prompt, more: str = "") -> Sequence[float]:
        """Returns those of each token but the first, which few servers tell; see ``GenerationSystem``."""
        if prompt.chat:
            raise AgentError(f"{self.name}: needs --endpoint=completions to tell the likelihood of choices")
        body = {"model": self.model, "prompt": f"{prompt.content}{more}", "max_tokens": 1, "temperature": 0}
        request = self._encode("POST", _PATHS[False], body | {"echo": True, "logprobs": 1})
        content = self._exchange(request, self._timeout_s).partition(b"\r\n\r\n")[2]
        try:
            found = json.loads(content)
            told, count = found["choices"][0]["logprobs"]["token_logprobs"], found["usage"]["prompt_tokens"]
            return [float(told[n]) for n in range(1, count)]  # the last one is of what it generated
        except (ValueError, TypeError, LookupError, RecursionError) as error:
            text = "does not tell the log-probabilities of a prompt (echo and logprobs of /v1/completions)"
            raise AgentError(f"{self.name}: {text}") from error

    def target(self, prompts: Sequence[Prompt], *, timeout_s: float, text: bool) -> OpenAITarget:
        """Returns a target whose query n asks prompt n modulo their number; see ``GenerationSystem``."""
        return OpenAITarget(self, prompts, timeout_s + _GRACE_S, text=text)

    def close(self) -> None:
        """Closes the connections; calling it again does nothing."""
        self.exchanges.close()


class OpenAITarget(CallTarget):
    """A server under load, whose answers are streams; satisfies ``evaluators.load.streams.StreamTarget``.

    The pieces of an answer are stamped as they arrive, and read after the run.

    Args:
        system: The server, which the target does not close.
        prompts: What the queries ask, in turn.
        timeout_s: How long an answer may take.
        text: Whether answers keep their text.
    """

    first = 0

    def __init__(
        self, system: OpenAISystem, prompts: Sequence[Prompt], timeout_s: float, *, text: bool
    ) -> None:
        self._system, self._prompts, self._requests = system, prompts, list(map(system.encode, prompts))
        self._timeout_s, self._text = timeout_s, text
        self._calls: dict[int, HttpCall | Answer] = {}
        self._own: dict[int, Prompt] = {}
        self._kept_bytes = 0
        self._of: CallFlight | None = None
        super().__init__(
            system.description, max(map(len, self._requests)), system.exchanges.hold, self._reply_of
        )

    def call_of(self, query: int) -> SpanKind:
        """Returns the span of a query's call, with OpenTelemetry's names for generative AI."""
        prompt = self._own.get(query) or self._prompts[(self.first + query) % len(self._prompts)]
        answer = self.answer(query)
        model, at = self._system.model, self._system.address.agent
        attributes: dict[str, AttributeValue | None] = {
            "gen_ai.operation.name": prompt.operation,
            "gen_ai.provider.name": "openai",
            "gen_ai.request.model": model,
            "gen_ai.request.max_tokens": prompt.output_tokens,
            "gen_ai.request.temperature": prompt.temperature,
            "gen_ai.request.seed": prompt.seed if prompt.temperature > 0 else None,
            "gen_ai.response.id": answer.id or None,
            "gen_ai.response.model": answer.model or None,
            "gen_ai.response.finish_reasons": (answer.finish,) if answer.finish else None,
            "gen_ai.usage.input_tokens": None if answer.input_tokens == UNKNOWN else answer.input_tokens,
            "gen_ai.usage.output_tokens": None if answer.output_tokens == UNKNOWN else answer.output_tokens,
            **dict(http_client_call("POST", _PATHS[prompt.chat], at.host, at.port).attributes),
        }
        kind = SpanKind.of(f"{prompt.operation} {model}", TraceLevel.APPLICATION_TRACE, **attributes)
        return replace(kind, role=SpanRole.CLIENT)

    def send(self, query: int, run: CallFlight) -> None:
        """Sends a query; see ``CallTarget``. The first one of a run drops the answers of the run before."""
        if run is not self._of:
            self._of, self._calls, self._kept_bytes = run, {}, 0
        own, place = self._own.get(query), (self.first + query) % len(self._requests)
        request = self._requests[place] if own is None else self._system.encode(own)
        run.send(query, with_headers(request, self.traced_metadata(query)), partial(self._begin, query))

    def submit(self, query: int, own: Prompt | None = None) -> None:
        """Sends a query; see ``CallTarget`` and ``StreamTarget``."""
        self._own.pop(query, None)
        if own is not None:
            self._own[query] = own
        super().submit(query)

    def _begin(self, query: int, request: bytes) -> grpc.Future[bytes]:
        call = self._calls[query] = self._system.exchanges.begin(request, self._timeout_s, stamped=True)
        call.add_done_callback(partial(self._bound_memory, query))
        return cast("grpc.Future[bytes]", call)

    def _bound_memory(self, query: int, call: Any) -> None:
        """Reads an answer on arrival if those that wait to be read take too much memory."""
        self._kept_bytes += call.incoming.arrived
        if self._kept_bytes > MAX_KEPT_BYTES:
            self._calls[query] = self._answer_of(call)

    def _reply_of(self, call: grpc.Future[bytes]) -> bytes:
        try:
            return successful(call.result())
        except grpc.RpcError as error:
            raise AgentError(self._system.explained(error)) from error
        except CancelledError as error:
            raise AgentError("the call was cancelled") from error

    def answered(self, reply: bytes) -> Outcome:
        """Reads a reply; see ``CallTarget``. A whole stream without an error is right as it stands."""
        if reply.rstrip().endswith(DONE) and b'"error"' not in reply:  # within a text, quotes are escaped
            return Outcome(1)
        error = self._system.shown(read_answer(reply, ()).error)
        return Outcome(0, error) if error else Outcome(1)

    def answer(self, query: int) -> Answer:
        """Returns the answer to a query of the last run, which is read once; see ``StreamTarget``."""
        call = self._calls.get(query)
        if call is None or isinstance(call, Answer):
            return call or Answer()
        answer = self._calls[query] = self._answer_of(call)
        return answer

    def _answer_of(self, call: HttpCall) -> Answer:
        content = call.incoming.content
        found = read_answer(content, call.arrivals or (), text=self._text)
        found.error = self._system.shown(found.error)
        if call.cancelled():
            found.error = ""  # the run has ended before the answer
            return found
        try:
            if content:
                successful(content)
            if call.done():
                call.result()
        except grpc.RpcError as error:
            found.error = self._system.explained(error)
        return found
