"""The exit code of each kind of failure."""

from __future__ import annotations

from collections.abc import Mapping

from manifests import errors

SUCCESS = 0
REGRESSION = 1
"""A comparison found that B is worse, or, if that is asked for, could not tell."""
NOT_SERVING = 1
"""An agent was asked for its health, and does not serve."""
INTERRUPTED = 130
"""Stopped by Ctrl-C or SIGTERM, as a shell reports it."""
OUTPUT_FAILED = 7

EXIT_CODES: Mapping[type[errors.InferscopeError], int] = {
    errors.EvaluationFailed: 1,
    errors.EvaluationInterrupted: INTERRUPTED,
    errors.PredictionError: 1,
    errors.InputError: 1,
    errors.ConfigurationError: 2,
    errors.NotFoundError: 2,
    errors.ManifestError: 2,
    errors.FrameworkUnavailableError: 3,
    errors.DeviceError: 3,
    errors.ArtifactError: 4,
    errors.DatasetError: 4,
    errors.StoreError: 5,
    errors.AgentError: 6,
    errors.SessionError: 6,
    errors.HungError: 6,
    errors.QueueFullError: 6,
    errors.RateLimitError: 6,
    errors.MemoryLimitError: 6,
    errors.RequestCancelledError: 6,
    errors.OutputError: OUTPUT_FAILED,
}
"""By class of the tree; a class without an entry has that of its nearest base."""


def exit_code(error: errors.InferscopeError) -> int:
    """Returns the exit code for an error."""
    return next((EXIT_CODES[kind] for kind in type(error).__mro__ if kind in EXIT_CODES), 1)
