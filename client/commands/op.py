"""``agent op``: benchmarks single operators, and lists which of them each framework supports."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import click

from inferometer.client.cli.command import (
    COUNT,
    INPUT,
    MEASUREMENT,
    OPERATORS,
    OUTPUT,
    WHOLE_NUMBER,
    Command,
    Group,
    allocator_option,
    boolean,
    current_invocation,
    database_options,
    option,
    options,
)
from inferometer.client.cli.completing import categories, operators, several_frameworks
from inferometer.client.cli.options import publication_options, request_options
from inferometer.client.cli.output import OUTPUT_NAMES, output_options, report_options
from inferometer.evaluators.kinds.operators.opperf import OPPERF_FORMATS
from inferometer.evaluators.kinds.operators.options import PROFILERS, OperatorOptions

_Decorator = Callable[[Any], Any]


@click.group(cls=Group)
def op() -> None:
    """Benchmark single operators in MXNet, PyTorch and ONNX Runtime, on equal inputs.

    \b
      agent op run add conv2d --framework_name=MXNet,PyTorch,ONNXRuntime --run_backward
      agent op run --category=gemm --shapes=all -f markdown
      agent op run --all --framework_name=MXNet --ctx=cpu -p native -f opperf-json -o results.json
      agent op run conv2d --input data=32,3,224,224 --param kernel=3,3
      agent op list --category=pooling
    """  # noqa: D301 - the backspace tells click to leave the lines as they are


def _category_option(help_text: str) -> _Decorator:
    return option(
        "--category", "categories", multiple=True, metavar="NAME", help=help_text, shell_complete=categories
    )


def _frameworks_option(help_text: str) -> _Decorator:
    return option("--framework_name", metavar="NAMES", help=help_text, shell_complete=several_frameworks)


_what_options = options(
    _category_option("The operators of a group; repeat the option for several."),
    boolean("--all", "everything", help="Every operator of the table."),
    _frameworks_option("Frameworks, with commas between.  [default: all that are installed]"),
    option(
        "--shapes",
        metavar="NAMES",
        help="Sizes, with commas between: small, normal, large, skewed, huge (more than 2^31 elements), all "
        "for the first four, or sizes of all inputs such as 1024x1024.  [default: normal]",
    ),
    option(
        "--input",
        "inputs",
        multiple=True,
        metavar="NAME=SIZES",
        help="Custom sizes of an input of one operator, such as data=32,3,224,224; repeat it for others.",
    ),
    option(
        "--param",
        "parameters",
        multiple=True,
        metavar="NAME=VALUE",
        help="A parameter of one operator, such as kernel=3,3; repeat it for several.",
    ),
    option(
        "--cases",
        type=INPUT,
        metavar="FILE",
        help="Also the cases of this YAML file: a list of {operator, inputs: {…}, parameters: {…}}.",
    ),
    option(
        "--from_evaluation",
        metavar="ID",
        help="The operators that this traced evaluation ran, in its framework, on its device and with its "
        "threads.",
    ),
    heading=OPERATORS,
)
_how_options = options(
    request_options(OperatorOptions, only=("dtype",)),
    option(
        "--device",
        type=click.Choice(["cpu", "gpu"], case_sensitive=False),
        help="Device.  [default: gpu with --gpu, else cpu]",
    ),
    boolean("--gpu", "--use_gpu", help="Run on the GPU; an error if there is none."),
    option("--gpu_device_id", type=WHOLE_NUMBER, default=0, metavar="N", help="Index of the GPU."),
    option(
        "--threads",
        type=COUNT,
        metavar="N",
        help="CPU threads of an operator, equal in all frameworks.  [default: OMP_NUM_THREADS, else "
        "the cores]",
    ),
    allocator_option(),
    boolean("--run_backward", help="Also time the gradients, alone and together with the forward pass."),
    option(
        "--mode",
        "modes",
        multiple=True,
        metavar="NAME",
        help="What is timed: forward, backward or forward_backward; repeat it for several.  "
        "[default: forward]",
    ),
    option(
        "--form",
        "forms",
        multiple=True,
        metavar="NAME",
        help="How it runs: nd, sym or gluon of MXNet, eager or compile of PyTorch, graph of ONNX Runtime, or "
        "the parts of a fused operator; repeat it for several.  [default: the first of each framework]",
    ),
    request_options(OperatorOptions, but=("dtype", "seed")),
    request_options(OperatorOptions, only=("seed",)),
    heading=MEASUREMENT,
)
_opperf_options = options(
    option("--ctx", metavar="DEVICE", help="Device: cpu, gpu or gpu(N). Sets --device and --gpu_device_id."),
    option(
        "-p",
        "--profiler",
        type=click.Choice([*PROFILERS]),
        help="What to time: native means --mode=forward --mode=backward, python means --mode=forward "
        "--mode=forward_backward. MXNet's profiler is not used: times include the call from Python.",
    ),
    option(
        "--int64_tensor", type=click.Choice(["off", "on"]), help="on means --shapes=huge; off has no effect."
    ),
    heading="Accepted for opperf",
)


@op.command(cls=Command)
@click.argument("operators", nargs=-1, metavar="[OPERATOR]...", shell_complete=operators)
@_what_options
@_how_options
@options(
    boolean("--resume", help="Resume the newest interrupted run of the same benchmark, and keep its rows."),
    heading=MEASUREMENT,
)
@_opperf_options
@options(
    database_options,
    publication_options,
    report_options(
        *OPPERF_FORMATS,
        flags=("-f", "--format", "--output_format"),
        help="Output format. opperf-json and opperf-md are the formats of MXNet's opperf; md is the "
        "same as opperf-md, but json is not opperf's.",
    ),
    heading=OUTPUT,
)
def run(**given: Any) -> None:
    """Measure operators, and check their output.

    Each operator runs in each framework on the same inputs, in its own processes. Its output is compared
    with a reference; one that differs is a failed row. A row that a framework lacks states the reason. The
    exit code is 1 if a row failed or is wrong, and 0 if all are measured or missing with a reason.
    """
    # Imported here because the help does not need it.
    from inferometer.client.evaluating.operators import run_operators, traced_request
    from inferometer.evaluators.kinds.operators.request import read_request

    invocation, evaluation_id = current_invocation(), given.pop("from_evaluation")
    printing = {name: given.pop(name) for name in OUTPUT_NAMES}
    kept = {name: given.pop(name) for name in ("publish", "require_stable", "resume")}
    if evaluation_id is None:
        request, traced = read_request(given), None
    else:
        request, traced = traced_request(invocation, evaluation_id, given, OperatorOptions.of(given))
    code = run_operators(invocation, request, printing, traced=traced, **kept)
    click.get_current_context().exit(code)


@op.command("list", cls=Command)
@_category_option("Only this group; repeat the option for several.")
@_frameworks_option("Only these frameworks, with commas between.  [default: all]")
@boolean("--uncovered", help="The operators of each framework's own registry that the table lacks.")
@output_options
def list_operators(
    categories: tuple[str, ...], framework_name: str | None, uncovered: bool, **printing: Any
) -> None:
    """List the operators of the table, and how each framework runs them or why it does not.

    Imports the frameworks that are installed.
    """
    from inferometer.client.evaluating.operators import print_operators, print_uncovered

    show = print_uncovered if uncovered else print_operators
    show(current_invocation(), categories, framework_name, printing)
