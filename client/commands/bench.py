"""``agent bench``: training, inference and data loading, with the options of DLBS's benchmarks."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import TYPE_CHECKING, Any, NoReturn, TypeAlias

import click
from click.core import ParameterSource

from inferometer.client.cli.bench_options import (
    data_options,
    model_options,
    result_options,
    training_options,
)
from inferometer.client.cli.command import COUNT, BooleanOption, Command, Group, boolean, option
from inferometer.manifests.errors import ConfigurationError, InferometerError, one_line

if TYPE_CHECKING:
    from inferometer.client.api.invocation import Invocation
    from inferometer.client.bench.parsing import BenchSystem
    from inferometer.evaluators.evaluation import Evaluation
    from inferometer.evaluators.running.job import Job

_Show: TypeAlias = "Callable[[Evaluation], None]"
_Run: TypeAlias = "Callable[[Invocation, dict[str, Any], _Show], int]"
_DEFAULT = "dlbs"
_TRUTHS = {"true", "false"}


class BenchCommand(Command):
    """A command without arguments, whose boolean options also accept their value as the next word."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Parses the arguments; ``--data_shuffle true`` means ``--data_shuffle=true``."""
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
    """A group that also accepts DLBS's options without a subcommand."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Parses the arguments; options without a subcommand select ``dlbs``."""
        return super().parse_args(ctx, self.with_default(ctx, args))

    def with_default(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Returns the arguments, with the default subcommand added if they name none."""
        asks = any(word in {"-h", "--help"} for word in args)
        named = asks or set(self.list_commands(ctx)) & set(args)
        return args if named or not args else [_DEFAULT, *args]


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
    """Train a model, and measure each step, its parts and its loss.

    A step is forward, loss, backward and update, with the wait for its data and the copy to the device. The
    weights are random and the data is synthetic, unless others are named.
    """
    _finish(given, "training", _train)


@bench.command(cls=BenchCommand)
@model_options
@data_options
@result_options
def inference(**given: Any) -> None:
    """Run a model forward for --num_batches batches, as agent predict dataset does."""
    _finish(given, "inference", _infer)


@bench.command(cls=BenchCommand)
@model_options
@data_options
@option("--num_epochs", type=COUNT, metavar="N", help="Passes over the data, instead of --num_batches.")
@option(
    "--reader",
    type=click.Choice(["own", "framework"], case_sensitive=False),
    default="own",
    help="The program's own reader, or the iterator of MXNet for RecordIO, with its own threads.",
)
@result_options
def ingestion(**given: Any) -> None:
    """Load the batches of a dataset for a model, and compute nothing."""
    _finish(given, "data_ingestion", _ingest)


@bench.command(_DEFAULT, cls=BenchCommand)
@boolean("--forward_only", default=None, help="Benchmark inference, else training.")
@option(
    "--phase", type=click.Choice(["training", "inference"], case_sensitive=False), help="What to benchmark."
)
@boolean("--data_loader_only", help="Load the data only, as bench ingestion does.")
@model_options
@data_options
@training_options
@result_options
def dlbs(forward_only: bool | None, phase: str | None, data_loader_only: bool, **given: Any) -> None:
    """Benchmark what --forward_only or --phase says, or training: agent bench without a subcommand."""
    if forward_only is not None and phase is not None and forward_only != (phase.lower() == "inference"):
        raise ConfigurationError(
            f"forward_only is {str(forward_only).lower()} and phase {phase}; leave out one of them"
        )
    if data_loader_only:
        _finish(given, "data_ingestion", _ingest)
    forward = forward_only if forward_only is not None else phase is not None and phase.lower() == "inference"
    _finish(given, *(("inference", _infer) if forward else ("training", _train)))


def _finish(given: dict[str, Any], phase: str, run: _Run) -> NoReturn:
    """Runs a benchmark and exits with its exit code; in DLBS's output format, a failure prints lines too."""
    from inferometer.client.bench.dlbs_lines import failure_lines, result_lines
    from inferometer.client.bench.parsing import experiment_of
    from inferometer.client.cli.current import current_invocation

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
    from inferometer.client.api.systems import Systems
    from inferometer.client.bench.parsing import read_system, take_tracing
    from inferometer.client.bench.training_options import read_training
    from inferometer.evaluators.kinds.training.job import training_job

    take_tracing(given, invocation)
    system = read_system(given, invocation.catalog, Systems(invocation).find_model)
    request, ranks = read_training(given, system)
    _tell(invocation, system)
    return _run(invocation, given, training_job(request, ranks, given["repeat"]), show)


def _tell(invocation: Invocation, system: BenchSystem, notes: Iterable[str] = ()) -> None:
    for note in (*system.notes, *notes):
        invocation.notify(note)


def _infer(invocation: Invocation, given: dict[str, Any], show: _Show) -> int:
    from inferometer.client.api.systems import Systems
    from inferometer.client.bench.inference import inference_notes, read_inference
    from inferometer.client.bench.parsing import read_system, take_tracing
    from inferometer.evaluators.kinds.batches.job import evaluation_job

    take_tracing(given, invocation)
    system = read_system(given, invocation.catalog, Systems(invocation).find_model)
    asked = click.get_current_context().get_parameter_source("num_workers") is ParameterSource.COMMANDLINE
    request = read_inference(given, system, given["num_workers"] if asked else None)
    _tell(invocation, system, inference_notes(given))
    return _run(invocation, given, evaluation_job(request), show)


def _ingest(invocation: Invocation, given: dict[str, Any], show: _Show) -> int:
    from inferometer.client.api.systems import Systems
    from inferometer.client.bench.parsing import read_ingestion, read_system
    from inferometer.evaluators.kinds.ingestion.job import ingestion_job

    system = read_system(given, invocation.catalog, Systems(invocation).find_model)
    request = read_ingestion(given, system)
    _tell(invocation, system)
    return _run(invocation, given, ingestion_job(request, given["repeat"]), show)


def _run(invocation: Invocation, given: dict[str, Any], job: Job[Evaluation[Any]], show: _Show) -> int:
    """Runs a benchmark, and prints each evaluation's usual summary followed by the output of ``show``."""
    from inferometer.client.evaluating.running import print_summary, run_job

    def both(evaluation: Evaluation) -> None:
        print_summary(evaluation)
        show(evaluation)

    publish, stable = given["publish"], given["require_stable"]
    return run_job(invocation, job, publish=publish, require_stable=stable, show=both)
