"""The gRPC status of each error of the program, and its transport to the client.

The status carries the error's one line as its message, and the name of its class as trailing metadata, so
that the remote client raises the same class again.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass

import grpc

from inferometer.manifests import errors

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
