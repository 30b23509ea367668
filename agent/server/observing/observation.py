"""The observing parts of one server, put together: who is told of what, and what is answered about it."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import TYPE_CHECKING

from agent.closeable import Closeable
from agent.server.exposure import metrics_warning
from agent.server.observing.access_log import AccessLog
from agent.server.observing.agent_load import AgentLoad
from agent.server.observing.interceptor import CallInterceptor
from agent.server.observing.observers import CallObserver, PredictionObserver, QueueObserver
from agent.server.observing.prediction_watch import PredictionWatch
from agent.server.reflected_types import served_methods

if TYPE_CHECKING:
    from agent.server.observing.metrics_server import MetricsServer

_log = logging.getLogger(__name__)


class Observation(Closeable):
    """Observes a server from ``start`` to ``close``.

    Args:
        host: The address where metrics are served.
        metrics_port: The port there; 0 takes a free one, None serves none and counts nothing.
        predict_timeout_s: How long a prediction may take, in seconds; None for any time.
        load: Tells what the agent holds.
        on_fitness: Told whether the agent is fit to serve, whenever that changes.

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
    ) -> None:
        calls: list[CallObserver] = [AccessLog()]
        predictions: list[PredictionObserver] = []
        self.queues: QueueObserver | None = None
        self._metrics: MetricsServer | None = None
        self._warning: str | None = None
        if metrics_port is not None:
            from agent.server.observing.metrics import Metrics  # these load a library that others do not need
            from agent.server.observing.metrics_server import MetricsServer

            metrics = Metrics(load)
            calls.append(metrics)
            predictions.append(metrics)
            self.queues = metrics
            self._metrics = MetricsServer(metrics.registry, host, metrics_port)
            self._warning = metrics_warning(host, self._metrics.port)
        self.interceptor = CallInterceptor(calls, served_methods())
        self.watch = PredictionWatch(predict_timeout_s, predictions, on_fitness)

    @property
    def metrics_url(self) -> str | None:
        """Where the metrics are; None where there are none."""
        return None if self._metrics is None else self._metrics.url

    def start(self) -> None:
        """Begins to look for predictions that hang, and to answer scrapes."""
        self.watch.start()
        if self._metrics is not None:
            self._metrics.start()
        if self._warning:
            _log.warning("%s", self._warning)

    def close(self) -> None:
        """Ends it; calling it again does nothing."""
        self.watch.close()
        if self._metrics is not None:
            self._metrics.close()
