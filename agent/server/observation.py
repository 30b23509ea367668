"""The observers of one server, created from its options, and the log of a served agent.

One observer logs a line for each call. The lines of the log are either text or JSON objects.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Iterable
from datetime import datetime, timezone
from enum import Enum
from typing import TYPE_CHECKING, Any

import grpc

from inferometer.agent.server.calls import CallObserver
from inferometer.agent.serving.observers import Call, PredictionObserver, QueueObserver, current_call
from inferometer.agent.serving.prediction_watch import AgentLoad, PredictionWatch

if TYPE_CHECKING:
    from inferometer.agent.server.metrics import MetricsServer


EXTRAS = ("code", "duration_s", "model", "peer")
"""Fields that only some lines have; they come from the ``extra`` of a log call."""


class LogFormat(str, Enum):
    """The format of log lines."""

    TEXT = "text"
    JSON = "json"

    @property
    def formatter(self) -> logging.Formatter:
        """The formatter of the lines."""
        return JsonFormatter() if self is LogFormat.JSON else TextFormatter()


class TextFormatter(logging.Formatter):
    """Formats lines as ``LEVEL logger: message [request id]``; a traceback follows on separate lines."""

    def format(self, record: logging.LogRecord) -> str:
        """Returns the line."""
        text = super().format(record)
        call = current_call()
        head = f"{record.levelname} {record.name}: "
        if call is None:
            return head + text
        first, separator, rest = text.partition("\n")
        return f"{head}{first} [{call.request_id}]{separator}{rest}"


class JsonFormatter(logging.Formatter):
    """Formats each line as JSON: ``time``, ``level``, ``logger``, ``message``, and fields of the call.

    Within a call, these are ``request_id``, ``trace_id`` if the client sent a ``traceparent``, and
    ``method``. The line logged at the end of a call also has ``EXTRAS``. A traceback is in ``exception``.
    """

    def format(self, record: logging.LogRecord) -> str:
        """Returns the line."""
        when = datetime.fromtimestamp(record.created, timezone.utc).isoformat(timespec="microseconds")
        line: dict[str, object] = {
            "time": when.replace("+00:00", "Z"),
            "level": record.levelname,
            "logger": record.name,
            "message": record.getMessage(),
        }
        if call := current_call():
            line["request_id"] = call.request_id
            if call.trace is not None:
                line["trace_id"] = call.trace.trace_id
            line["method"] = call.method
        for name in EXTRAS:
            if value := getattr(record, name, None):
                line[name] = value
        if record.exc_info:
            line["exception"] = self.formatException(record.exc_info)
        return json.dumps(line, default=str)


_NS_PER_S = 1e9
_FAULTS = {
    grpc.StatusCode.INTERNAL,
    grpc.StatusCode.UNKNOWN,
    grpc.StatusCode.DATA_LOSS,
    grpc.StatusCode.UNAVAILABLE,
}
_FREQUENT = ("grpc.", "GET /v2/health/", "inferometer.v1.PredictService/Clock")
_log = logging.getLogger(__name__)


class AccessLog:
    """Logs each call at its end; satisfies ``CallObserver``.

    The level is WARNING for faults of the agent, INFO for calls that succeeded or were refused, and DEBUG for
    health, reflection and clock calls.
    """

    def call_began(self, call: Call) -> None:
        """Does nothing."""

    def call_ended(self, call: Call, code: grpc.StatusCode, duration_ns: int) -> None:
        """Logs the call."""
        if code is grpc.StatusCode.OK and not _log.isEnabledFor(logging.INFO):  # as nearly always
            return
        level = logging.DEBUG if call.method.startswith(_FREQUENT) else logging.INFO
        level = logging.WARNING if code in _FAULTS else level
        if not _log.isEnabledFor(level):
            return
        duration_s = round(duration_ns / _NS_PER_S, 6)
        _log.log(
            level,
            "%s %s in %.3f ms",
            call.method,
            code.name,
            duration_ns / 1e6,
            extra={"code": code.name, "duration_s": duration_s, "model": call.model, "peer": call.peer},
        )


class Observation:
    """Observes a server from ``start`` to ``close``: its calls, its predictions and its ``load``.

    ``on_fitness`` and ``alive_of`` are passed to ``PredictionWatch``. Without a ``metrics_port``, no metrics
    are counted or served; 0 selects a free port. Unless it ``serves`` them, metrics are only counted, for
    ``page``.

    Raises:
        ConfigurationError: The address for the metrics cannot be bound.
    """

    def __init__(
        self,
        host: str,
        metrics_port: int | None,
        predict_timeout_s: float | None,
        load: Callable[[], AgentLoad],
        on_fitness: Callable[[bool], None],
        alive_of: Callable[[str], int] = lambda _: 0,
        *,
        serves: bool = True,
    ) -> None:
        calls: list[CallObserver] = [AccessLog()]
        predictions: list[PredictionObserver] = []
        self.queues: QueueObserver | None = None
        self.generated: Callable[[str, Any], None] = lambda model, generation: None
        """Counts a request to a language model, a ``generation.engine.Generation``, that has ended."""
        self._metrics: MetricsServer | None = None
        self.page: Callable[[], Iterable[Any]] = tuple
        """Reads the current metrics; there are none without a ``metrics_port``."""
        if metrics_port is not None:
            # these load a library that others do not need
            from inferometer.agent.server.metrics import Metrics, MetricsServer

            metrics = Metrics(load)
            calls.append(metrics)
            predictions.append(metrics)
            self.queues, self.generated = metrics, metrics.generated
            self.page = metrics.registry.collect
            if serves:
                self._metrics = MetricsServer(metrics.registry, host, metrics_port)
        self.calls = tuple(calls)
        self.watch = PredictionWatch(predict_timeout_s, predictions, on_fitness, alive_of=alive_of)

    @property
    def metrics_url(self) -> str | None:
        """The URL of the metrics; None if they are not served."""
        return None if self._metrics is None else self._metrics.url

    def start(self) -> None:
        """Starts watching for hanging predictions and answering scrapes."""
        self.watch.start()
        if self._metrics is not None:
            self._metrics.start()

    def close(self) -> None:
        """Stops observing; calling it again does nothing."""
        self.watch.close()
        if self._metrics is not None:
            self._metrics.close()
