"""``agent bench``: training, inference and the loading of data, with the options of DLBS's benchmarks."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Any, NoReturn, TypeAlias

import click

from inferometer.client.cli.bench_options import (
    data_options,
    model_options,
    result_options,
    training_options,
)
from inferometer.client.cli.command import BooleanOption, Command, Group, boolean, option
from inferometer.manifests.errors import ConfigurationError, InferometerError, one_line

if TYPE_CHECKING:
    from inferometer.client.cli.invocation import Invocation
    from inferometer.evaluators.evaluation import Evaluation

_Show: TypeAlias = "Callable[[Evaluation], None]"
_Run: TypeAlias = "Callable[[Invocation, dict[str, Any], _Show], int]"
_ALL = "all"
_TRUTHS = {"true", "false"}


class BenchCommand(Command):
    """A command without arguments, whose booleans also take their value as the next word."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Parses the arguments; ``--data_shuffle true`` is ``--data_shuffle=true``."""
        flags = [each for each in self.params if isinstance(each, BooleanOption)]
        names = {name for each in flags for name in each.opts}
        joined: list[str] = []
        for word in args:
            before = f"--{joined[-1][2:].replace('-', '_')}" if joined else ""
            if before in names and word.lower() in _TRUTHS:
                joined[-1] += f"={word}"
            else:
                joined.append(word)
        return super().parse_args(ctx, joined)


class BenchGroup(Group):
    """A group that also takes DLBS's options without a subcommand."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Parses the arguments; options without a subcommand are those of the hidden command for all."""
        known = set(self.list_commands(ctx))
        asks = any(word in {"-h", "--help"} for word in args)
        if args and not asks and not known & set(args):
            args = [_ALL, *args]
        return super().parse_args(ctx, args)

    def list_commands(self, ctx: click.Context) -> list[str]:
        """The subcommands, without the hidden one."""
        return [name for name in super().list_commands(ctx) if name != _ALL]


@click.group(cls=BenchGroup)
def bench() -> None:
    """Benchmark training, inference or the loading of data, with the options of DLBS.

    Without a subcommand, --forward_only chooses inference or training, as in DLBS:

    \b
      agent bench --model=alexnet --forward_only=false --batch_size=16 --num_batches=100
      agent bench training --model=resnet50 --framework_name=MXNet --batch_size=8
    """  # noqa: D301 - the backspace tells click to leave the lines as they are


@bench.command(cls=BenchCommand)
@model_options
@data_options
@training_options
@result_options
def training(**given: Any) -> None:
    """Train a model: the time of each step and of its parts, throughput, and the loss of every step.

    A step is forward, loss, backward and update, with the wait for its data and the copy to the device. The
    weights are random and the data is synthetic, unless others are named.
    """
    _finish(given, "training", _train)


@bench.command(cls=BenchCommand)
@model_options
@data_options
@result_options
def inference(**given: Any) -> None:
    """Run a model forward, as agent predict dataset does, over exactly --num_batches batches."""
    _finish(given, "inference", _infer)


@bench.command(cls=BenchCommand)
@model_options
@data_options
@result_options
def ingestion(**given: Any) -> None:
    """Load the batches of a dataset for a model, and compute nothing."""
    _finish(given, "data_ingestion", _ingest)


@bench.command(_ALL, cls=BenchCommand, hidden=True)
@boolean("--forward_only", default=None, help="Benchmark inference, else training.")
@option(
    "--phase", type=click.Choice(["training", "inference"], case_sensitive=False), help="What to benchmark."
)
@boolean("--data_loader_only", help="Load the data only, as bench ingestion does.")
@model_options
@data_options
@training_options
@result_options
def everything(forward_only: bool | None, phase: str | None, data_loader_only: bool, **given: Any) -> None:
    """Benchmark what --forward_only or --phase says; training by default."""
    if forward_only is not None and phase is not None and forward_only != (phase.lower() == "inference"):
        raise ConfigurationError(
            f"forward_only is {str(forward_only).lower()} and phase {phase}; leave out one of them"
        )
    if data_loader_only:
        _finish(given, "data_ingestion", _ingest)
    forward = forward_only if forward_only is not None else phase is not None and phase.lower() == "inference"
    _finish(given, *(("inference", _infer) if forward else ("training", _train)))


def _finish(given: dict[str, Any], phase: str, run: _Run) -> NoReturn:
    """Runs a benchmark and exits with its code; with DLBS's output, a failure has its lines too."""
    from inferometer.client.cli.invocation import current_invocation
    from inferometer.client.evaluating.bench_parsing import experiment_of
    from inferometer.client.evaluating.dlbs_lines import failure_lines, result_lines

    dlbs = given["output"].lower() == "dlbs"
    experiment = experiment_of(given, phase, given["num_gpus"] or len(given["gpus"] or ()))

    def show(evaluation: Evaluation) -> None:
        if dlbs:
            gpus = evaluation.system.device.is_gpu * max(1, experiment.num_gpus)
            for line in result_lines(replace(experiment, num_gpus=gpus), evaluation):
                click.echo(line)

    try:
        code = run(current_invocation(), given, show)
    except InferometerError as error:
        if dlbs:
            for line in failure_lines(experiment, one_line(error)):
                click.echo(line)
        raise
    click.get_current_context().exit(code)


def _train(invocation: Invocation, given: dict[str, Any], show: _Show) -> int:
    from inferometer.client.evaluating.bench_parsing import read_system, read_training, take_tracing
    from inferometer.client.evaluating.running_training import Publication, run_training
    from inferometer.client.systems import Systems

    take_tracing(given, invocation)
    system = read_system(given, invocation, Systems(invocation).find_model)
    request, ranks = read_training(given, system)
    publication = Publication(given["publish"], given["require_stable"], show)
    return run_training(invocation, request, ranks, publication)


def _infer(invocation: Invocation, given: dict[str, Any], show: _Show) -> int:
    from inferometer.client.evaluating.bench_inference import read_inference
    from inferometer.client.evaluating.bench_parsing import read_system, take_tracing
    from inferometer.client.evaluating.running import run_evaluation
    from inferometer.client.systems import Systems

    take_tracing(given, invocation)
    system = read_system(given, invocation, Systems(invocation).find_model)
    return run_evaluation(
        invocation,
        read_inference(given, system),
        publish=given["publish"],
        publish_predictions=False,
        show_inputs=False,
        require_stable=given["require_stable"],
        on_shown=show,
    )


def _ingest(invocation: Invocation, given: dict[str, Any], show: _Show) -> int:
    raise ConfigurationError("bench ingestion is not there yet")
