"""The telemetry options of ``agent serve``: metrics, log format, and detection of hung predictions."""

from __future__ import annotations

import logging
import sys
import threading

import click

from inferometer.agent.server.telemetry.log_format import LogFormat
from inferometer.client.cli.command import NOT_NEGATIVE, PORT, option, options

_DEFAULT_PREDICT_TIMEOUT_S = 300.0
_log = logging.getLogger(__name__)


telemetry_options = options(
    option(
        "--metrics_port",
        type=PORT,
        metavar="N",
        help="Port for Prometheus, without TLS and secret; 0 chooses a free port.  [default: none]",
    ),
    option("--metrics_host", default="127.0.0.1", metavar="ADDRESS", help="Address of the metrics port."),
    option(
        "--predict_timeout_s",
        type=NOT_NEGATIVE,
        default=_DEFAULT_PREDICT_TIMEOUT_S,
        metavar="S",
        help="Treat longer predictions as hanging: the agent is NOT_SERVING until they end.  0: never.",
    ),
    option(
        "--log_format",
        type=click.Choice([format_.value for format_ in LogFormat], case_sensitive=False),
        default=LogFormat.TEXT.value,
        help="Format of the log on stderr; -v logs every call.",
    ),
)
"""Adds the options, which are those of ``ServerOptions`` and ``ServingOptions``, and the log's."""


def use_log_format(log_format: str) -> None:
    """Sets the format of what is logged on stderr, including the errors of threads and Python's warnings."""
    for handler in logging.getLogger().handlers:
        if isinstance(handler, logging.StreamHandler) and handler.stream is sys.stderr:
            handler.setFormatter(LogFormat(log_format.lower()).formatter)
    logging.captureWarnings(True)
    threading.excepthook = _log_dead_thread


def _log_dead_thread(death: threading.ExceptHookArgs) -> None:
    if death.exc_value is None or isinstance(death.exc_value, SystemExit):
        return
    name = death.thread.name if death.thread else "a thread"
    _log.error("%s died: %s", name, type(death.exc_value).__name__, exc_info=death.exc_value)
