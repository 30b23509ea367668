"""How calls end: the gRPC and the HTTP status of each error of the program, which travels to the client.

The status carries the error's one line as its message, and the name of its class as trailing metadata, so
that the remote client raises the same class again. The HTTP statuses are those that KServe and Triton
give; the body of an unsuccessful response is ``{"error": "…"}``, with the message. The metadata keys of
calls, which clients and agents share, are here too.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass

import grpc

from inferometer.manifests import errors
from inferometer.manifests.errors import ConfigurationError

AUTHORIZATION_KEY = "authorization"
"""The secret that a client shows with every call; see ``bearer``."""
TRACEPARENT_KEY = "traceparent"
"""The W3C header; a call without it, or with one that is malformed or not sampled, is not traced."""
LEVEL_KEY = "inferometer-trace-level"
"""The trace level, from a client that takes the spans itself."""
LAYERS_KEY = "inferometer-trace-layers"
"""``0`` if the client wants no spans of layers, as in a warm-up."""


def bearer(secret: str) -> str:
    """Returns what a client with the ``secret`` sends under ``AUTHORIZATION_KEY``.

    Raises ConfigurationError if the secret cannot be sent.
    """
    if not (secret and secret.isascii() and secret.isprintable()):
        raise ConfigurationError("the secret is empty, or has characters other than printable ASCII ones")
    return f"Bearer {secret}"


ERROR_CLASS_KEY = "inferometer-error"
"""The trailing metadata that names the error's class."""

STATUS_CODES: dict[type[errors.InferometerError], grpc.StatusCode] = {
    errors.InferometerError: grpc.StatusCode.INTERNAL,
    errors.ManifestError: grpc.StatusCode.FAILED_PRECONDITION,
    errors.NotFoundError: grpc.StatusCode.NOT_FOUND,
    errors.UnknownModelError: grpc.StatusCode.NOT_FOUND,
    errors.UnknownFrameworkError: grpc.StatusCode.NOT_FOUND,
    errors.UnknownEvaluationError: grpc.StatusCode.NOT_FOUND,
    errors.UnknownDatasetError: grpc.StatusCode.NOT_FOUND,
    errors.FrameworkUnavailableError: grpc.StatusCode.FAILED_PRECONDITION,
    errors.ConfigurationError: grpc.StatusCode.INVALID_ARGUMENT,
    errors.ArtifactError: grpc.StatusCode.FAILED_PRECONDITION,
    errors.ArtifactUnavailableError: grpc.StatusCode.FAILED_PRECONDITION,
    errors.DeviceError: grpc.StatusCode.FAILED_PRECONDITION,
    errors.DeviceLostError: grpc.StatusCode.UNAVAILABLE,
    errors.DatasetError: grpc.StatusCode.FAILED_PRECONDITION,
    errors.InputError: grpc.StatusCode.INVALID_ARGUMENT,
    errors.RegionExistsError: grpc.StatusCode.ALREADY_EXISTS,
    errors.PredictionError: grpc.StatusCode.INTERNAL,
    errors.OutOfMemoryError: grpc.StatusCode.RESOURCE_EXHAUSTED,
    errors.TrainingError: grpc.StatusCode.INTERNAL,
    errors.RankLostError: grpc.StatusCode.INTERNAL,
    errors.HungError: grpc.StatusCode.UNAVAILABLE,
    errors.StoreError: grpc.StatusCode.UNAVAILABLE,
    errors.OutputError: grpc.StatusCode.FAILED_PRECONDITION,
    errors.AgentError: grpc.StatusCode.UNAVAILABLE,
    errors.SessionError: grpc.StatusCode.NOT_FOUND,
    errors.SessionLimitError: grpc.StatusCode.RESOURCE_EXHAUSTED,
    errors.QueueFullError: grpc.StatusCode.RESOURCE_EXHAUSTED,
    errors.RateLimitError: grpc.StatusCode.RESOURCE_EXHAUSTED,
    errors.MemoryLimitError: grpc.StatusCode.RESOURCE_EXHAUSTED,
    errors.DeadlineError: grpc.StatusCode.DEADLINE_EXCEEDED,
    errors.RequestCancelledError: grpc.StatusCode.CANCELLED,
    errors.EvaluationFailed: grpc.StatusCode.ABORTED,
    errors.EvaluationInterrupted: grpc.StatusCode.CANCELLED,
}
"""The status of each class; a class that is not here has that of its nearest ancestor."""

# A status travels in HTTP headers, whose size is limited to 8 KiB by default.
_MAX_MESSAGE_CHARACTERS = 1500
_log = logging.getLogger(__name__)


class NotOfferedError(Exception):
    """This agent does not have a method of the protocol."""


def status_code(error: errors.InferometerError) -> grpc.StatusCode:
    """Returns the status of an error."""
    return next(STATUS_CODES[kind] for kind in type(error).__mro__ if kind in STATUS_CODES)


def class_name(error: errors.InferometerError) -> str:
    """Returns the name of the error's class, or of its nearest ancestor in ``manifests.errors``."""
    return next(kind.__name__ for kind in type(error).__mro__ if kind in STATUS_CODES)


def one_line(text: object) -> str:
    """Returns a text as one line that fits into a status."""
    return errors.one_line(str(text), _MAX_MESSAGE_CHARACTERS)


@dataclass(frozen=True, slots=True)
class Status:
    """How a call ends; ``error_class`` is None for an error that is not of the program's tree."""

    code: grpc.StatusCode
    message: str
    error_class: str | None = None


def status_of(error: Exception, method: str) -> Status:
    """Returns the status that an error becomes; see ``described``."""
    message = described(error, method)
    if isinstance(error, errors.InferometerError):
        return Status(status_code(error), message, class_name(error))
    is_offered = not isinstance(error, NotOfferedError)
    return Status(grpc.StatusCode.INTERNAL if is_offered else grpc.StatusCode.UNIMPLEMENTED, message)


def described(error: Exception, method: str) -> str:
    """Returns an error's message for the client; logs a fault of the program, while it is handled."""
    if isinstance(error, errors.InferometerError | NotOfferedError):
        return one_line(error)
    _log.exception("%s failed: %s", method, type(error).__name__)
    return f"{method} failed in the agent ({type(error).__name__}); the agent's log says more"


HTTP_STATUSES: dict[type[errors.InferometerError], int] = {
    errors.InferometerError: 500,
    errors.ManifestError: 500,
    errors.NotFoundError: 404,
    errors.UnknownModelError: 404,
    errors.UnknownFrameworkError: 404,
    errors.UnknownEvaluationError: 404,
    errors.UnknownDatasetError: 404,
    errors.FrameworkUnavailableError: 400,
    errors.ConfigurationError: 400,
    errors.ArtifactError: 400,
    errors.ArtifactUnavailableError: 400,
    errors.DeviceError: 400,
    errors.DeviceLostError: 503,
    errors.DatasetError: 400,
    errors.InputError: 400,
    errors.RegionExistsError: 400,
    errors.PredictionError: 500,
    errors.OutOfMemoryError: 503,
    errors.TrainingError: 500,
    errors.RankLostError: 500,
    errors.HungError: 503,
    errors.StoreError: 503,
    errors.OutputError: 500,
    errors.AgentError: 503,
    errors.SessionError: 404,
    errors.SessionLimitError: 503,
    errors.QueueFullError: 503,
    errors.RateLimitError: 429,
    errors.MemoryLimitError: 503,
    errors.DeadlineError: 504,
    errors.RequestCancelledError: 499,
    errors.EvaluationFailed: 500,
    errors.EvaluationInterrupted: 499,
}
"""The status of each error class; other classes have that of their nearest ancestor."""
NOT_ADMITTED = 401
"""The status of a request without the correct secret."""


class HttpRequestError(errors.InputError):
    """A request that HTTP has a ``status`` of its own for, such as 413; ``headers`` go with the response."""

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
