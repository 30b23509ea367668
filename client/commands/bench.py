"""``agent bench``: training, inference and data loading, with the options of DLBS's benchmarks."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from functools import partial
from typing import TYPE_CHECKING, Any, NoReturn, TypeAlias

import click
from click.core import ParameterSource

from inferometer.client.cli.command import (
    COUNT,
    DATA,
    MEASUREMENT,
    MODEL,
    OUTPUT,
    WEIGHTS,
    WHOLE_NUMBER,
    BooleanOption,
    Command,
    Group,
    InputPath,
    allocator_option,
    boolean,
    current_invocation,
    database_options,
    option,
    options,
)
from inferometer.client.cli.options import publication_options, request_options, tracer_options
from inferometer.evaluators.jobs.options import DIST_BACKENDS, KV_STORES
from inferometer.evaluators.kinds.ingestion.request import IngestionRequest
from inferometer.evaluators.kinds.training.request import (
    LOADERS,
    RankRequest,
    TrainingData,
    TrainingOptions,
    TrainingRequest,
)
from inferometer.manifests.errors import ConfigurationError, InferometerError, one_line

if TYPE_CHECKING:
    from inferometer.client.evaluating.benchmarks import BenchSystem
    from inferometer.evaluators.evaluation import Evaluation
    from inferometer.evaluators.jobs.job import Job


SYNTHETIC = (
    "synthetic",
    *(f"synthetic/{place}" for place in ("host", "device", "pinned", "pageable", "gpu")),
)
_BATCHES, _SEED = ("batch_size", "num_batches", "num_warmup_batches"), ("seed",)
_DEVICES = "Several devices or processes"
_LAYOUTS = click.Choice(["NCHW", "NHWC"], case_sensitive=False)


def _json_object(value: Any) -> dict[str, Any]:
    """Converts the value of an option: a JSON object; an empty text means an empty object."""
    if isinstance(value, dict):
        return value
    try:
        found = json.loads(value.strip() or "{}")
    except (ValueError, RecursionError) as error:
        raise click.BadParameter(f"{value} is not JSON: {error}") from error
    if not isinstance(found, dict):
        raise click.BadParameter(f'{value} is not a JSON object, such as {{"num_classes": 1000}}')
    return found


def _gpu_list(value: Any) -> tuple[int, ...]:
    """Converts the value of an option: GPU indices, separated by commas or colons; empty for the CPU."""
    if isinstance(value, tuple):
        return value
    parts = [part.strip() for part in str(value).replace(":", ",").split(",") if part.strip()]
    if not all(part.isascii() and part.isdecimal() for part in parts):
        raise click.BadParameter(
            f"{value} is not a list of GPUs; write indices separated by commas, such as 0,1"
        )
    if len(set(parts)) != len(parts):
        raise click.BadParameter(f"{value} names a GPU twice")
    return tuple(map(int, parts))


model_options = options(
    option(
        "--model",
        "--model_name",
        "model",
        required=True,
        metavar="NAME",
        help="Model: a DLBS id, such as alexnet, resnet50 or deep_mnist, which names an architecture; or "
        "the name of a manifest.",
    ),
    option("--model_version", metavar="VERSION", help="Version or constraint.  [default: the id's]"),
    option(
        "--framework_name",
        envvar="AGENT_FRAMEWORK",
        show_envvar=True,
        metavar="NAME",
        help="Framework.  [default: MXNet with --kv_store, else the first installed one that has the model]",
    ),
    option(
        "--device",
        type=click.Choice(["cpu", "gpu"], case_sensitive=False),
        help="Device.  [default: gpu with --num_gpus or --gpus, else cpu]",
    ),
    option(
        "--num_gpus", type=WHOLE_NUMBER, metavar="N", help="Number of GPUs to use from CUDA_VISIBLE_DEVICES."
    ),
    option(
        "--gpus", type=_gpu_list, metavar="LIST", help="The GPUs by index, such as 0,1; empty for the CPU."
    ),
    option(
        "--dtype",
        type=click.Choice(["float", "float32", "float16", "bfloat16"], case_sensitive=False),
        default="float32",
        help="Precision; float is float32. A GPU has float16; training scales its loss.",
    ),
    boolean(
        "--cudnn_benchmark",
        "--cudnn_autotune",
        "cudnn_benchmark",
        default=True,
        help="Let cuDNN time its algorithms and take the fastest; no effect on a CPU.",
    ),
    allocator_option(),
    option("--weights", type=WEIGHTS, default="random", help="Weights to begin with."),
    request_options(TrainingData, only=_SEED, heading=MODEL),
    option("--threads", type=COUNT, metavar="N", help="CPU threads per operator and process."),
    option(
        "--model_opts", type=_json_object, default="{}", metavar="JSON", help="Options of the model, as JSON."
    ),
    heading=MODEL,
)
"""Adds the options that select the model and its device."""

data_options = options(
    option(
        "--data_dir",
        type=InputPath(),
        metavar="PATH",
        help="Dataset: a folder or a file. If empty, the data is synthetic.",
    ),
    option("--dataset_name", metavar="NAME", help="Dataset with a manifest, instead of --data_dir."),
    option(
        "--data_backend",
        metavar="NAME",
        help="Format of --data_dir: recordio, caffe_lmdb, image_folder and others.  [default: detected]",
    ),
    option(
        "--data",
        type=click.Choice(SYNTHETIC, case_sensitive=False),
        default="synthetic",
        help="Location of synthetic data: a batch on the device stays there, and is not copied in each step.",
    ),
    request_options(TrainingData, only=("shuffle", "workers"), heading=DATA),
    option(
        "--loader",
        type=click.Choice(LOADERS, case_sensitive=False),
        default=LOADERS[0],
        help="Kind of the workers.",
    ),
    request_options(TrainingData, but=("shuffle", "workers", *_SEED), heading=DATA),
    request_options(TrainingOptions, only=_BATCHES),
    request_options(TrainingRequest, only=("fail_on_error",), heading=DATA),
    heading=DATA,
)
"""Adds the options that select the data."""

training_options = options(
    request_options(TrainingOptions, but=(*_BATCHES, "api")),
    request_options(TrainingRequest, but=("fail_on_error", "tracer_address", "trace_url")),
    request_options(TrainingOptions, only=("api",)),
    option(
        "--kv_store",
        type=click.Choice(KV_STORES, case_sensitive=False),
        help="How MXNet sums gradients.  [default: device for several GPUs, dist_sync for several ranks]",
    ),
    option("--kv_num_workers", type=COUNT, metavar="N", help="Another name for --num_ranks."),
    request_options(RankRequest, only=("num_servers",), heading=_DEVICES),
    option(
        "--dist_backend",
        type=click.Choice(DIST_BACKENDS, case_sensitive=False),
        help="How PyTorch sums gradients over ranks.  [default: gloo on CPUs, nccl on GPUs]",
    ),
    request_options(RankRequest, but=("num_servers",), heading=_DEVICES),
    heading=_DEVICES,
)
"""Adds the options of training."""

result_options = options(
    options(
        option(
            "--repeat",
            type=click.IntRange(1, 1000),
            default=1,
            metavar="N",
            help="Repeat N times, each in fresh processes, as one group; its last line is the interval over "
            "the processes.",
        ),
        option(
            "--trace_level",
            metavar="LEVEL",
            help="Trace level, as for agent predict dataset.  [default: APPLICATION_TRACE]",
        ),
        heading=MEASUREMENT,
    ),
    database_options,
    option(
        "--output",
        type=click.Choice(["text", "dlbs"], case_sensitive=False),
        default="text",
        help="dlbs also prints the results as __key__=JSON, which DLBS's log parser reads.",
    ),
    tracer_options,
    publication_options,
    options(
        boolean("--cudnn_fastest", help="A switch of Lua Torch, which --cudnn_benchmark includes."),
        option("--input_layout", type=_LAYOUTS, default="NCHW", help="Layout of the data; NCHW only."),
        option("--model_layout", type=_LAYOUTS, default="NCHW", help="Layout of the model; NCHW only."),
        boolean("--nvidia_layers", help="Layers of NVIDIA's MXNet, which are not supported."),
        option(
            "--workspace",
            type=WHOLE_NUMBER,
            metavar="MB",
            help="Workspace of convolutions, which cuDNN chooses here.",
        ),
        boolean("--use_dali", help="NVIDIA's DALI, which is not supported."),
        heading="Accepted for DLBS",
    ),
    heading=OUTPUT,
)
"""Adds the options of repetition, output and publishing, and those that only DLBS has."""


_Made: TypeAlias = "tuple[Callable[[], Job[Evaluation[Any]]], Iterable[str]]"
"""Makes the job of a benchmark; and notes for the user."""
_Make: TypeAlias = "Callable[[dict[str, Any], BenchSystem], _Made]"
_DEFAULT = "dlbs"
_TRUTHS = {"true", "false"}


class BenchCommand(Command):
    """A command without arguments, whose boolean options also accept their value as the next word."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Parses the arguments, treating ``--data_shuffle true`` as ``--data_shuffle=true``."""
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
    """Run a model forward for --num_batches batches, like agent predict dataset."""
    _finish(given, "inference", _infer)


@bench.command(cls=BenchCommand)
@model_options
@data_options
@request_options(TrainingOptions, only=("num_epochs",))
@request_options(IngestionRequest, but=("batch_size", "fail_on_error"))
@result_options
def ingestion(**given: Any) -> None:
    """Load the batches of a dataset for a model, and compute nothing."""
    _finish(given, "data_ingestion", _ingest)


@bench.command(_DEFAULT, cls=BenchCommand)
@boolean("--forward_only", default=None, help="Benchmark inference, else training.")
@option(
    "--phase", type=click.Choice(["training", "inference"], case_sensitive=False), help="What to benchmark."
)
@boolean("--data_loader_only", help="Load the data only, like bench ingestion.")
@model_options
@data_options
@training_options
@result_options
def dlbs(forward_only: bool | None, phase: str | None, data_loader_only: bool, **given: Any) -> None:
    """Run the benchmark that --forward_only or --phase selects, or train: agent bench without subcommand."""
    if forward_only is not None and phase is not None and forward_only != (phase.lower() == "inference"):
        raise ConfigurationError(
            f"forward_only is {str(forward_only).lower()} and phase {phase}; leave out one of them"
        )
    if data_loader_only:
        _finish(given, "data_ingestion", _ingest)
    if forward_only or (phase or "").lower() == "inference":
        _finish(given, "inference", _infer)
    _finish(given, "training", _train)


def _finish(given: dict[str, Any], phase: str, make: _Make) -> NoReturn:
    """Runs a benchmark and exits with its exit code; DLBS's format also has lines for a failure."""
    from inferometer.client.evaluating.benchmarks import (
        experiment_of,
        failure_lines,
        read_system,
        result_lines,
        take_tracing,
    )
    from inferometer.client.evaluating.running import print_summary, run_job

    dlbs = given["output"].lower() == "dlbs"
    count = given["num_gpus"] or len(given["gpus"] or ())

    def show(evaluation: Evaluation) -> None:
        print_summary(evaluation)
        if dlbs:
            gpus = evaluation.system.device.is_gpu * max(1, count)
            for line in result_lines(experiment_of(given, phase, gpus), evaluation):
                click.echo(line)

    try:
        invocation, values = current_invocation(), dict(given)
        if make is not _ingest:
            take_tracing(values, invocation)
        system = read_system(values, invocation)
        job, notes = make(values, system)
        for note in (*system.notes, *notes):
            invocation.notify(note)
        publish, stable = given["publish"], given["require_stable"]
        code = run_job(invocation, job(), publish=publish, require_stable=stable, show=show)
    except InferometerError as error:
        if dlbs:
            for line in failure_lines(experiment_of(given, phase, count), one_line(error)):
                click.echo(line)
        raise
    click.get_current_context().exit(code)


def _train(given: dict[str, Any], system: BenchSystem) -> _Made:
    from inferometer.client.evaluating.benchmarks import read_training
    from inferometer.evaluators.kinds.training.job import training_job

    return partial(training_job, *read_training(given, system), given["repeat"]), ()


def _infer(given: dict[str, Any], system: BenchSystem) -> _Made:
    from inferometer.client.evaluating.benchmarks import inference_notes, read_inference
    from inferometer.evaluators.kinds.batches.job import evaluation_job

    asked = click.get_current_context().get_parameter_source("workers") is ParameterSource.COMMANDLINE
    request = read_inference(given, system, given["workers"] if asked else None)
    return partial(evaluation_job, request), inference_notes(given)


def _ingest(given: dict[str, Any], system: BenchSystem) -> _Made:
    from inferometer.client.evaluating.benchmarks import read_data
    from inferometer.evaluators.kinds.ingestion.job import ingestion_job

    request = IngestionRequest.of(system.request, given, read_data(given))
    return partial(ingestion_job, request, given["repeat"]), ()
