"""The options that choose a model, where it runs and where its evaluation goes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import click

from client.agent_tls import tls_options
from client.command import boolean, database_options
from client.finite_float import FiniteFloatRange
from client.remote.defaults import OPEN_TIMEOUT_S


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
            metavar="AGENT",
            help="Run on this served agent: HOST:PORT, or any, or conditions such as "
            "gpu=H100,framework=PyTorch (also model, host, arch, cpu). Several addresses with commas share a "
            "dataset. kserve://HOST:PORT[/MODEL] is any server of the Open Inference Protocol.  "
            "[default: in this process]",
        ),
        click.option(
            "--open_timeout",
            type=FiniteFloatRange(min=0, min_open=True),
            default=OPEN_TIMEOUT_S,
            show_default=True,
            metavar="S",
            help="An agent that takes longer to open the model, with all that it downloads, is lost.",
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
        click.option(
            "--repeat",
            type=click.IntRange(1, 1000),
            default=1,
            show_default=True,
            metavar="N",
            help="Do all of it so many times, opening the model anew: one group, as agent compare wants it.",
        ),
        boolean("--publish", default=True, help="Publish the evaluation to the database."),
    )
    function = tls_options(function)
    for option in reversed(options):
        function = option(function)
    return database_options(function)
