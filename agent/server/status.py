"""Which gRPC status each error of the program becomes, and how an error travels.

The status carries the error's one line as its message, and the name of its class as trailing metadata, so
that the remote client raises the same class again.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import grpc

from manifests import errors

ERROR_CLASS_KEY = "inferscope-error"
"""The trailing metadata that names the error's class."""

STATUS_CODES: dict[type[errors.InferscopeError], grpc.StatusCode] = {
    errors.InferscopeError: grpc.StatusCode.INTERNAL,
    errors.ManifestError: grpc.StatusCode.FAILED_PRECONDITION,
    errors.NotFoundError: grpc.StatusCode.NOT_FOUND,
    errors.UnknownModelError: grpc.StatusCode.NOT_FOUND,
    errors.UnknownFrameworkError: grpc.StatusCode.NOT_FOUND,
    errors.UnknownDatasetError: grpc.StatusCode.NOT_FOUND,
    errors.FrameworkUnavailableError: grpc.StatusCode.FAILED_PRECONDITION,
    errors.ConfigurationError: grpc.StatusCode.INVALID_ARGUMENT,
    errors.ArtifactError: grpc.StatusCode.FAILED_PRECONDITION,
    errors.ArtifactUnavailableError: grpc.StatusCode.FAILED_PRECONDITION,
    errors.DeviceError: grpc.StatusCode.FAILED_PRECONDITION,
    errors.DeviceLostError: grpc.StatusCode.UNAVAILABLE,
    errors.DatasetError: grpc.StatusCode.FAILED_PRECONDITION,
    errors.InputError: grpc.StatusCode.INVALID_ARGUMENT,
    errors.PredictionError: grpc.StatusCode.INTERNAL,
    errors.OutOfMemoryError: grpc.StatusCode.RESOURCE_EXHAUSTED,
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


def status_code(error: errors.InferscopeError) -> grpc.StatusCode:
    """Returns the status that an error becomes."""
    return next(STATUS_CODES[kind] for kind in type(error).__mro__ if kind in STATUS_CODES)


def class_name(error: errors.InferscopeError) -> str:
    """Returns the name of the error's class, or of its nearest ancestor in ``manifests.errors``."""
    return next(kind.__name__ for kind in type(error).__mro__ if kind in STATUS_CODES)


def one_line(text: object) -> str:
    """Returns a text as one line of a length that fits into a status."""
    line = " ".join(str(text).split())
    return line if len(line) <= _MAX_MESSAGE_CHARACTERS else line[: _MAX_MESSAGE_CHARACTERS - 1] + "…"


@contextmanager
def answered(context: grpc.ServicerContext, method: str) -> Iterator[None]:
    """Turns whatever is raised within into the status of the call.

    An error that is not of the program's tree is a fault of the program: it is logged here, and the client is
    told no more than that there was one.
    """
    try:
        yield
    except errors.InferscopeError as error:
        _abort(context, status_code(error), one_line(error), class_name(error))
    except NotOfferedError as error:
        _abort(context, grpc.StatusCode.UNIMPLEMENTED, one_line(error), None)
    except Exception as error:  # noqa: BLE001 - the servicers' boundary: no call may take the agent down
        if not context.is_active():  # gRPC says so by an exception when the client has gone away
            _log.debug("%s: cancelled by the client", method)
            _abort(context, grpc.StatusCode.CANCELLED, "cancelled", None)
        _abort(context, grpc.StatusCode.INTERNAL, described(error, method), None)


def described(error: Exception, method: str) -> str:
    """Returns what a client is told of an error; one that is a fault of the program is logged.

    To be called where the error was caught.
    """
    if isinstance(error, errors.InferscopeError | NotOfferedError):
        return one_line(error)
    _log.exception("%s failed: %s", method, type(error).__name__)
    return f"{method} failed in the agent ({type(error).__name__}); the agent's log says more"


def _abort(context: Any, code: grpc.StatusCode, message: str, name: str | None) -> None:
    if name is not None:
        context.set_trailing_metadata((*(context.trailing_metadata() or ()), (ERROR_CLASS_KEY, name)))
    context.abort(code, message)
