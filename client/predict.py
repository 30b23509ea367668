"""``agent predict``: evaluate a model."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

import click

from agent.trace_level import TraceLevel
from client.command import Command, Group, boolean
from client.finite_float import FiniteFloatRange
from client.load.commands import max_qps, workload
from client.remote.defaults import ANSWER_TIMEOUT_S
from client.system_options import system_options
from manifests.errors import ConfigurationError

if TYPE_CHECKING:
    from client.evaluating.request import EvaluationRequest

_LARGEST = 2**31 - 1  # of a number of parts; see EvaluationOptions


def model_options(function: Callable[..., Any]) -> Callable[..., Any]:
    """The options of an evaluation batch by batch, with those of ``system_options``."""
    options = (
        click.option(
            "--preprocess_threads",
            type=click.IntRange(min=0),
            metavar="N",
            help="Threads that read and preprocess ahead; 0 for none.",
        ),
        boolean(
            "--overlap", default=None, help="Preprocess while the model predicts.  [default: on a GPU only]"
        ),
        boolean("--fail_on_error", help="Stop at the first input that fails."),
        boolean("--publish_predictions", help="Publish every input's prediction too."),
        click.option(
            "--trace_level",
            metavar="LEVEL",
            help="How deep to look: "
            + ", ".join(level.name for level in TraceLevel)
            + ".  [default: APPLICATION_TRACE]",
        ),
        boolean(
            "--leveled",
            help="Evaluate once at each level that a deeper one would disturb: MODEL_TRACE, FRAMEWORK_TRACE, "
            "on a GPU SYSTEM_LIBRARY_TRACE; --trace_level names another deepest one.",
        ),
        click.option("--tracer_address", metavar="ADDRESS", help="Where spans are sent."),
        click.option(
            "--agent_timeout",
            type=FiniteFloatRange(min=0, min_open=True),
            default=ANSWER_TIMEOUT_S,
            show_default=True,
            metavar="S",
            help="An agent that takes longer for a batch is lost.",
        ),
    )
    for option in reversed(options):
        function = option(function)
    return system_options(_batch_options(function))


def _batch_options(function: Callable[..., Any]) -> Callable[..., Any]:
    """The options that cut the inputs into batches and parts."""
    batch_size = click.option(
        "-b",
        "--batch_size",
        type=click.IntRange(min=1),
        default=64,
        show_default=True,
        metavar="N",
        help="Inputs in a batch.",
    )
    partition_list_size = click.option(
        "-p",
        "--partition_list_size",
        type=click.IntRange(min=0),
        default=0,
        metavar="N",
        help="Inputs in one part of the dataset.  [default: the batch size]",
    )
    return batch_size(partition_list_size(function))


@click.group(cls=Group, aliases={"qps": "max-qps", "findmaxqps": "max-qps", "max_qps": "max-qps"})
def predict() -> None:
    """Evaluate a model and publish what was measured."""


predict.add_command(workload)
predict.add_command(max_qps)


@predict.command(cls=Command)
@model_options
@click.option(
    "--num_file_parts",
    type=int,
    default=-1,
    show_default=True,
    metavar="N",
    help="Parts to evaluate; -1 for all.",
)
@click.option(
    "--warmup_num_file_parts",
    type=click.IntRange(min=0),
    default=1,
    show_default=True,
    metavar="N",
    help="Parts to run first without measuring.",
)
@click.option("--dataset_category", metavar="NAME", help="Category of the dataset.  [default: any]")
@click.option("--dataset_name", metavar="NAME", help="Dataset.  [default: the one that the model names]")
@click.option(
    "--dataset_path",
    type=click.Path(path_type=Path),
    metavar="PATH",
    help="Dataset: a folder of class folders, a zip or an .npz.",
)
def dataset(**given: Any) -> None:
    """Evaluate a model over a dataset: latency, throughput, top-1 and top-5 accuracy.

    The first parts are run once to warm up and are not measured. Latency is that of a full batch from host
    memory to host memory; the last, smaller batch counts for the accuracy but not for the latency.
    """
    from client.evaluating.request import DatasetRequest

    if given["dataset_path"] and given["dataset_name"]:
        raise ConfigurationError("--dataset_path and --dataset_name both name a dataset; give one of them")
    _evaluate(DatasetRequest, given)


@predict.command(cls=Command)
@model_options
@click.option(
    "--urls_file_path",
    type=click.Path(path_type=Path),
    required=True,
    metavar="FILE",
    help="One URL or path a line; blank lines and # comments are skipped, paths are relative to the file.",
)
@click.option(
    "--duplicate_input",
    type=click.IntRange(1, _LARGEST),
    default=1,
    show_default=True,
    metavar="N",
    help="How many times the list is gone through.",
)
@click.option(
    "--num_urls_parts",
    "--num_url_parts",
    "num_file_parts",
    type=click.IntRange(-1, _LARGEST),
    default=-1,
    show_default=True,
    metavar="N",
    help="Parts to evaluate; -1 for all.",
)
@click.option(
    "--num_warmup_url_parts",
    "warmup_num_file_parts",
    type=click.IntRange(0, _LARGEST),
    default=1,
    show_default=True,
    metavar="N",
    help="Parts to run first without measuring.",
)
def urls(**given: Any) -> None:
    """Evaluate a model over the images that a file lists: predictions, latency, throughput.

    URLs are fetched by whoever runs the model: here, or by the served agent within its own limits. Files are
    read here. The inputs have no labels, so that there is no accuracy; the first predictions are printed.
    The warm-up fetches its inputs once more.
    """
    from client.evaluating.request import UrlsRequest

    if given["num_file_parts"] == 0:
        raise ConfigurationError("num_urls_parts is 0; it must be at least 1, or -1 for all")
    _evaluate(UrlsRequest, given)


def _evaluate(kind: type[EvaluationRequest], given: dict[str, Any]) -> NoReturn:
    """Evaluates what the options ask for, and ends with its exit code."""
    # Imported here because help needs none of it.
    from client.evaluating.evaluate import evaluate
    from client.invocation import current_invocation

    given["partition_list_size"] = given["partition_list_size"] or given["batch_size"]
    click.get_current_context().exit(evaluate(current_invocation(), kind(**given)))
