"""The options that choose a model, where it runs and where its evaluation goes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import click

from client.command import boolean, database_options


def system_options(function: Callable[..., Any]) -> Callable[..., Any]:
    """The options that choose a model, where it runs and where its evaluation goes."""
    options = (
        click.option("--model_name", default="DigitsCNN", show_default=True, metavar="NAME", help="Model."),
        click.option(
            "--model_version",
            metavar="VERSION",
            help="Version or constraint.  [default: the highest that has the weights]",
        ),
        click.option(
            "--framework_name",
            envvar="AGENT_FRAMEWORK",
            show_envvar=True,
            metavar="NAME",
            help="Framework.  [default: the first installed one that has the model]",
        ),
        click.option(
            "--agent",
            "agent_address",
            envvar="AGENT_ADDRESS",
            show_envvar=True,
            metavar="HOST:PORT",
            help="Run on this served agent.  [default: in this process]",
        ),
        click.option(
            "--weights",
            type=click.Choice(["pretrained", "random"], case_sensitive=False),
            default="pretrained",
            show_default=True,
            help="Random weights measure speed only; for models that are built in code.",
        ),
        click.option(
            "--seed",
            type=click.IntRange(0, 2**63 - 1),
            default=0,
            show_default=True,
            metavar="N",
            help="What random weights are drawn from, and schedules.",
        ),
        boolean("--gpu", "--use_gpu", help="Run on the GPU; an error where there is none."),
        click.option(
            "--gpu_device_id", type=click.IntRange(min=0), default=0, metavar="N", help="Which GPU."
        ),
        click.option(
            "--threads", type=click.IntRange(min=1), metavar="N", help="CPU threads of one operator."
        ),
        boolean("--publish", default=True, help="Publish the evaluation to the database."),
    )
    for option in reversed(options):
        function = option(function)
    return database_options(function)
