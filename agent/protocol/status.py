"""The outcome of calls: the gRPC and HTTP status sent to the client for each error of the program.

The status message is the error's single line, and trailing metadata contain the name of its class, so that
the remote client raises the same class again. HTTP statuses are the same as in KServe and Triton; the body of
an unsuccessful response is ``{"error": "…"}`` with the message. This module also defines the metadata keys of
calls, which clients and agents share.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass

import grpc

from inferometer.manifests import errors
from inferometer.manifests.errors import ConfigurationError

AUTHORIZATION_KEY = "authorization"
"""The secret that a client sends with every call; see ``bearer``."""
LEVEL_KEY = "inferometer-trace-level"
"""The trace level, sent by a client that receives the spans itself."""
LAYERS_KEY = "inferometer-trace-layers"
"""The value ``0`` means that the client wants no spans of layers, as in a warm-up."""
RETRY_KEY = "grpc-retry-pushback-ms"
"""The gRPC trailing metadata that asks for no retry for the given number of milliseconds."""


def bearer(secret: str) -> str:
    """Returns the value that a client with the ``secret`` sends under ``AUTHORIZATION_KEY``.

    Raises ConfigurationError if the secret cannot be sent.
    """
    if not (secret and secret.isascii() and secret.isprintable()):
        raise ConfigurationError("the secret is empty, or has characters other than printable ASCII ones")
    return f"Bearer {secret}"


ERROR_CLASS_KEY = "inferometer-error"
"""The trailing metadata with the name of the error's class."""

_Code = grpc.StatusCode
_STATUSES: dict[type[errors.InferometerError], tuple[grpc.StatusCode, int]] = {
    errors.InferometerError: (_Code.INTERNAL, 500),
    errors.ManifestError: (_Code.FAILED_PRECONDITION, 500),
    errors.NotFoundError: (_Code.NOT_FOUND, 404),
    errors.UnknownModelError: (_Code.NOT_FOUND, 404),
    errors.UnknownFrameworkError: (_Code.NOT_FOUND, 404),
    errors.UnknownEvaluationError: (_Code.NOT_FOUND, 404),
    errors.UnknownDatasetError: (_Code.NOT_FOUND, 404),
    errors.FrameworkUnavailableError: (_Code.FAILED_PRECONDITION, 400),
    errors.ConfigurationError: (_Code.INVALID_ARGUMENT, 400),
    errors.ArtifactError: (_Code.FAILED_PRECONDITION, 400),
    errors.ArtifactUnavailableError: (_Code.FAILED_PRECONDITION, 400),
    errors.DeviceError: (_Code.FAILED_PRECONDITION, 400),
    errors.DeviceLostError: (_Code.UNAVAILABLE, 503),
    errors.DatasetError: (_Code.FAILED_PRECONDITION, 400),
    errors.InputError: (_Code.INVALID_ARGUMENT, 400),
    errors.RegionExistsError: (_Code.ALREADY_EXISTS, 400),
    errors.PredictionError: (_Code.INTERNAL, 500),
    errors.OutOfMemoryError: (_Code.RESOURCE_EXHAUSTED, 503),
    errors.InstanceLostError: (_Code.UNAVAILABLE, 503),
    errors.TrainingError: (_Code.INTERNAL, 500),
    errors.RankLostError: (_Code.INTERNAL, 500),
    errors.HungError: (_Code.UNAVAILABLE, 503),
    errors.StoreError: (_Code.UNAVAILABLE, 503),
    errors.OutputError: (_Code.FAILED_PRECONDITION, 500),
    errors.AgentError: (_Code.UNAVAILABLE, 503),
    errors.SessionError: (_Code.NOT_FOUND, 404),
    errors.SessionLimitError: (_Code.RESOURCE_EXHAUSTED, 503),
    errors.QueueFullError: (_Code.RESOURCE_EXHAUSTED, 503),
    errors.RateLimitError: (_Code.RESOURCE_EXHAUSTED, 429),
    errors.MemoryLimitError: (_Code.RESOURCE_EXHAUSTED, 503),
    errors.DeadlineError: (_Code.DEADLINE_EXCEEDED, 504),
    errors.RequestCancelledError: (_Code.CANCELLED, 499),
    errors.EvaluationFailed: (_Code.ABORTED, 500),
    errors.EvaluationInterrupted: (_Code.CANCELLED, 499),
}
STATUS_CODES = {kind: code for kind, (code, _) in _STATUSES.items()}
"""The gRPC status of each class; a class not listed here has the status of its nearest ancestor."""
HTTP_STATUSES = {kind: status for kind, (_, status) in _STATUSES.items()}
"""The HTTP status of each class; a class not listed here has the status of its nearest ancestor."""
CLASSES = {kind.__name__: kind for kind in _STATUSES}
"""The classes by the names under which they are transmitted."""
_CODES = {
    400: _Code.INVALID_ARGUMENT,
    401: _Code.UNAUTHENTICATED,
    403: _Code.PERMISSION_DENIED,
    404: _Code.NOT_FOUND,
    405: _Code.UNIMPLEMENTED,
    408: _Code.DEADLINE_EXCEEDED,
    409: _Code.ALREADY_EXISTS,
    413: _Code.INVALID_ARGUMENT,
    415: _Code.INVALID_ARGUMENT,
    422: _Code.INVALID_ARGUMENT,
    429: _Code.RESOURCE_EXHAUSTED,
    499: _Code.CANCELLED,
    500: _Code.INTERNAL,
    501: _Code.UNIMPLEMENTED,
    502: _Code.UNAVAILABLE,
    503: _Code.UNAVAILABLE,
    504: _Code.DEADLINE_EXCEEDED,
}

# A status travels in HTTP headers, whose size is limited to 8 KiB by default.
_MAX_MESSAGE_CHARACTERS = 1500
_log = logging.getLogger(__name__)


class NotOfferedError(Exception):
    """This agent does not implement a method of the protocol."""


def status_code(error: BaseException) -> grpc.StatusCode:
    """Returns the gRPC status for an error; CANCELLED if it is not an ``Exception``."""
    if isinstance(error, NotOfferedError):
        return _Code.UNIMPLEMENTED
    unknown = _Code.INTERNAL if isinstance(error, Exception) else _Code.CANCELLED
    return next((STATUS_CODES[kind] for kind in type(error).__mro__ if kind in STATUS_CODES), unknown)


def code_of(http_status: int, error_class: str = "") -> grpc.StatusCode:
    """Returns the gRPC status for an HTTP error response: that of its error class, if it names one."""
    if error_class in CLASSES:
        return STATUS_CODES[CLASSES[error_class]]
    return _CODES.get(http_status, _Code.INTERNAL if http_status >= 500 else _Code.UNKNOWN)


def class_name(error: errors.InferometerError) -> str:
    """Returns the name of the error's class, or of its nearest ancestor in ``manifests.errors``."""
    return next(kind.__name__ for kind in type(error).__mro__ if kind in STATUS_CODES)


def one_line(text: object) -> str:
    """Returns a text as a single line that fits into a status."""
    return errors.one_line(str(text), _MAX_MESSAGE_CHARACTERS)


@dataclass(frozen=True, slots=True)
class Status:
    """The outcome of a call; ``error_class`` is None for an error that is not one of the program's own."""

    code: grpc.StatusCode
    message: str
    error_class: str | None = None


def status_of(error: Exception, method: str) -> Status:
    """Returns the status for an error; see ``described``."""
    named = class_name(error) if isinstance(error, errors.InferometerError) else None
    return Status(status_code(error), described(error, method), named)


def described(error: Exception, method: str) -> str:
    """Returns an error's message for the client, logging faults of the program; call it in the handler."""
    if isinstance(error, errors.InferometerError | NotOfferedError):
        return one_line(error)
    _log.exception("%s failed: %s", method, type(error).__name__)
    return f"{method} failed in the agent ({type(error).__name__}); the agent's log says more"


NOT_ADMITTED = 401
"""The status of a request without the correct secret."""


class HttpRequestError(errors.InputError):
    """A request is rejected with an HTTP-only ``status`` such as 413; the response has the ``headers``."""

    def __init__(self, status: int, message: str, headers: tuple[tuple[str, str], ...] = ()) -> None:
        super().__init__(message)
        self.status = status
        self.headers = headers


def http_status(error: Exception) -> int:
    """Returns the HTTP status for an error."""
    if isinstance(error, HttpRequestError):
        return error.status
    if isinstance(error, NotOfferedError):
        return 501
    return next((HTTP_STATUSES[kind] for kind in type(error).__mro__ if kind in HTTP_STATUSES), 500)
