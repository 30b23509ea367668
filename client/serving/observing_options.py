"""The options of ``agent serve`` that say what it tells of itself, and when a prediction is said to hang."""

from __future__ import annotations

import logging
import sys
import threading
from collections.abc import Callable
from dataclasses import dataclass
from functools import wraps
from typing import Any

import click

from agent.server.observing.log_format import LogFormat
from client.finite_float import FiniteFloatRange
from manifests.errors import ConfigurationError

_DEFAULT_PREDICT_TIMEOUT_S = 300.0
_LOCAL = "127.0.0.1"
_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class ObservingOptions:
    """What a served agent tells of itself.

    Attributes:
        metrics_port: Where Prometheus finds metrics; None serves none.
        metrics_host: The address of that port.
        predict_timeout_s: How long a prediction may take, in seconds; None for any time.
        log_format: How log lines look.
    """

    metrics_port: int | None
    metrics_host: str
    predict_timeout_s: float | None
    log_format: LogFormat


def observing_options(function: Callable[..., Any]) -> Callable[..., Any]:
    """Adds the options; the command is given them as one, ``observing``."""

    @wraps(function)
    def command(
        *args: Any,
        metrics_port: int | None,
        metrics_host: str,
        predict_timeout_s: float,
        log_format: str,
        **values: Any,
    ) -> Any:
        if metrics_port is None and metrics_host != _LOCAL:
            raise ConfigurationError("--metrics_host is given without --metrics_port, which it belongs to")
        options = ObservingOptions(
            metrics_port, metrics_host, predict_timeout_s or None, LogFormat(log_format.lower())
        )
        return function(*args, observing=options, **values)

    options = (
        click.option(
            "--metrics_port",
            type=click.IntRange(0, 65535),
            metavar="N",
            help="Port for Prometheus, without TLS and secret; 0 takes a free one.  [default: none]",
        ),
        click.option(
            "--metrics_host",
            default=_LOCAL,
            show_default=True,
            metavar="ADDRESS",
            help="Address of that port.",
        ),
        click.option(
            "--predict_timeout_s",
            type=FiniteFloatRange(min=0),
            default=_DEFAULT_PREDICT_TIMEOUT_S,
            show_default=True,
            metavar="S",
            help="A prediction that takes longer hangs; the agent does not serve until it ends.  0: never.",
        ),
        click.option(
            "--log_format",
            type=click.Choice([format_.value for format_ in LogFormat], case_sensitive=False),
            default=LogFormat.TEXT.value,
            show_default=True,
            help="How the log on stderr looks; -v logs every call.",
        ),
    )
    for option in reversed(options):
        command = option(command)
    return command


def use_log_format(log_format: LogFormat) -> None:
    """Has all that is logged on stderr look so, also what threads die of, and warnings of Python."""
    for handler in logging.getLogger().handlers:
        if isinstance(handler, logging.StreamHandler) and handler.stream is sys.stderr:
            handler.setFormatter(log_format.formatter)
    logging.captureWarnings(True)
    threading.excepthook = _log_dead_thread


def _log_dead_thread(death: threading.ExceptHookArgs) -> None:
    if death.exc_value is None or isinstance(death.exc_value, SystemExit):
        return
    name = death.thread.name if death.thread else "a thread"
    _log.error("%s died: %s", name, type(death.exc_value).__name__, exc_info=death.exc_value)
