"""Options shared by several commands: the model, its place, its inputs, and the destination of evaluations.

Options that requests declare are built from these declarations.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection
from typing import Any

import click

from inferometer.client.cli.command import (
    DATA,
    FILE,
    INPUT,
    MEASUREMENT,
    MODEL,
    OUTPUT,
    FiniteFloatRange,
    allocator_option,
    boolean,
    counts,
    database_options,
    option,
    options,
    tensor_shape,
    tls_options,
)
from inferometer.evaluators.jobs.options import Option, options_of, plain
from inferometer.evaluators.jobs.request import DatasetOptions, ScoreOptions, SystemOptions, TraceOptions

publication_options = options(
    boolean("--publish", default=True, help="Publish evaluations to the database."),
    boolean(
        "--require_stable",
        help="Exit with 9 if the conditions of an evaluation were not stable; it is published all the same.",
    ),
    heading=OUTPUT,
)
"""Adds ``publish`` and ``require_stable``."""


_OF_A_MODEL = (
    *("agent", "model_name", "model_version", "framework_name"),
    *("gpu", "gpu_device_id", "threads", "dtype"),
)


def request_options(
    request: type[Any],
    but: Collection[str] = (),
    only: Collection[str] | None = None,
    several: Collection[str] = (),
    heading: str = MEASUREMENT,
) -> Callable[[Any], Any]:
    """Adds the options that a request declares, in order; their parameters have the names of its fields.

    Adds those in ``only``, or all ``but`` some. Numeric options in ``several`` accept several values and have
    plural parameters. The heading of a measurement is above no model or inputs.
    """
    chosen = [each for each in options_of(request) if each.name not in but]
    above = dict.fromkeys((each.name for each in options_of(DatasetOptions)), DATA)
    above |= dict.fromkeys(_OF_A_MODEL, MODEL)
    above |= dict.fromkeys(("tracer_address", "trace_url", "trace_sample"), OUTPUT)
    above = above if heading == MEASUREMENT else {}
    return options(
        *(
            options(
                _option(each, each.name in several),
                heading=each.declared.heading or above.get(each.name, heading),
            )
            for each in chosen
            if only is None or each.name in only
        )
    )


def _option(each: Option, several: bool) -> Callable[[Any], Any]:
    shown = each.declared
    text = f"{shown.help}  [default: {shown.default_text}]" if shown.default_text else shown.help
    if each.kind == "bool":
        return boolean(*each.flags, each.name, help=text, default=each.asked)
    settings: dict[str, Any] = {} if each.asked is None else {"default": plain(each.asked)}
    if shown.variable is not None:
        settings |= {"envvar": shown.variable, "show_envvar": True}
    return option(
        *each.flags,
        f"{each.name}s" if several else each.name,
        type=counts if several else _type(each),
        metavar=shown.metavar,
        help=text,
        required=each.is_required,
        show_default=shown.shows_default,
        **settings,
    )


def _type(each: Option) -> Any:
    shown, within = each.declared, each.declared.within
    if shown.choices:
        return click.Choice(shown.choices, case_sensitive=not shown.ignores_case)
    if each.kind == "Path":
        return INPUT if shown.reads else FILE
    if each.kind.startswith("tuple[int"):
        return tensor_shape if within is None else counts
    if shown.made is not None:  # which takes the text
        return click.STRING
    if within is None:
        return {"int": click.INT, "float": FiniteFloatRange()}.get(each.kind)
    if each.kind == "int":
        return click.IntRange(math.ceil(within.least), None if within.most is None else int(within.most))
    open_end = within.leaves_out_most and within.most is not None
    return FiniteFloatRange(within.least, within.most, min_open=within.open, max_open=open_end)


def system_options_beside(request: type[Any] | None = None) -> Callable[[Any], Any]:
    """Adds ``system_options``, except for those that the request declares itself."""
    own = {each.name for each in options_of(request)} if request else ()
    return options(
        request_options(SystemOptions, but=own, heading=MODEL),
        allocator_option(" An agent has its own."),
        options(database_options, publication_options, heading=OUTPUT),
        tls_options,
        heading=MODEL,
    )


system_options = system_options_beside()
"""Adds the options that choose a model, the place where it runs, and the destination of its evaluation."""
tracer_options = request_options(TraceOptions, heading=OUTPUT)
"""Adds ``tracer_address`` and ``trace_url``."""
dataset_options = request_options(DatasetOptions, but=("dataset_category",), heading=DATA)
"""Adds the dataset options that evaluations and load tests share."""
score_options = request_options(ScoreOptions, heading="")
"""Adds the options that determine how a task counts predictions."""
