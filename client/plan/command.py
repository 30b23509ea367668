"""``agent plan``: describes, checks, runs, resumes and reports many experiments."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from inferometer.client.cli.command import (
    FILE,
    POSITIVE,
    Command,
    Group,
    boolean,
    current_invocation,
    database_options,
    option,
    options,
    tls_options,
)
from inferometer.client.cli.output import NO_DRIVER, PRINTING_NAMES, printing_options

if TYPE_CHECKING:
    from inferometer.client.plan.checking import PlanAgents
    from inferometer.client.plan.request import PlanRequest

_plan_argument = click.argument("file", type=FILE, metavar="FILE")
_given_options = options(
    option(
        "-P",
        "--parameter",
        "parameters",
        multiple=True,
        metavar="NAME=VALUE",
        help="Replace a parameter; the value is YAML or plain text. Repeat the option for several.",
    ),
    option(
        "-V",
        "--variable",
        "variables",
        multiple=True,
        metavar="NAME=[VALUE,…]",
        help="Replace or add a variable, whose values are a YAML list. Repeat the option for several.",
    ),
    option(
        "-E",
        "--extension",
        "extensions",
        multiple=True,
        metavar="EXTENSION",
        help="Add an extension: a YAML mapping of condition, parameters and cases.",
    ),
)
_agent_options = options(
    option(
        "--agent",
        "agents",
        multiple=True,
        metavar="HOST:PORT",
        help="Run the models on this served agent, in place of those of the plan. Repeat the option for "
        "several, which share the cells.",
    ),
    tls_options,
)
_REPORT_NAMES = (
    *("rows", "columns", "value", "where", "minimize", "maximize", "scaling", "over"),
    *("gpu_advice", "cores_per_gpu", "failed"),
)


def _asked(
    file: Path, agents: Sequence[str], given: Mapping[str, Any]
) -> tuple[PlanRequest, PlanAgents | None]:
    """Returns a plan with the profile of its cluster, and its served agents, if it has any."""
    from inferometer.client.plan.checking import ask_plan_agents
    from inferometer.client.plan.request import on_cluster, read_request

    invocation = current_invocation()
    request = on_cluster(invocation, read_request(file, **given))
    return request, ask_plan_agents(invocation, request, agents)


@click.group(cls=Group)
def plan() -> None:
    """Run many experiments that one file describes.

    \b
      agent plan check batches.yaml
      agent plan run batches.yaml -V batch_size=[1,2,4]
      agent plan resume batches.yaml --rerun=onfail
      agent plan status batches.yaml
    """  # noqa: D301 - the backspace tells click to leave the lines as they are


@plan.command(cls=Command)
@_plan_argument
@_given_options
@_agent_options
def check(file: Path, agents: tuple[str, ...], **given: Any) -> None:
    """Find the cells of a plan that cannot run, before anything starts.

    Each problem is one line with the number of its cells; the exit code is 2 if there is one.
    """
    from inferometer.client.plan.checking import check_cells

    request, served = _asked(file, agents, given)
    click.get_current_context().exit(check_cells(current_invocation(), request, served))


@plan.command(cls=Command)
@_plan_argument
@_given_options
def expand(file: Path, **given: Any) -> None:
    """Print the id and the command line of each cell of a plan, in the order of its variables."""
    from inferometer.client.plan.request import expanded_lines, read_request

    for line in expanded_lines(read_request(file, **given)):
        click.echo(line)


@plan.command(cls=Command)
@_plan_argument
@_given_options
@_agent_options
@boolean("--unchecked", help="Begin even if some cells cannot run; those fail.")
@database_options
def run(file: Path, agents: tuple[str, ...], unchecked: bool, **given: Any) -> None:
    """Run the cells of a plan that have no result yet, one at a time, each in a fresh process.

    All cells are checked first, as by agent plan check.

    Ctrl-C stops after the current cell; a second one ends it. The exit code is 1 if a run failed, and 130
    after a stop.
    """
    from inferometer.client.plan.checking import check_cells
    from inferometer.client.plan.running import run_plan

    request, served = _asked(file, agents, given)
    code = 0 if unchecked else check_cells(current_invocation(), request, served)
    click.get_current_context().exit(code or run_plan(current_invocation(), request, None, served))


@plan.command(cls=Command)
@_plan_argument
@_given_options
@_agent_options
@option(
    "--rerun",
    type=click.Choice(["never", "onfail", "always"]),
    default=None,
    help="Which runs with a result run again.  [default: as the plan says, or never]",
)
@database_options
def resume(file: Path, agents: tuple[str, ...], rerun: str | None, **given: Any) -> None:
    """Resume a plan: run the cells without a result, and with --rerun also those that failed, or all."""
    from inferometer.client.plan.running import run_plan

    request, served = _asked(file, agents, given)
    click.get_current_context().exit(run_plan(current_invocation(), request, rerun, served))


@plan.command(cls=Command)
@_plan_argument
@_given_options
@boolean("--all", "everything", help="Also show the runs that are complete.")
def status(file: Path, everything: bool, **given: Any) -> None:
    """Show the number of runs of a plan in each state, and why runs are not complete."""
    from inferometer.client.plan.request import read_request, status_lines

    for line in status_lines(current_invocation(), read_request(file, **given), everything):
        click.echo(line)


@plan.command(cls=Command)
@_plan_argument
def stop(file: Path) -> None:
    """Ask the driver of a plan, in another terminal, to stop after the current runs.

    The exit code is 1 if no driver runs the plan.
    """
    from inferometer.client.plan.request import folder_of, read_request

    request = read_request(file, (), (), ())
    folder = folder_of(current_invocation(), request)
    if not folder.is_driven:
        click.echo(f"no driver runs plan {request.plan.name} in {folder.path}", err=True)
        click.get_current_context().exit(NO_DRIVER)
    folder.stop.touch()
    click.echo(f"stop        requested in {folder.path}", err=True)


@plan.command(cls=Command)
@_plan_argument
@_given_options
def watch(file: Path, **given: Any) -> None:
    """Follow the journal of a plan until all of its runs have a result, or Ctrl-C.

    It shows what a driver in another terminal has done, and jobs of a cluster also without one. It starts
    nothing; if runs wait and nothing continues them, the exit code is 1.
    """
    from inferometer.client.plan.request import read_request, watch_plan

    found = watch_plan(current_invocation(), read_request(file, **given))
    click.get_current_context().exit(found)


@plan.command(cls=Command)
@_plan_argument
@_given_options
@option(
    "--rows",
    metavar="NAMES",
    help="Dimensions of the rows, with commas between: parameters, or fields of reports.",
)
@option("--columns", metavar="NAMES", help="Dimensions of the columns.  [default: the figures]")
@option("--value", metavar="NAMES", help="The figures, by the names of reports in csv.")
@option(
    "--where",
    multiple=True,
    metavar="CONDITION",
    help='Only cells such as "batch_size >= 8"; repeat the option for several.',
)
@option(
    "--minimize",
    multiple=True,
    metavar="FIGURE",
    help="Show the cells with the lowest value first; several objectives show the Pareto front.",
)
@option("--maximize", multiple=True, metavar="FIGURE", help="The same with the highest value.")
@option(
    "--scaling",
    type=click.Choice(["weak", "strong"]),
    help="Show speed-up and efficiency: weak keeps the work of each worker, strong the total work.",
)
@option(
    "--over",
    metavar="NAME",
    help="Dimension that --scaling and --gpu_advice vary, such as threads.  [default: the only number of "
    "devices, ranks, threads or cores that varies]",
)
@boolean("--gpu_advice", help="Show whether a GPU is worth asking for, compared with numbers of CPU cores.")
@option(
    "--cores_per_gpu",
    type=POSITIVE,
    metavar="N",
    help="The number of cores that a GPU counts for on the cluster, which makes --gpu_advice a verdict.",
)
@boolean("--failed", help="Show the runs that are not complete, and why.")
@option("--plot", type=FILE, metavar="FILE", help="Plot the table to this file: .html, .svg or .png.")
@database_options
@printing_options
def report(file: Path, plot: Path | None, **given: Any) -> None:
    """Show what the cells of a plan measured: figures by rows and columns, with their 95 % intervals.

    \b
      agent plan report batches.yaml --rows=framework_name --columns=batch_size
      agent plan report batches.yaml --maximize=throughput_inputs_per_s --where='latency_ms_p99 <= 50'
    """  # noqa: D301 - the backspace tells click to leave the lines as they are
    from inferometer.client.plan.request import read_request
    from inferometer.client.plan.running import report_plan

    printing = {name: given.pop(name) for name in PRINTING_NAMES}
    asked = {name: given.pop(name) for name in _REPORT_NAMES}
    report_plan(current_invocation(), read_request(file, **given), printing, plot, **asked)


@plan.command("import-dlbs", cls=Command)
@click.argument("words", nargs=-1, required=True, metavar="CONFIG.json|SCRIPT|run [WORD]…")
@option(
    "-o",
    "--output",
    "--output_file",
    "output",
    type=FILE,
    help="Write the plan to this file, which must not exist. Several plans are numbered.  [default: stdout]",
)
def import_dlbs(words: tuple[str, ...], output: Path | None) -> None:
    """Convert a configuration, a command line or a script of DLBS into plans.

    Give a command line of DLBS's experimenter.py after --. A shell script is read, but not run: each such
    command line in it becomes a plan, and the words after its name are its arguments. Everything without an
    equivalent is reported on stderr, one item per line.

    \b
      agent plan import-dlbs config.json -o plan.yaml
      agent plan import-dlbs mxnet.sh -o plan.yaml
      agent plan import-dlbs -o plan.yaml -- run --config=config.json -Pexp.gpus='"0,1"'
    """  # noqa: D301 - the backspace tells click to leave the lines as they are
    from inferometer.client.plan.request import write_imported

    write_imported(words, output)
