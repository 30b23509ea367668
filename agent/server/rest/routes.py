"""The routes of the protocol: their service methods, messages, and description."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any
from urllib.parse import unquote

from inferometer.agent import __version__
from inferometer.agent.open_inference.http_codec import (
    HEADER_LENGTH,
    InferRequest,
    Reply,
    Signatures,
    flag_of,
    infer_reply,
    is_whole,
    json_of,
    json_reply,
    object_of,
    read_infer_request,
    read_object,
    read_raw_request,
)
from inferometer.agent.protocol.status import HttpRequestError
from inferometer.manifests.errors import InputError, one_line
from inferometer.protos.inference.v2 import grpc_service_pb2 as pb

_MODEL = "/v2/models/{model}"
_REPOSITORY = "/v2/repository"
_STORED = f"{_REPOSITORY}/models/{{model}}"
_SYSTEM_MEMORY, _CUDA_MEMORY = "/v2/systemsharedmemory", "/v2/cudasharedmemory"
_REGION = "/region/{region}"
_NAME = re.compile(r"\{(\w+)\}")
INFER = "ModelInfer"
"""The method whose requests may have binary tensors after the JSON."""
OPEN_API = "OpenApi"
"""The handler that returns the description of these routes."""


@dataclass(frozen=True, slots=True)
class Received:
    """A request: the names in its path, its body, and the number of JSON bytes in the body.

    ``signature`` returns the inputs of a model by its name and version.
    """

    names: Mapping[str, str]
    body: memoryview
    head_bytes: int
    signature: Signatures

    def name(self, key: str) -> str:
        """Returns the name of a model, a version or a repository in the path; empty if there is none."""
        return self.names.get(key) or ""


@dataclass(frozen=True, slots=True)
class Route:
    """A verb and a path, with names in braces, that map to a method of the service.

    ``read`` builds the method's request. ``write`` builds the HTTP response, a ``Reply`` or a stream, from
    the method's response and request. Routes that are ``is_open`` require no secret and do not count against
    limits, like gRPC's health service.
    """

    verb: str
    path: str
    method: str
    read: Callable[[Received], Any]
    write: Callable[[Any, Any], Any]
    is_open: bool = False

    @property
    def title(self) -> str:
        """The route's name in metrics and logs."""
        return f"{self.verb} {self.path}"


def head_length(headers: Mapping[str, str]) -> int | None:
    """Returns the number of JSON bytes in a body; None if all are JSON.

    Raises HttpRequestError if the header that should give it is not a number.
    """
    given = headers.get(HEADER_LENGTH)
    if given is None:
        return None
    if not re.fullmatch(r"\d{1,18}", given, re.ASCII):
        raise HttpRequestError(400, f"header {HEADER_LENGTH} is {one_line(given, 40)}, not a number of bytes")
    return int(given)


def _read_infer(received: Received) -> InferRequest:
    model, version, body = received.name("model"), received.name("version"), received.body
    head_bytes = received.head_bytes
    if head_bytes > len(body):
        raise InputError(f"header {HEADER_LENGTH} says {head_bytes} bytes, but the body has {len(body)}")
    if head_bytes == 0 and len(body):
        return read_raw_request(model, version, body, received.signature(model, version))
    return read_infer_request(model, version, body, head_bytes)


def _from_path(kind: Callable[..., Any], **fields: str) -> Callable[[Received], Any]:
    """Returns a reader of requests without a body; ``fields`` get the values of names in the path."""
    return lambda received: kind(**{field: received.name(key) for field, key in fields.items()})


def _read_index(received: Received) -> pb.RepositoryIndexRequest:
    given = read_object(received.body) if received.body else {}
    ready = flag_of(given, "ready", "the request", default=False)
    return pb.RepositoryIndexRequest(repository_name=received.name("repository"), ready=ready)


def _changing(kind: Callable[..., Any]) -> Callable[[Received], Any]:
    """Reads a request that loads or unloads a model, with parameters in its body."""
    read_names = _from_path(kind, repository_name="repository", model_name="model")

    def read(received: Received) -> Any:
        message = read_names(received)
        given = read_object(received.body) if received.body else {}
        for key, value in object_of(given, "parameters", "the request").items():
            try:
                parameter = message.parameters[key]
                if isinstance(value, bool):
                    parameter.bool_param = value
                elif isinstance(value, int):
                    parameter.int64_param = value
                else:
                    parameter.string_param = value
            except (TypeError, ValueError) as error:
                what = f"parameter {one_line(key, 80)}"
                raise InputError(f"{what} is not a string, boolean or integer") from error
        return message

    return read


def _read_region(received: Received) -> pb.SystemSharedMemoryRegisterRequest:
    given = read_object(received.body)
    key, numbers = given.get("key"), (given.get("offset", 0), given.get("byte_size", -1))
    if not isinstance(key, str):
        raise InputError("the request: key is not a string that names the segment")
    if not all(is_whole(number) for number in numbers):
        raise InputError("the request: offset and byte_size must be whole numbers of bytes, from 0 on")
    try:
        return pb.SystemSharedMemoryRegisterRequest(
            name=received.name("region"), key=key, offset=numbers[0], byte_size=numbers[1]
        )
    except UnicodeEncodeError as error:
        raise InputError("the request has a string that is not Unicode") from error


def _regions(message: Any, _: object) -> Reply:
    return json_reply([json_of(region) for region in message.regions.values()])


def _named(kind: Callable[..., Any]) -> Callable[[Received], Any]:
    return _from_path(kind, name="model", version="version")


def _config(message: pb.ModelConfigResponse, _: object) -> Reply:
    return json_reply(json_of(message.config))


def _index(message: pb.RepositoryIndexResponse, _: object) -> Reply:
    return json_reply([json_of(model) for model in message.models])


def _said(field: str) -> Callable[[Any, Any], Reply]:
    """Returns a writer of empty responses: status 200 if the field is true, else 400, as in Triton."""
    return lambda message, _: Reply(status=200 if getattr(message, field) else 400)


def _read_json(received: Received) -> dict[str, Any]:
    return read_object(received.body)


def _read_generate(received: Received) -> dict[str, Any]:
    """Reads a request of the generate extension, whose parameters may also be in it itself."""
    given = read_object(received.body)
    named = {"model": received.name("model"), "version": received.name("version")}
    return {**object_of(given, "parameters", "the request"), **given, **named}


def _json_or_stream(answer: Any, _: object) -> Any:
    return json_reply(answer) if isinstance(answer, dict) else answer


def _nothing(_: object, __: object) -> Reply:
    return Reply()


def _written(message: Any, _: object) -> Reply:
    return json_reply(json_of(message))


def _open(path: str, field: str, method: str, kind: Callable[..., Any]) -> Route:
    return Route("GET", path, method, _from_path(kind), _said(field), is_open=True)


def _shared_memory(
    root: str, name: str, register: Callable[[Received], Any], *kinds: Callable[..., Any]
) -> tuple[Route, ...]:
    """Returns the routes of one kind of shared memory; ``kinds`` are the requests for status and release."""
    status, unregister = (_from_path(kind, name="region") for kind in kinds)
    return (
        Route("GET", f"{root}/status", f"{name}Status", status, _regions),
        Route("POST", f"{root}{_REGION}/register", f"{name}Register", register, _nothing),
        Route("POST", f"{root}/unregister", f"{name}Unregister", unregister, _nothing),
    )


ROUTES: Sequence[Route] = (
    Route("POST", f"{_MODEL}/infer", INFER, _read_infer, infer_reply),
    _open("/v2/health/live", "live", "ServerLive", pb.ServerLiveRequest),
    _open("/v2/health/ready", "ready", "ServerReady", pb.ServerReadyRequest),
    Route("GET", "/v2", "ServerMetadata", _from_path(pb.ServerMetadataRequest), _written),
    Route("GET", "/v2/openapi.json", OPEN_API, lambda _: None, lambda found, _: json_reply(found)),
    Route("GET", "/v2/models/stats", "ModelStatistics", _from_path(pb.ModelStatisticsRequest), _written),
    Route("GET", f"{_MODEL}/stats", "ModelStatistics", _named(pb.ModelStatisticsRequest), _written),
    Route("GET", f"{_MODEL}/ready", "ModelReady", _named(pb.ModelReadyRequest), _said("ready")),
    Route("GET", f"{_MODEL}/config", "ModelConfig", _named(pb.ModelConfigRequest), _config),
    Route("GET", _MODEL, "ModelMetadata", _named(pb.ModelMetadataRequest), _written),
    Route("POST", f"{_REPOSITORY}/index", "RepositoryIndex", _read_index, _index),
    Route(
        "POST", f"{_STORED}/load", "RepositoryModelLoad", _changing(pb.RepositoryModelLoadRequest), _nothing
    ),
    Route(
        "POST",
        f"{_STORED}/unload",
        "RepositoryModelUnload",
        _changing(pb.RepositoryModelUnloadRequest),
        _nothing,
    ),
    *_shared_memory(
        _SYSTEM_MEMORY,
        "SystemSharedMemory",
        _read_region,
        pb.SystemSharedMemoryStatusRequest,
        pb.SystemSharedMemoryUnregisterRequest,
    ),
    *_shared_memory(
        _CUDA_MEMORY,
        "CudaSharedMemory",
        _from_path(pb.CudaSharedMemoryRegisterRequest, name="region"),
        pb.CudaSharedMemoryStatusRequest,
        pb.CudaSharedMemoryUnregisterRequest,
    ),
    Route("POST", f"{_MODEL}/generate", "Generate", _read_generate, _json_or_stream),
    Route("POST", f"{_MODEL}/generate_stream", "GenerateStream", _read_generate, _json_or_stream),
    Route("POST", "/v1/chat/completions", "ChatCompletions", _read_json, _json_or_stream),
    Route("POST", "/v1/completions", "Completions", _read_json, _json_or_stream),
    Route("GET", "/v1/models", "ListLanguageModels", lambda _: None, _json_or_stream),
)
"""All routes, the most frequently used one first."""


def _pattern(path: str) -> re.Pattern[str]:
    """Returns the regular expression for a path.

    A model may be followed by a version, and a repository by its name; for shared memory, the path may name a
    region, or else means all of them.
    """
    path = path.replace(_MODEL, f"{_MODEL}(?:/versions/{{version}})?")
    path = path.replace(f"{_REPOSITORY}/", f"{_REPOSITORY}(?:/{{repository}})?/")
    for memory in (_SYSTEM_MEMORY, _CUDA_MEMORY):
        for verb in ("status", "unregister"):
            path = path.replace(f"{memory}/{verb}", f"{memory}(?:{_REGION})?/{verb}")
    return re.compile(_NAME.sub(r"(?P<\1>[^/]+)", path))


_PATTERNS = tuple((_pattern(route.path), route) for route in ROUTES)


def find_route(verb: str, path: str) -> tuple[Route, Mapping[str, str]]:
    """Returns the route for a percent-encoded path, and the names in the path.

    Raises HttpRequestError with 404 if there is none, or with 405 if the path has only routes for other
    verbs.
    """
    allowed = []
    for pattern, route in _PATTERNS:
        found = pattern.fullmatch(path)
        if found is None:
            continue
        if route.verb != verb:
            allowed.append(route.verb)
            continue
        names = found.groupdict()
        if "%" in path:
            names = {key: unquote(value) for key, value in names.items() if value is not None}
        return route, names
    if allowed:
        verbs = ", ".join(allowed)
        raise HttpRequestError(405, f"{verb} is not for this path; allowed: {verbs}", (("allow", verbs),))
    raise HttpRequestError(
        404, f"the agent has no {one_line(path, 80)}; GET /v2/openapi.json lists its paths"
    )


_ERROR = {"application/json": {"schema": {"$ref": "#/components/schemas/Error"}}}
_FAILED = {"description": "It failed.", "content": _ERROR}


@cache
def described_routes() -> dict[str, Any]:
    """Returns the OpenAPI 3.1 description of the routes, for generators of clients and documentation.

    ``openapi.json`` describes what differs by route; this function adds path parameters and common errors.
    """
    found: dict[str, Any] = json.loads(Path(__file__).with_name("openapi.json").read_text(encoding="utf-8"))
    found["info"]["version"] = __version__
    paths, found["paths"] = found["paths"], {}
    for path, item in paths.items():
        for operation in item.values():
            responses = operation["responses"]
            operation["responses"] = {"200": responses.pop("200"), "default": _FAILED, **responses}
        found["paths"][path] = _with_names(path, item)
        if path.startswith(_MODEL):
            versioned = path.replace(_MODEL, f"{_MODEL}/versions/{{version}}")
            found["paths"][versioned] = _with_names(versioned, item)
    return found


def _with_names(path: str, item: dict[str, Any]) -> dict[str, Any]:
    names = [part[1:-1] for part in path.split("/") if part.startswith("{")]
    of_path = {"in": "path", "required": True, "schema": {"type": "string"}}
    parameters = [{"name": each, **of_path} for each in names]
    return {**item, "parameters": parameters} if names else item
