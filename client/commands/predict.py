"""``agent predict`` and ``agent measure``: evaluate a model, load it, and run the kinds that plug-ins add."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, NoReturn

import click
from click.core import ParameterSource

from inferometer.agent.tracing.recorder import TraceLevel
from inferometer.client.cli.command import (
    COUNT,
    COUNTS,
    FILE,
    INPUT,
    NOT_NEGATIVE,
    POSITIVE,
    WHOLE_NUMBER,
    Command,
    FiniteFloatRange,
    Group,
    boolean,
    database_options,
    option,
    options,
)
from inferometer.client.cli.options import (
    dataset_options,
    publication_options,
    repeat_option,
    request_options,
    system_options,
    tracer_options,
)
from inferometer.evaluators.jobs.options import (
    ANSWER_TIMEOUT_S,
    BATCH_SIZE,
    TARGET_CI_PERCENT,
    TOP_CLASSES,
    needs_system,
    options_of,
)
from inferometer.evaluators.kinds.load.request import LoadRequest, MaxQpsRequest, WorkloadRequest
from inferometer.evaluators.kinds.registry import every_kind, find_kind, plugged_kinds
from inferometer.manifests.errors import ConfigurationError

if TYPE_CHECKING:
    from inferometer.evaluators.jobs.job import DatasetChoice, EvaluationRequest, SystemRequest


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
    from inferometer.client.cli.command import current_invocation
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


_LENGTH = ("min_duration_s", "min_batches", "target_ci_percent", "time_budget_s")
_LARGEST = 2**31 - 1  # the upper limit of counts; see BatchOptions


evaluation_options = options(
    system_options,
    option(
        "-b",
        "--batch_size",
        "batch_sizes",
        type=COUNTS,
        default=BATCH_SIZE,
        metavar="N",
        help="Inputs per batch; predict dataset takes several with commas, and prints one table of them. "
        "Unless given, 1 for a model of images of any size.",
    ),
    option(
        "-p",
        "--partition_list_size",
        type=WHOLE_NUMBER,
        show_default=False,
        default=0,
        metavar="N",
        help="Inputs per part of the dataset.  [default: the batch size]",
    ),
    option(
        "--preprocess_threads",
        type=WHOLE_NUMBER,
        metavar="N",
        help="Threads that read and preprocess ahead; 0 for none.",
    ),
    boolean("--overlap", default=None, help="Preprocess while the model predicts.  [default: on a GPU only]"),
    option(
        "--min_duration",
        "min_duration_s",
        type=NOT_NEGATIVE,
        default=0.0,
        show_default=False,
        metavar="S",
        help="Repeat the inputs until S seconds are measured.",
    ),
    option(
        "--min_batches",
        type=WHOLE_NUMBER,
        default=0,
        show_default=False,
        metavar="N",
        help="Repeat the inputs until N full batches are measured.",
    ),
    option(
        "--target_ci",
        "target_ci_percent",
        type=FiniteFloatRange(0, 100, min_open=True),
        metavar="PERCENT",
        help="Repeat the inputs for a 95 % interval of p50 within ±PERCENT, for a time that a pilot sets.  "
        f"[default: {TARGET_CI_PERCENT:g} for a whole dataset, not for URLs or deep traces]",
    ),
    option(
        "--time_budget",
        "time_budget_s",
        type=POSITIVE,
        metavar="S",
        help="End repeating after S seconds.  [default: 30 for --target_ci]",
    ),
    repeat_option("each in a fresh process, as one group; its last line is the interval over the processes."),
    boolean("--fail_on_error", help="Stop at the first input that fails."),
    boolean("--publish_predictions", help="Also publish the prediction of every input."),
    option(
        "--pictures",
        type=FILE,
        metavar="DIR",
        help="Draw the first predictions over their images: boxes, masks or the enhanced image, as PNG files "
        "in this folder.  [default: predict urls draws into the data directory, unless --publish=false]",
    ),
    option("--picture_count", type=COUNT, metavar="N", help="How many pictures.  [default: 20]"),
    option(
        "--trace_level",
        metavar="LEVEL",
        help="Trace level: "
        + ", ".join(level.name for level in TraceLevel)
        + ".  [default: APPLICATION_TRACE]",
    ),
    boolean(
        "--leveled",
        help="Evaluate once at each level that a deeper one would disturb: MODEL_TRACE, FRAMEWORK_TRACE, "
        "on a GPU SYSTEM_LIBRARY_TRACE; --trace_level names another deepest one.",
    ),
    tracer_options,
    option(
        "--agent_timeout",
        type=POSITIVE,
        default=ANSWER_TIMEOUT_S,
        metavar="S",
        help="Timeout of the agent for one batch.",
    ),
)
"""Adds the options that every evaluation batch by batch has."""


@click.group(cls=Group, aliases={"qps": "max-qps", "findmaxqps": "max-qps", "max_qps": "max-qps"})
def predict() -> None:
    """Evaluate a model and publish the results."""


predict.add_command(workload)
predict.add_command(max_qps)


@predict.command(cls=Command)
@evaluation_options
@option(
    "--num_file_parts",
    type=int,
    metavar="N",
    help="Parts to evaluate, once; -1 for all.  [default: all, and again for --target_ci]",
)
@option(
    "--warmup_num_file_parts",
    type=WHOLE_NUMBER,
    default=1,
    metavar="N",
    help="Parts to run first without measuring.",
)
@option("--dataset_category", metavar="NAME", help="Category of the dataset.  [default: any]")
@dataset_options
def dataset(**given: Any) -> None:
    """Evaluate a model over a dataset: latency, throughput, top-1 and top-5 accuracy.

    The first parts run once to warm up and are not measured. Latency is the time of a full batch from host
    memory to host memory; the last, smaller batch counts for accuracy but not for latency. By default, a
    small dataset is repeated until p50 is known to 5 %, for 30 s at most; accuracy counts each input once.
    """
    _evaluate(given, show_inputs=False)


@predict.command(cls=Command)
@evaluation_options
@option(
    "--urls_file_path",
    type=INPUT,
    required=True,
    metavar="FILE",
    help="File with one URL or path per line; blank lines and # comments are skipped, paths are relative to "
    "the file.",
)
@option(
    "--duplicate_input",
    type=click.IntRange(1, _LARGEST),
    default=1,
    metavar="N",
    help="How often to repeat the list.",
)
@option(
    "--num_urls_parts",
    "--num_url_parts",
    "num_file_parts",
    type=click.IntRange(-1, _LARGEST),
    default=-1,
    metavar="N",
    help="Parts to evaluate; -1 for all.",
)
@option(
    "--num_warmup_url_parts",
    "warmup_num_file_parts",
    type=click.IntRange(0, _LARGEST),
    default=1,
    metavar="N",
    help="Parts to run first without measuring.",
)
def urls(**given: Any) -> None:
    """Evaluate a model over the images that a file lists: predictions, latency, throughput.

    The process that runs the model fetches the URLs: this one, or a served agent within its own limits. Files
    are always read here. The inputs have no labels, so there is no accuracy; the first predictions are
    printed. The warm-up fetches its inputs as well.
    """
    if given["num_file_parts"] == 0:
        raise ConfigurationError("num_urls_parts is 0; it must be at least 1, or -1 for all")
    _evaluate(given, show_inputs=True)


def _evaluate(given: dict[str, Any], *, show_inputs: bool) -> NoReturn:
    """Runs the evaluations that the options describe, and exits with their exit code."""
    # Imported here because the help does not need it.
    from inferometer.client.cli.command import current_invocation
    from inferometer.client.evaluating.parsing import take_dataset, take_system
    from inferometer.client.evaluating.predictions import pictures_of
    from inferometer.client.evaluating.running import run_evaluation, run_sweep
    from inferometer.evaluators.jobs.job import default_batch_size

    invocation, sizes = current_invocation(), given["batch_sizes"]
    if show_inputs and len(sizes) > 1:
        raise ConfigurationError("several values of batch_size are for predict dataset; give one")
    tracer, dataset = invocation.configuration.tracer, take_dataset(given)
    given["trace_level"] = _trace_level(given, tracer.level)
    given["tracer_address"] = given["tracer_address"] or tracer.address
    given["trace_url"] = given["trace_url"] or tracer.url
    gathered = {"publish": given["publish"], "predictions": given["publish_predictions"]}
    require_stable = given["require_stable"]
    system = take_system(
        given, invocation, dataset, preprocess_threads=given["preprocess_threads"], overlap=given["overlap"]
    )
    if click.get_current_context().get_parameter_source("batch_sizes") is ParameterSource.DEFAULT:
        sizes = (default_batch_size(system, dataset, invocation.catalog),)
    if given["pictures"] and len(sizes) > 1:
        raise ConfigurationError("pictures are those of one evaluation; give one batch_size")
    pictures = pictures_of(given["pictures"], given["picture_count"])
    kept = None if show_inputs else pictures.most if pictures else 0
    requests = [_request(given, system, dataset, size, kept) for size in sizes]
    if len(requests) > 1:
        code = run_sweep(invocation, requests, require_stable=require_stable, **gathered)
    else:
        code = run_evaluation(
            invocation,
            requests[0],
            show_inputs=show_inputs,
            require_stable=require_stable,
            pictures=pictures,
            **gathered,
        )
    click.get_current_context().exit(code)


def _request(
    given: Mapping[str, Any],
    system: SystemRequest,
    dataset: DatasetChoice,
    batch_size: int,
    kept: int | None,
) -> EvaluationRequest:
    """Returns the request of one evaluation, which keeps ``kept`` predictions; None keeps all."""
    from inferometer.evaluators.jobs.job import EvaluationRequest, inputs_for
    from inferometer.evaluators.kinds.batches.measurement import BatchOptions

    predictions, parts = given["publish_predictions"], given["num_file_parts"]
    published = predictions and given["publish"]
    partition = given["partition_list_size"] or batch_size
    return EvaluationRequest(
        system=system,
        dataset=inputs_for(
            system,
            dataset,
            synthetic=given.get("synthetic", False),
            batch_size=batch_size,
            seed=given["seed"],
            least=partition * max(parts or 0, given["warmup_num_file_parts"]),
        ),
        options=BatchOptions(
            batch_size=batch_size,
            partition_list_size=partition,
            num_file_parts=-1 if parts is None else parts,
            warmup_num_file_parts=given["warmup_num_file_parts"],
            feature_limit=0 if predictions else TOP_CLASSES,
            fail_on_error=given["fail_on_error"],
            **{name: given[name] for name in _LENGTH},
        ),
        trace_level=given["trace_level"],
        leveled=given["leveled"],
        repeat=given["repeat"],
        measure_enough=parts is None,
        keep_predictions=published or kept != 0,
        keep_most=None if published else kept,
        tracer_address=given["tracer_address"],
        trace_url=given["trace_url"],
    )


def _trace_level(given: Mapping[str, Any], default: str | None) -> TraceLevel:
    """Returns the trace level of the options; for a leveled evaluation the deepest, whatever the default."""
    if given["leveled"] and not given["trace_level"]:
        return TraceLevel.SYSTEM_LIBRARY_TRACE if given["gpu"] else TraceLevel.FRAMEWORK_TRACE
    name = given["trace_level"] or default
    return TraceLevel.named(name) if name else TraceLevel.APPLICATION_TRACE


class _Kinds(Group):
    """A group with one command per plug-in kind; its options are those of the kind's request."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Returns the names of the kinds that can be imported and have a request."""
        plugged = plugged_kinds()
        return sorted(kind.name for kind in every_kind() if kind.name in plugged and kind.request is not None)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Lists the commands, or says that there are none."""
        super().format_commands(ctx, formatter)
        if not self.list_commands(ctx):
            formatter.write_paragraph()
            formatter.write_text(
                "No kind is installed: a plug-in adds one by the entry point inferometer.kinds."
            )

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Creates the command of a kind."""
        if cmd_name not in plugged_kinds():
            return None
        kind = find_kind(cmd_name)
        if kind.request is None:
            raise ConfigurationError(f"kind {cmd_name} has no request, and so no command")

        def run(**given: Any) -> None:
            _measure(cmd_name, given)

        documentation = type(kind).__doc__ or f"Measure {kind.phrase}."
        every = (
            system_options if needs_system(kind.request) else options(database_options, publication_options)
        )
        return click.command(cmd_name, cls=Command, help=documentation)(
            every(request_options(kind.request)(run))
        )


@click.command("measure", cls=_Kinds)
def measure() -> None:
    """Measure what a plug-in adds: each kind of measurement is a command."""


def _measure(name: str, given: dict[str, Any]) -> None:
    """Builds the request from the options, runs its job, and exits with the job's exit code."""
    # Imported here because the help does not need it.
    from inferometer.client.cli.command import current_invocation
    from inferometer.client.evaluating.parsing import take_system
    from inferometer.client.evaluating.running import run_job
    from inferometer.evaluators.datasets.opening import DatasetChoice

    invocation, kind = current_invocation(), find_kind(name)
    kept = {"publish": given.pop("publish"), "require_stable": given.pop("require_stable")}
    request: Any = kind.request
    values = {each.name: given[each.name] for each in options_of(request)}
    if needs_system(request):
        values["system"] = take_system(given, invocation, DatasetChoice())
    click.get_current_context().exit(run_job(invocation, kind.job(request(**values)), **kept))
