"""The options of load: when queries arrive, how long, what is judged, and how they are batched."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import click

from client.command import boolean
from client.finite_float import FiniteFloatRange
from client.load.defaults import ARRIVAL, INITIAL_QPS


def load_options(function: Callable[..., Any]) -> Callable[..., Any]:
    """The options that ``predict workload`` and ``predict max-qps`` have in common."""
    return _arrival_options(_system_options(function))


def _arrival_options(function: Callable[..., Any]) -> Callable[..., Any]:
    """When queries arrive, how long, and what is judged."""
    options = (
        click.option(
            "--initial_qps",
            type=FiniteFloatRange(min=0, min_open=True),
            metavar="QPS",
            help=f"Queries a second: the rate, or where a search begins.  [default: {INITIAL_QPS:g}]",
        ),
        click.option(
            "--arrival",
            metavar="PROCESS",
            help="When queries arrive: constant, poisson, gamma:cv=2, bursts:on_s=1,off_s=1, "
            f"ramp:from_share=0.1,to_share=1,over_s=60.  [default: {ARRIVAL}]",
        ),
        click.option(
            "--percentile",
            type=FiniteFloatRange(0, 100, min_open=True, max_open=True),
            default=99.0,
            show_default=True,
            metavar="P",
            help="Of the latencies, which the bound is for.",
        ),
        click.option(
            "--min_duration",
            "min_duration_s",
            type=FiniteFloatRange(min=0),
            metavar="S",
            help="Send queries for so long at the least.",
        ),
        click.option(
            "--min_queries",
            type=click.IntRange(min=1),
            metavar="N",
            help="Send so many queries at the least.",
        ),
        click.option(
            "--timeout_ms",
            type=FiniteFloatRange(min=1),
            default=10_000.0,
            show_default=True,
            metavar="MS",
            help="Give a query up so long after it was due.",
        ),
        click.option(
            "--warmup",
            "warm_up_queries",
            type=click.IntRange(min=0),
            default=16,
            show_default=True,
            metavar="N",
            help="Queries that are sent before, and not measured.",
        ),
        boolean("--force", help="Send more than this machine was found to send on time."),
    )
    for option in reversed(options):
        function = option(function)
    return function


def _system_options(function: Callable[..., Any]) -> Callable[..., Any]:
    """How queries are batched, and what they predict."""
    options = (
        click.option(
            "--max_batch_size",
            type=click.IntRange(1, 4096),
            default=1,
            show_default=True,
            metavar="N",
            help="Queries that are predicted together at the most, in this process.",
        ),
        click.option(
            "--max_queue_delay_ms",
            type=FiniteFloatRange(min=0),
            default=0.0,
            show_default=True,
            metavar="MS",
            help="How long a query waits for others to be predicted with it.",
        ),
        boolean("--include_preprocess", help="Preprocess under load, too; else inputs are prepared before."),
        boolean("--synthetic", help="Predict random tensors instead of a dataset's inputs."),
        click.option("--dataset_name", metavar="NAME", help="Inputs.  [default: those that the model names]"),
        click.option(
            "--dataset_path",
            type=click.Path(path_type=Path),
            metavar="PATH",
            help="Inputs: a folder of class folders, a zip or an .npz.",
        ),
    )
    for option in reversed(options):
        function = option(function)
    return function
