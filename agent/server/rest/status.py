"""The HTTP status of each error of the program, as KServe and Triton give them.

The body of an unsuccessful response is ``{"error": "…"}``, with the error's message in one line.
"""

from __future__ import annotations

from inferometer.agent.protocol.status import NotOfferedError
from inferometer.manifests import errors

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
