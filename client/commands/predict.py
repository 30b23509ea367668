"""``agent predict``, ``agent tune`` and ``agent measure``: evaluate, load-test, tune or measure a model."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NoReturn

import click
from click.core import ParameterSource

from inferometer.client.cli.command import (
    COUNT,
    DATA,
    FILE,
    MEASUREMENT,
    MODEL,
    OUTPUT,
    Command,
    Group,
    boolean,
    current_invocation,
    database_options,
    option,
    options,
    tls_options,
)
from inferometer.client.cli.options import (
    dataset_options,
    publication_options,
    request_options,
    system_options,
    system_options_beside,
)
from inferometer.evaluators.jobs.options import needs_system, options_of, values_of
from inferometer.evaluators.jobs.request import BatchSystemOptions, DatasetOptions
from inferometer.evaluators.kinds.batches.request import BatchOptions, EvaluationRequest, UrlsOptions
from inferometer.evaluators.kinds.load.request import LoadRequest, MaxQpsRequest, WorkloadRequest
from inferometer.evaluators.kinds.registry import every_kind, find_kind, known_kinds
from inferometer.evaluators.kinds.tuning.request import TuningRequest
from inferometer.manifests.errors import ConfigurationError

_SERVING = ("max_batch_size", "max_queue_delay_ms", "instances", "gpus", "pin")
_STATISTICS = ("server_statistics_hz", "metrics_url")


def load_options_of(request: type[LoadRequest]) -> Callable[[Any], Any]:
    """Adds the options for a load test, the model and the inputs."""
    return options(
        system_options,
        request_options(request, but=(*_SERVING, *_STATISTICS)),
        request_options(request, only=_SERVING, heading="Serving in this process"),
        request_options(request, only=_STATISTICS, heading="Statistics of the server"),
        boolean("--allow_invalid", help="Exit with 0 even if the result is INVALID."),
        dataset_options,
        heading=OUTPUT,
    )


load_options = load_options_of(LoadRequest)
"""Adds the options that both load-test commands share."""


def _mix_option(text: str) -> Callable[[Any], Any]:
    return options(option("--mix", type=FILE, metavar="FILE", help=text), heading=MEASUREMENT)


@click.command(cls=Command)
@load_options_of(WorkloadRequest)
@_mix_option("Put several models under load: agent measure mix.")
def workload(**given: Any) -> None:
    """Send queries as they arrive in production, and measure the latency of each.

    Queries are sent when they are due, regardless of earlier ones; latency counts from the time a query was
    due to its response. By default, the run lasts at least 10 s and 512 queries.
    """
    _put(WorkloadRequest, "mix", given)


def _put_mix(name: str, given: dict[str, Any]) -> None:
    """Runs the kind of measurement of a mix, and exits with its exit code."""
    request: Any = find_kind(name).request
    known = {"publish", "require_stable", "allow_invalid", *(each.name for each in options_of(request))}
    if others := sorted(_named() - known):
        raise ConfigurationError(
            f"mix: {others[0]} is not an option of a mix; those of its models are in the file"
        )
    _measure(name, {each: value for each, value in given.items() if each in known and value is not None})


@click.command("max-qps", cls=Command)
@load_options_of(MaxQpsRequest)
@_mix_option("Search for the factor of a mix: agent measure mix_search.")
def max_qps(**given: Any) -> None:
    """Search for the highest rate at which a latency percentile stays within a bound.

    The answer is an interval, or none. Each probe draws its queries from its own seed, and is stored with
    the answer.
    """
    _put(MaxQpsRequest, "mix_search", given)


def _put(kind: type[WorkloadRequest] | type[MaxQpsRequest], of_mix: str, given: dict[str, Any]) -> NoReturn:
    """Runs the load test that the options describe, or that of a mix, and exits with its exit code."""
    if given["mix"] is not None:
        _put_mix(of_mix, given)
    del given["mix"]
    # Imported here because the help does not need it.
    from inferometer.client.api.requests import inputs_of, take_system
    from inferometer.client.evaluating.running import run_job
    from inferometer.evaluators.kinds.load.job import load_job

    invocation, inputs = current_invocation(), inputs_of(given)
    dataset, tracer = inputs.choice(), invocation.configuration.tracer
    if given.get("scenario") is None:  # in a scenario, LoadGen sends the queries
        given["tracer_address"] = given["tracer_address"] or tracer.address
    given["trace_url"] = given["trace_url"] or tracer.url
    system = take_system(invocation, given, _named(), dataset)
    synthetic = inputs.synthetic or (system.given is not None and not dataset.is_named)
    request = kind(
        system=system,
        dataset=dataset,
        synthetic=synthetic,
        seed=system.session.seed,
        **values_of(kind, given),
    )
    with invocation.waiting.during("measuring what this machine can send"):
        job = load_job(request)
    click.get_current_context().exit(run_job(invocation, job, **given))


_FIRST = ("batch_size", "partition_list_size")
_PARTS = ("num_file_parts", "warmup_num_file_parts")
_LISTED = ("urls_file_path", "duplicate_input")
evaluation_options = options(
    system_options,
    request_options(BatchSystemOptions, only=("agent_timeout_s",), heading=MODEL),
    request_options(BatchOptions, only=_FIRST, several=("batch_size",)),
    request_options(BatchSystemOptions, only=("preprocess_threads", "overlap")),
    request_options(BatchOptions, but=(*_FIRST, *_PARTS, "fail_on_error")),
    request_options(EvaluationRequest, only=("repeat",)),
    request_options(BatchOptions, only=("fail_on_error",)),
    request_options(EvaluationRequest, but=("repeat",)),
    boolean("--publish_predictions", help="Also publish the prediction of every input."),
    option(
        "--pictures",
        type=FILE,
        metavar="DIR",
        help="Draw the first predictions over their images: boxes, masks or the enhanced image, as PNG files "
        "in this folder.  [default: predict urls draws into the data directory, unless --publish=false]",
    ),
    option("--picture_count", type=COUNT, metavar="N", help="Maximum number of pictures.  [default: 20]"),
    heading=OUTPUT,
)
"""Adds the options of every batch-by-batch evaluation."""


@click.group(cls=Group, aliases={"qps": "max-qps", "findmaxqps": "max-qps", "max_qps": "max-qps"})
def predict() -> None:
    """Evaluate a model and publish the results."""


predict.add_command(workload)
predict.add_command(max_qps)


@predict.command(cls=Command)
@evaluation_options
@request_options(BatchOptions, only=_PARTS)
@request_options(DatasetOptions, only=("dataset_category",), heading=DATA)
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
@request_options(UrlsOptions, only=_LISTED, heading=DATA)
@request_options(UrlsOptions, but=_LISTED)
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
    from inferometer.client.api.requests import EvaluationChoice, take_system
    from inferometer.client.evaluating.running import pictures_of, run_evaluation, run_sweep

    invocation, sizes = current_invocation(), given["batch_sizes"] or (None,)
    if show_inputs and len(sizes) > 1:
        raise ConfigurationError("only predict dataset accepts several values of batch_size; give one")
    tracer = invocation.configuration.tracer
    level = None if given["leveled"] else tracer.level
    defaults = {"trace_level": level, "tracer_address": tracer.address, "trace_url": tracer.url}
    given |= {name: given[name] or default for name, default in defaults.items()}
    choice = EvaluationChoice(given)
    dataset = choice.inputs.choice(**choice.urls)
    predictions, publish = given["publish_predictions"], given["publish"]
    system = take_system(invocation, given, _named(), dataset, BatchSystemOptions)
    if given["pictures"] and len(sizes) > 1:
        raise ConfigurationError("pictures are drawn for one evaluation only; give one batch_size")
    pictures = pictures_of(given["pictures"], given["picture_count"])
    most = None if show_inputs or (predictions and publish) else pictures.most if pictures else 0
    if predictions:
        choice.batches["feature_limit"] = 0
    requests = [choice.request(invocation, system, dataset, size, keep_most=most) for size in sizes]
    gathered = {"publish": publish, "predictions": predictions, "require_stable": given["require_stable"]}
    if len(requests) > 1:
        code = run_sweep(invocation, requests, **gathered)
    else:
        code = run_evaluation(invocation, requests[0], show_inputs=show_inputs, pictures=pictures, **gathered)
    click.get_current_context().exit(code)


def _named() -> set[str]:
    """Returns the names of the options that are set on the command line, not by environment or default."""
    context = click.get_current_context()
    return {
        name for name in context.params if context.get_parameter_source(name) is ParameterSource.COMMANDLINE
    }


class _Kinds(Group):
    """A group with one command per kind that has a request, whose options are those of the request."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Returns the names of the kinds that can be imported and have a request."""
        return sorted(kind.name for kind in every_kind() if kind.request is not None)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in known_kinds():
            return None
        kind = find_kind(cmd_name)
        if kind.request is None:
            raise ConfigurationError(f"kind {cmd_name} declares no request, so it has no command")

        every = (
            system_options_beside(kind.request)
            if needs_system(kind.request)
            else options(database_options, publication_options, tls_options, heading=OUTPUT)
        )
        documentation = type(kind).__doc__ or f"Measure {kind.phrase}."
        command = click.command(cmd_name, cls=Command, help=documentation)
        return command(every(request_options(kind.request)(lambda **given: _measure(cmd_name, given))))


@click.command("measure", cls=_Kinds)
def measure() -> None:
    """Run a kind of measurement, such as generation, memory or tuning, or one of a plug-in."""


tuning_options = options(system_options_beside(TuningRequest), request_options(TuningRequest))
"""Adds the options of a tuning."""


@click.command(cls=Command)
@tuning_options
def tune(**given: Any) -> None:
    """Find the serving configuration with the highest rate within a latency bound.

    Instances, threads, batch sizes, delays and precisions race on the same arrivals: in this process, or on
    an agent or a server such as Triton, which loads the model anew for each and at the end as before. Losers
    are stopped early. The answer has an interval, and the probability that another configuration is better.
    """
    _measure("tuning", given)


def _measure(name: str, given: dict[str, Any]) -> None:
    """Builds the request from the options, runs its job, and exits with the job's exit code."""
    # Imported here because the help does not need it.
    from inferometer.client.api.requests import take_system
    from inferometer.client.evaluating.running import run_job

    invocation, kind = current_invocation(), find_kind(name)
    kept = {name: given.pop(name) for name in ("publish", "require_stable", "allow_invalid") if name in given}
    request: Any = kind.request
    tracer, known = invocation.configuration.tracer, {each.name for each in options_of(request)}
    defaults = {"tracer_address": tracer.address, "trace_url": tracer.url}
    values = {name: defaults[name] for name in known & defaults.keys()} | values_of(request, given)
    if needs_system(request):
        values["system"] = take_system(invocation, given, _named())
    click.get_current_context().exit(run_job(invocation, kind.job(request(**values)), **kept))
