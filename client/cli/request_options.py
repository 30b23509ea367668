"""Builds command options from the declarations in requests."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection
from typing import Any

import click

from inferometer.client.cli.command import FiniteFloatRange, boolean, option, options
from inferometer.client.cli.paths import FILE, INPUT
from inferometer.evaluators.jobs.declaring import Option, options_of


def request_options(request: type[Any], but: Collection[str] = ()) -> Callable[[Any], Any]:
    """Adds the options that a request declares, in order; their parameters have the names of its fields.

    Args:
        request: The class of the request.
        but: The names of the options to omit.
    """
    return options(*(_option(each) for each in options_of(request) if each.name not in but))


def _option(each: Option) -> Callable[[Any], Any]:
    shown, names = each.declared, (*each.flags, each.name)
    if each.kind == "bool":
        return boolean(*names, help=shown.help, default=each.default)
    suffix = f"  [default: {shown.default_text}]" if shown.default_text else ""
    settings: dict[str, Any] = {} if each.default is None else {"default": each.default}
    if shown.made is not None:
        made = shown.made
        settings["callback"] = lambda _context, _parameter, value: None if value is None else made(value)
    return option(*names, type=_type(each), metavar=shown.metavar, help=f"{shown.help}{suffix}", **settings)


def _type(each: Option) -> Any:
    shown, within = each.declared, each.declared.within
    if shown.choices:
        return click.Choice(shown.choices)
    if each.kind == "Path":
        return INPUT if shown.reads else FILE
    if within is None:
        return {"int": click.INT, "float": FiniteFloatRange()}.get(each.kind)
    if each.kind == "int":
        return click.IntRange(math.ceil(within.least), None if within.most is None else int(within.most))
    open_end = within.open and within.most is not None
    return FiniteFloatRange(within.least, within.most, min_open=within.open, max_open=open_end)
