"""``agent predict workload`` and ``agent predict max-qps``: load tests of a model."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NoReturn

import click

from inferometer.client.cli.command import Command, boolean, options
from inferometer.client.cli.request_options import request_options
from inferometer.client.cli.system_options import dataset_options, system_options, tracer_options
from inferometer.evaluators.jobs.declaring import options_of
from inferometer.evaluators.kinds.load.request import LoadRequest, MaxQpsRequest, WorkloadRequest

_WITH_THE_TRACER = ("trace_sample", "repeat")
"""The options that help shows after those of the collector."""


def load_options_of(request: type[LoadRequest]) -> Callable[[Any], Any]:
    """Adds the options of a load test, of the model and of the inputs."""
    every = [each.name for each in options_of(request)]
    before = [each for each in every if each not in _WITH_THE_TRACER]
    return options(
        system_options,
        request_options(request, but=_WITH_THE_TRACER),
        boolean("--allow_invalid", help="Exit with 0 although the result is INVALID."),
        tracer_options,
        request_options(request, but=before),
        dataset_options,
    )


load_options = load_options_of(LoadRequest)
"""Adds the options that both commands have."""


@click.command(cls=Command)
@load_options_of(WorkloadRequest)
def workload(**given: Any) -> None:
    """Send queries as they arrive in production, and measure the latency of each.

    Queries are sent when they are due, regardless of earlier ones; latency counts from the time a query was
    due to its response. By default, the run lasts at least 10 s and 512 queries.
    """
    _put(WorkloadRequest, given)


@click.command("max-qps", cls=Command)
@load_options_of(MaxQpsRequest)
def max_qps(**given: Any) -> None:
    """Search for the highest rate at which a latency percentile stays within a bound.

    The answer is an interval, or none. Each probe draws its queries from a seed of its own, and is stored
    with the answer.
    """
    _put(MaxQpsRequest, given)


def _put(kind: type[WorkloadRequest] | type[MaxQpsRequest], given: dict[str, Any]) -> NoReturn:
    """Runs the load test that the options describe, and exits with its exit code."""
    # Imported here because the help does not need it.
    from inferometer.client.cli.current import current_invocation
    from inferometer.client.evaluating.parsing import take_dataset, take_system
    from inferometer.client.evaluating.running import run_job
    from inferometer.evaluators.kinds.load.job import load_job

    invocation = current_invocation()
    publish, dataset = given.pop("publish"), take_dataset(given)
    tracer = invocation.configuration.tracer
    if given.get("scenario") is None:  # in a scenario, LoadGen sends the queries
        given["tracer_address"] = given["tracer_address"] or tracer.address
    given["trace_url"] = given["trace_url"] or tracer.url
    allow_invalid, require_stable = given.pop("allow_invalid"), given.pop("require_stable")
    system = take_system(given, invocation, dataset)
    if system.given is not None and not dataset.is_named:
        given["synthetic"] = True
    request = kind(system=system, dataset=dataset, **given)
    with invocation.waiting.during("measuring what this machine can send"):
        job = load_job(request)
    code = run_job(
        invocation, job, publish=publish, allow_invalid=allow_invalid, require_stable=require_stable
    )
    click.get_current_context().exit(code)
