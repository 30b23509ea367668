"""``agent compare``: its options."""

from __future__ import annotations

from typing import Any

import click

from client.command import Command, boolean, database_options
from client.compare.defaults import ACCURACY_THRESHOLD, THRESHOLD
from client.finite_float import FiniteFloatRange
from client.output import output_options


@click.command(cls=Command)
@click.argument("a", metavar="A")
@click.argument("b", metavar="B")
@click.option(
    "--noise",
    metavar="RUNS",
    help="Evaluations of one system, at least two: what they differ by is the threshold of each figure.",
)
@click.option(
    "--threshold",
    type=FiniteFloatRange(0, 10),
    metavar="SHARE",
    help=f"By how much a figure may differ, such as 0.05 for 5 %.  [default: {THRESHOLD:g}]",
)
@click.option(
    "--accuracy_threshold",
    type=FiniteFloatRange(0, 10),
    default=ACCURACY_THRESHOLD,
    show_default=True,
    metavar="SHARE",
    help="By how much top-1 may differ.",
)
@click.option(
    "--figures",
    metavar="NAMES",
    help="What is compared, with commas between: p50 and other percentiles, throughput, max_qps, top1.  "
    "[default: p50,p90,p99,throughput and top1; of searches max_qps]",
)
@boolean("--fail_on_undecided", help="End with 1 also where it cannot be told whether B is worse.")
@output_options
@database_options
def compare(**given: Any) -> None:
    """Say whether the evaluations B are worse than the evaluations A.

    A, B and RUNS are ids of evaluations or of groups, or their beginnings, several with commas between. The
    exit code is 1 where a figure of B is worse than A's by more than the threshold, and 0 where none is.
    """
    # Imported here because help needs none of it.
    from client.compare.comparing import CompareRequest, run_comparison
    from client.invocation import current_invocation

    click.get_current_context().exit(run_comparison(current_invocation(), CompareRequest(**given)))
