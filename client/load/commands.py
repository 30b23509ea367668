"""``agent predict workload`` and ``agent predict max-qps``: a model under load."""

from __future__ import annotations

from pathlib import Path
from typing import Any, NoReturn

import click

from client.command import Command
from client.finite_float import FiniteFloatRange
from client.load.defaults import LATENCY_BOUND_MS, TIME_BUDGET_S, TOLERANCE
from client.load.options import load_options
from client.system_options import system_options


@click.command(cls=Command)
@system_options
@load_options
@click.option(
    "--duration",
    type=FiniteFloatRange(min=0, min_open=True),
    metavar="S",
    help="Send queries for exactly so long.",
)
@click.option(
    "--latency_bound",
    type=FiniteFloatRange(min=0, min_open=True),
    metavar="MS",
    help="What goodput and validity are judged by.",
)
@click.option(
    "--schedule",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="Send queries at the offsets of this file, one a line in seconds or a csv with offset_ns.",
)
@click.option(
    "--write_schedule",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="Write the schedule to this file, too, so that --schedule sends it again.",
)
@click.option(
    "--concurrency",
    type=click.IntRange(min=1),
    metavar="N",
    help="Keep so many queries in flight instead: each answer sends the next (closed loop).",
)
@click.option(
    "--scenario",
    type=click.Choice(["single_stream", "multi_stream", "server", "offline"]),
    metavar="NAME",
    help="Have MLPerf's LoadGen send a scenario of its own instead, and compare its figures with ours: "
    "single_stream, multi_stream, server, offline.",
)
def workload(**given: Any) -> None:
    """Send queries as they would arrive in production, and measure how long each takes.

    Queries are sent when they are due, whatever became of those before them; latency counts from when a query
    was due to its answer. By default for 10 s and 512 queries at the least.
    """
    _put(given, "workload")


@click.command("max-qps", cls=Command)
@system_options
@load_options
@click.option(
    "--latency_bound",
    type=FiniteFloatRange(min=0, min_open=True),
    default=LATENCY_BOUND_MS,
    show_default=True,
    metavar="MS",
    help="What the percentile of the latencies must keep.",
)
@click.option(
    "--tolerance",
    type=FiniteFloatRange(0.0001, 1),
    default=TOLERANCE,
    show_default=True,
    metavar="SHARE",
    help="Half the width of the answer's interval that is aimed at.",
)
@click.option(
    "--time_budget",
    type=FiniteFloatRange(min=1),
    default=TIME_BUDGET_S,
    show_default=True,
    metavar="S",
    help="How long to search.",
)
def max_qps(**given: Any) -> None:
    """Search for the highest rate at which a percentile of the latencies keeps a bound.

    The answer is an interval, or none. Each probe has queries of its own seed, and is kept with the answer.
    """
    _put(given, "max_qps")


def _put(given: dict[str, Any], kind: str) -> NoReturn:
    """Puts the load on, and ends with its exit code."""
    # Imported here because help needs none of it.
    from client.invocation import current_invocation
    from client.load.request import LoadRequest
    from client.load.running import put_load
    from evaluators.loadgen.record import LoadKind

    click.get_current_context().exit(
        put_load(current_invocation(), LoadRequest(kind=LoadKind(kind), **given))
    )
