"""The command ``agent compare``."""

from __future__ import annotations

from typing import Any

import click

from inferometer.client.cli.command import (
    Command,
    FiniteFloatRange,
    boolean,
    database_options,
    evaluations_argument,
    option,
)
from inferometer.client.cli.output import OUTPUT_NAMES, output_options
from inferometer.evaluators.jobs.defaults import ACCURACY_THRESHOLD, THRESHOLD


@click.command(cls=Command)
@evaluations_argument("a", metavar="A")
@evaluations_argument("b", metavar="B")
@option(
    "--noise",
    metavar="RUNS",
    help="Two or more evaluations of one system, whose differences become the threshold of each figure.",
)
@option(
    "--threshold",
    type=FiniteFloatRange(0, 10),
    metavar="SHARE",
    help=f"Largest difference that counts as the same, such as 0.05 for 5 %.  [default: {THRESHOLD:g}]",
)
@option(
    "--accuracy_threshold",
    type=FiniteFloatRange(0, 10),
    default=ACCURACY_THRESHOLD,
    metavar="SHARE",
    help="Largest difference of top-1 that counts as the same.",
)
@option(
    "--figures",
    metavar="NAMES",
    help="Figures to compare, separated by commas: p50 and other percentiles, throughput, max_qps, top1.  "
    "[default: p50,p90,p99,throughput and top1; of searches max_qps]",
)
@boolean("--fail_on_undecided", help="Exit with 1 also if a figure is undecided.")
@output_options
@database_options
def compare(**given: Any) -> None:
    """Compare the evaluations B with the evaluations A and report whether B is worse.

    A, B and RUNS are ids of evaluations or groups, or unique prefixes of ids; separate several with commas.
    The exit code is 1 if a figure of B is worse than A's by more than the threshold, and 0 otherwise.
    """
    # Imported here because the help does not need it.
    from inferometer.client.cli.current import current_invocation
    from inferometer.client.compare.comparing import CompareRequest, run_comparison

    printing = {name: given.pop(name) for name in OUTPUT_NAMES}
    request = CompareRequest(**given, printing=printing)
    click.get_current_context().exit(run_comparison(current_invocation(), request))
