"""The observers of one server, put together from its options."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import TYPE_CHECKING

from inferometer.agent.closeable import Closeable
from inferometer.agent.server.rpc import CallObserver
from inferometer.agent.server.security.binding import metrics_warning
from inferometer.agent.server.telemetry.access_log import AccessLog
from inferometer.agent.server.telemetry.agent_load import AgentLoad
from inferometer.agent.serving.observers import PredictionObserver, QueueObserver
from inferometer.agent.serving.prediction_watch import PredictionWatch

if TYPE_CHECKING:
    from inferometer.agent.server.telemetry.metrics_server import MetricsServer

_log = logging.getLogger(__name__)


class Observation(Closeable):
    """Observes a server from ``start`` to ``close``: its calls, its predictions and its ``load``.

    ``on_fitness`` is that of ``PredictionWatch``. Without a ``metrics_port`` nothing is counted or served; 0
    takes a free one.

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
            # these load a library that others do not need
            from inferometer.agent.server.telemetry.metrics import Metrics
            from inferometer.agent.server.telemetry.metrics_server import MetricsServer

            metrics = Metrics(load)
            calls.append(metrics)
            predictions.append(metrics)
            self.queues = metrics
            self._metrics = MetricsServer(metrics.registry, host, metrics_port)
            self._warning = metrics_warning(host, self._metrics.port)
        self.calls = tuple(calls)
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
