"""``agent predict workload`` and ``agent predict max-qps``: a model under load."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NoReturn

import click

from inferometer.client.cli.command import (
    COUNT,
    NOT_NEGATIVE,
    POSITIVE,
    Command,
    FiniteFloatRange,
    boolean,
    option,
    options,
)
from inferometer.client.cli.paths import FILE, INPUT
from inferometer.client.cli.system_options import (
    dataset_options,
    repeat_option,
    system_options,
    tracer_options,
)
from inferometer.evaluators.jobs import defaults

if TYPE_CHECKING:
    from inferometer.evaluators.jobs.requests import MaxQpsRequest, WorkloadRequest

load_options = options(
    system_options,
    option(
        "--initial_qps",
        type=POSITIVE,
        metavar="QPS",
        help=f"Queries per second: the rate, or the start of a search.  [default: {defaults.INITIAL_QPS:g}]",
    ),
    option(
        "--arrival",
        metavar="PROCESS",
        help="Arrival process: constant, poisson, gamma:cv=2, bursts:on_s=1,off_s=1, "
        f"ramp:from_share=0.1,to_share=1,over_s=60.  [default: {defaults.ARRIVAL}]",
    ),
    option(
        "--percentile",
        type=FiniteFloatRange(0, 100, min_open=True, max_open=True),
        default=defaults.PERCENTILE,
        metavar="P",
        help="Latency percentile that the bound applies to.",
    ),
    option(
        "--min_duration",
        "min_duration_s",
        type=NOT_NEGATIVE,
        metavar="S",
        help="Minimum duration of the run.",
    ),
    option("--min_queries", type=COUNT, metavar="N", help="Minimum number of queries."),
    option(
        "--timeout_ms",
        type=FiniteFloatRange(min=1),
        default=defaults.QUERY_TIMEOUT_MS,
        metavar="MS",
        help="Timeout of a query, from the time it was due.",
    ),
    option(
        "--warmup",
        "warm_up_queries",
        type=click.IntRange(min=0),
        default=defaults.WARM_UP_QUERIES,
        metavar="N",
        help="Queries to send before the run without measuring them.",
    ),
    boolean("--force", help="Send even more than this machine can send on time."),
    boolean("--allow_invalid", help="Exit with 0 although the result is INVALID."),
    option(
        "--max_batch_size",
        type=click.IntRange(1, 4096),
        default=1,
        metavar="N",
        help="Maximum number of queries per batch, in this process.",
    ),
    option(
        "--max_queue_delay_ms",
        type=NOT_NEGATIVE,
        default=0.0,
        metavar="MS",
        help="How long the first query of a batch waits for others.",
    ),
    boolean(
        "--include_preprocess",
        help="Also preprocess under load; by default inputs are preprocessed before the run.",
    ),
    tracer_options,
    option(
        "--trace_sample",
        type=FiniteFloatRange(0, 1),
        metavar="SHARE",
        help="Trace this share of the queries.  "
        f"[default: {defaults.TRACE_SAMPLE:g} with a collector, else 0]",
    ),
    repeat_option("opening the model anew each time, as one group."),
    dataset_options,
)
"""Adds the options that both commands have."""


@click.command(cls=Command)
@load_options
@option("--duration", "duration_s", type=POSITIVE, metavar="S", help="Duration of the run.")
@option(
    "--latency_bound",
    "latency_bound_ms",
    type=POSITIVE,
    metavar="MS",
    help="Latency bound for goodput and validity.",
)
@option(
    "--schedule",
    type=INPUT,
    metavar="FILE",
    help="Send queries at the offsets in this file: one per line in seconds, or a csv with offset_ns.",
)
@option(
    "--write_schedule",
    type=FILE,
    metavar="FILE",
    help="Also write the schedule to this file, for use with --schedule.",
)
@option(
    "--concurrency",
    type=COUNT,
    metavar="N",
    help="Keep N queries in flight instead: each response triggers the next query (closed loop).",
)
@option(
    "--scenario",
    type=click.Choice(["single_stream", "multi_stream", "server", "offline"]),
    metavar="NAME",
    help="Let MLPerf's LoadGen send a scenario instead, and compare its figures with ours: "
    "single_stream, multi_stream, server, offline.",
)
def workload(**given: Any) -> None:
    """Send queries as they arrive in production, and measure the latency of each.

    Queries are sent when they are due, regardless of earlier ones; latency counts from the time a query was
    due to its response. By default, the run lasts at least 10 s and 512 queries.
    """
    from inferometer.evaluators.jobs.requests import WorkloadRequest
    from inferometer.evaluators.kinds.load.measurement import Scenario

    if given["scenario"] is not None:
        given["scenario"] = Scenario(given["scenario"])
    _put(WorkloadRequest, given)


@click.command("max-qps", cls=Command)
@load_options
@option(
    "--latency_bound",
    "latency_bound_ms",
    type=POSITIVE,
    default=defaults.LATENCY_BOUND_MS,
    metavar="MS",
    help="Bound for the latency percentile.",
)
@option(
    "--tolerance",
    type=FiniteFloatRange(0.0001, 1),
    default=defaults.TOLERANCE,
    metavar="SHARE",
    help="Target for half the width of the answer's interval, by this search alone.",
)
@option(
    "--time_budget",
    "time_budget_s",
    type=FiniteFloatRange(min=1),
    default=defaults.TIME_BUDGET_S,
    metavar="S",
    help="Time limit of the search.",
)
def max_qps(**given: Any) -> None:
    """Search for the highest rate at which a latency percentile stays within a bound.

    The answer is an interval, or none. Each probe draws its queries from a seed of its own, and is stored
    with the answer.
    """
    from inferometer.evaluators.jobs.requests import MaxQpsRequest

    _put(MaxQpsRequest, given)


def _put(kind: type[WorkloadRequest] | type[MaxQpsRequest], given: dict[str, Any]) -> NoReturn:
    """Runs the load that the options describe, and exits with its code."""
    # Imported here because help needs none of it.
    from inferometer.client.cli.current import current_invocation
    from inferometer.client.evaluating.parsing import take_dataset, take_system
    from inferometer.client.evaluating.running import run_job
    from inferometer.evaluators.kinds.load.job import load_job

    invocation = current_invocation()
    publish, dataset = given.pop("publish"), take_dataset(given)
    tracer = invocation.configuration.tracer
    if given.get("scenario") is None:  # whose queries LoadGen sends
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
