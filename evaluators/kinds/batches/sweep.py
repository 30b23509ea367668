"""The job behind a sweep: several evaluations over datasets, which run one after the other as a group."""

from __future__ import annotations

import uuid
from collections.abc import Generator, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from functools import partial

from inferometer.evaluators.evaluation import Evaluation, Status
from inferometer.evaluators.jobs.requests import EvaluationRequest
from inferometer.evaluators.kinds.batches.job import evaluate
from inferometer.evaluators.kinds.batches.measurement import BatchMeasurement
from inferometer.evaluators.kinds.batches.run import Progress
from inferometer.evaluators.running.job import Job
from inferometer.evaluators.running.resources import JobCallbacks, JobPart, JobResources
from inferometer.manifests.errors import ConfigurationError, EvaluationInterrupted, InferometerError


@dataclass(frozen=True, slots=True)
class SweepCell:
    """One evaluation of a sweep, or the reason why there is none.

    Attributes:
        request: The request of the evaluation.
        evaluation: The evaluation; None if it failed.
        error: Why it failed; None if it did not.
    """

    request: EvaluationRequest
    evaluation: Evaluation[BatchMeasurement] | None
    error: InferometerError | None = None

    @property
    def name(self) -> str:
        """A short name of the request; see ``name_of``."""
        return name_of(self.request)


def name_of(request: EvaluationRequest) -> str:
    """Returns a short name that distinguishes an evaluation from the others of a sweep."""
    system, session = request.system, request.system.session
    framework = f" on {system.framework_name}" if system.framework_name else ""
    threads = "" if session.threads is None else f", threads {session.threads}"
    precision = "" if session.precision is None else f", {session.precision.value}"
    device = f" ({session.device})" if session.device.is_gpu else ""
    size = f"batch size {request.options.batch_size}"
    return f"{system.model_name}{framework}{device}, {size}{threads}{precision}"


def sweep(
    requests: Sequence[EvaluationRequest],
    resources: JobResources,
    callbacks: JobCallbacks[Progress] | None = None,
) -> Generator[SweepCell, None, None]:
    """Evaluates each request in this process, and yields its cell as soon as it is complete.

    An evaluation that fails yields a cell with its error, and the sweep goes on. Several evaluations share a
    group id. No evaluation follows an interrupted one.

    Raises:
        ConfigurationError: There is no request, or one asks for several evaluations itself.
        EvaluationInterrupted: The job was stopped before a batch was measured, or between two evaluations.
    """
    callbacks = callbacks or JobCallbacks()
    if not requests:
        raise ConfigurationError("a sweep needs at least one value of each option")
    if any(len(request.trace_levels) > 1 for request in requests):
        raise ConfigurationError(
            "repeat and leveled are for one evaluation, and a sweep has several; leave them out, or evaluate "
            "one batch_size at a time"
        )
    count, group_id = len(requests), str(uuid.uuid4()) if len(requests) > 1 else None
    for number, request in enumerate(requests, start=1):
        callbacks.on_part(JobPart(number, count, name=name_of(request)))
        try:
            quiet = replace(callbacks, on_part=_ignored)
            with closing(evaluate(request, resources, quiet, group_id=group_id)) as evaluations:
                evaluation = next(evaluations)
        except EvaluationInterrupted:
            raise
        except InferometerError as error:
            yield SweepCell(request, None, error)
            continue
        stopped = callbacks.stop_requested()  # in the last batch, which leaves nothing to interrupt
        yield SweepCell(request, evaluation)
        if evaluation.status is Status.INTERRUPTED:
            return
        if stopped and number < count:
            raise EvaluationInterrupted(f"stopped after {number} of {count} evaluations")


def sweep_job(requests: Sequence[EvaluationRequest]) -> Job[SweepCell]:
    """Returns the job of several requests; see ``sweep``."""
    name = requests[0].system.model_name if requests else ""
    return Job(partial(sweep, requests), name, opening=f"opening {name}")


def _ignored(_: JobPart) -> None:
    """Ignores the parts of an evaluation, because it is itself a part of the sweep."""
