"""The routes of the protocol: the service method of each, and the conversion of its messages."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from urllib.parse import unquote

from inferometer.agent.open_inference.codec import TensorSignature
from inferometer.agent.open_inference.http_codec import (
    HEADER_LENGTH,
    InferRequest,
    Reply,
    infer_reply,
    is_whole,
    json_of,
    json_reply,
    read_infer_request,
    read_object,
    read_raw_request,
)
from inferometer.agent.protocol.status import HttpRequestError
from inferometer.manifests.errors import InputError, one_line
from inferometer.protos.inference.v2 import grpc_service_pb2 as pb

_MODEL = "/v2/models/{model}"
_REPOSITORY = "/v2/repository"
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
    signature: Callable[[str, str], Sequence[TensorSignature]]

    def name(self, key: str) -> str:
        """The name of a model, of a version or of a repository in the path; empty where there is none."""
        return self.names.get(key) or ""


@dataclass(frozen=True, slots=True)
class Route:
    """A verb and a path with names in braces, which map to a method of the service.

    ``read`` builds the method's request. ``write`` builds the HTTP response from the method's response and
    request. Routes with ``is_open`` require no secret and do not count against limits, as gRPC's health
    service.
    """

    verb: str
    path: str
    method: str
    read: Callable[[Received], Any]
    write: Callable[[Any, Any], Reply]
    is_open: bool = False

    @property
    def title(self) -> str:
        """The route's name in metrics and logs."""
        return f"{self.verb} {self.path}"


def head_length(headers: Mapping[str, str]) -> int | None:
    """Returns the number of JSON bytes in a body; None if all are JSON.

    Raises HttpRequestError if the header with that number is not a number.
    """
    given = headers.get(HEADER_LENGTH)
    if given is None:
        return None
    if not re.fullmatch(r"\d{1,18}", given, re.ASCII):
        raise HttpRequestError(400, f"header {HEADER_LENGTH} is {one_line(given, 40)}, no number of bytes")
    return int(given)


def _read_infer(received: Received) -> InferRequest:
    model, version, body = received.name("model"), received.name("version"), received.body
    head_bytes = received.head_bytes
    if head_bytes > len(body):
        raise InputError(f"header {HEADER_LENGTH} says {head_bytes} bytes, and the body has {len(body)}")
    if head_bytes == 0 and len(body):
        return read_raw_request(model, version, body, received.signature(model, version))
    return read_infer_request(model, version, body, head_bytes)


def _read_index(received: Received) -> pb.RepositoryIndexRequest:
    given = read_object(received.body) if received.body else {}
    ready = given.get("ready", False)
    if not isinstance(ready, bool):
        raise InputError("the request: ready is neither true nor false")
    return pb.RepositoryIndexRequest(repository_name=received.name("repository"), ready=ready)


def _read_load(received: Received) -> pb.RepositoryModelLoadRequest:
    message = pb.RepositoryModelLoadRequest(
        repository_name=received.name("repository"), model_name=received.name("model")
    )
    _fill(message.parameters, received.body)
    return message


def _read_unload(received: Received) -> pb.RepositoryModelUnloadRequest:
    message = pb.RepositoryModelUnloadRequest(
        repository_name=received.name("repository"), model_name=received.name("model")
    )
    _fill(message.parameters, received.body)
    return message


def _fill(parameters: Any, body: memoryview) -> None:
    given = (read_object(body) if body else {}).get("parameters", {})
    if not isinstance(given, dict):
        raise InputError("the request: parameters is no object")
    for key, value in given.items():
        try:
            if isinstance(value, bool):
                parameters[key].bool_param = value
            elif isinstance(value, int):
                parameters[key].int64_param = value
            else:
                parameters[key].string_param = value
        except (TypeError, ValueError) as error:
            raise InputError(f"parameter {one_line(key, 80)} is no text, boolean or whole number") from error


def _read_region(received: Received) -> pb.SystemSharedMemoryRegisterRequest:
    given = read_object(received.body)
    key, numbers = given.get("key"), (given.get("offset", 0), given.get("byte_size", -1))
    if not isinstance(key, str):
        raise InputError("the request: key is no text, which names the segment")
    if not all(is_whole(number) for number in numbers):
        raise InputError("the request: offset and byte_size are whole numbers of bytes, from 0 on")
    try:
        return pb.SystemSharedMemoryRegisterRequest(
            name=received.name("region"), key=key, offset=numbers[0], byte_size=numbers[1]
        )
    except UnicodeEncodeError as error:
        raise InputError("the request has a text that is no Unicode") from error


def _of_region(kind: Callable[..., Any]) -> Callable[[Received], Any]:
    """Reads a request for one or all regions of shared memory, which has no body."""
    return lambda received: kind(name=received.name("region"))


def _regions(message: Any, _: object) -> Reply:
    return json_reply([json_of(region) for region in message.regions.values()])


def _named(kind: Callable[..., Any]) -> Callable[[Received], Any]:
    """Reads a request for a model, which has no body."""
    return lambda received: kind(name=received.name("model"), version=received.name("version"))


def _said(field: str) -> Callable[[Any, Any], Reply]:
    """Returns a response with a status only: 200 if the field is true, else 400, as in Triton."""
    return lambda message, _: Reply(status=200 if getattr(message, field) else 400)


def _nothing(_: object, __: object) -> Reply:
    return Reply()


def _written(message: Any, _: object) -> Reply:
    return json_reply(json_of(message))


_HEALTH = (
    Route(
        "GET",
        "/v2/health/live",
        "ServerLive",
        lambda _: pb.ServerLiveRequest(),
        _said("live"),
        is_open=True,
    ),
    Route(
        "GET",
        "/v2/health/ready",
        "ServerReady",
        lambda _: pb.ServerReadyRequest(),
        _said("ready"),
        is_open=True,
    ),
)
_SHARED_MEMORY = (
    Route(
        "GET",
        f"{_SYSTEM_MEMORY}/status",
        "SystemSharedMemoryStatus",
        _of_region(pb.SystemSharedMemoryStatusRequest),
        _regions,
    ),
    Route(
        "POST",
        f"{_SYSTEM_MEMORY}{_REGION}/register",
        "SystemSharedMemoryRegister",
        _read_region,
        _nothing,
    ),
    Route(
        "POST",
        f"{_SYSTEM_MEMORY}/unregister",
        "SystemSharedMemoryUnregister",
        _of_region(pb.SystemSharedMemoryUnregisterRequest),
        _nothing,
    ),
    Route(
        "GET",
        f"{_CUDA_MEMORY}/status",
        "CudaSharedMemoryStatus",
        _of_region(pb.CudaSharedMemoryStatusRequest),
        _regions,
    ),
    Route(
        "POST",
        f"{_CUDA_MEMORY}{_REGION}/register",
        "CudaSharedMemoryRegister",
        _of_region(pb.CudaSharedMemoryRegisterRequest),
        _nothing,
    ),
    Route(
        "POST",
        f"{_CUDA_MEMORY}/unregister",
        "CudaSharedMemoryUnregister",
        _of_region(pb.CudaSharedMemoryUnregisterRequest),
        _nothing,
    ),
)
ROUTES: Sequence[Route] = (
    Route("POST", f"{_MODEL}/infer", INFER, _read_infer, infer_reply),
    *_HEALTH,
    Route("GET", "/v2", "ServerMetadata", lambda _: pb.ServerMetadataRequest(), _written),
    Route("GET", "/v2/openapi.json", OPEN_API, lambda _: None, lambda found, _: json_reply(found)),
    Route("GET", "/v2/models/stats", "ModelStatistics", lambda _: pb.ModelStatisticsRequest(), _written),
    Route("GET", f"{_MODEL}/stats", "ModelStatistics", _named(pb.ModelStatisticsRequest), _written),
    Route("GET", f"{_MODEL}/ready", "ModelReady", _named(pb.ModelReadyRequest), _said("ready")),
    Route(
        "GET",
        f"{_MODEL}/config",
        "ModelConfig",
        _named(pb.ModelConfigRequest),
        lambda message, _: json_reply(json_of(message.config)),
    ),
    Route("GET", _MODEL, "ModelMetadata", _named(pb.ModelMetadataRequest), _written),
    Route(
        "POST",
        f"{_REPOSITORY}/index",
        "RepositoryIndex",
        _read_index,
        lambda message, _: json_reply([json_of(model) for model in message.models]),
    ),
    Route(
        "POST",
        f"{_REPOSITORY}/models/{{model}}/load",
        "RepositoryModelLoad",
        _read_load,
        _nothing,
    ),
    Route(
        "POST",
        f"{_REPOSITORY}/models/{{model}}/unload",
        "RepositoryModelUnload",
        _read_unload,
        _nothing,
    ),
    *_SHARED_MEMORY,
)
"""Every route, the most frequent one first."""


def _pattern(path: str) -> re.Pattern[str]:
    """Returns the regular expression for a path.

    A model may be followed by a version, and a repository by its name; for shared memory, the path names one
    region or all.
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
