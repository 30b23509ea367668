"""The table of exit codes, by kind of failure."""

from __future__ import annotations

from collections.abc import Mapping

from inferometer.manifests import errors

SUCCESS = 0
FAILED_INPUTS = 1
"""An evaluation finished although some of its inputs failed."""
REGRESSION = 1
"""A comparison found that B is worse, or with ``--fail_on_undecided`` that the data is inconclusive."""
NOT_SERVING = 1
"""The health check of an agent answered that it does not serve."""
NO_DRIVER = 1
"""No driver runs the plan that is to be stopped."""
INTERRUPTED = 130
"""Stopped by Ctrl-C or SIGTERM, as a shell reports it."""
OUTPUT_FAILED = 7
INVALID = 8
"""A workload or a search was measured and published, and its figures cannot be trusted."""
NOT_STABLE = 9
"""With ``--require_stable``: the conditions of an evaluation were disturbed, unstable, or are not known."""

EXIT_CODES: Mapping[type[errors.InferometerError], int] = {
    errors.EvaluationFailed: 1,
    errors.EvaluationInterrupted: INTERRUPTED,
    errors.PredictionError: 1,
    errors.TrainingError: 1,
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
"""The exit codes by class; a class without an entry has the code of its nearest base."""


def exit_code(error: errors.InferometerError) -> int:
    """Returns the exit code for an error."""
    return next((EXIT_CODES[kind] for kind in type(error).__mro__ if kind in EXIT_CODES), 1)
