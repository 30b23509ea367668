"""The agent's metrics for Prometheus: what is counted, under which names, and who is asked at a scrape.

Names and units follow https://prometheus.io/docs/practices/naming/.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import cache

import grpc
from prometheus_client import (
    CollectorRegistry,
    Counter,
    Gauge,
    Histogram,
    PlatformCollector,
    ProcessCollector,
)
from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from agent import __version__
from agent.server.observing.agent_load import AgentLoad
from agent.server.observing.call import Call
from agent.server.observing.gpu_metrics import GpuMetrics
from manifests.errors import DeviceLostError, HungError, InputError, OutOfMemoryError, PredictionError

_NS_PER_S = 1e9
_LATENCY_S = (
    *(0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1),
    *(0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 120.0),
)
_QUEUE_S = (0.0001, *_LATENCY_S)
_BATCH_INPUTS = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024)


class Metrics:
    """Counts calls and predictions. Thread-safe; is an observer of each kind.

    Args:
        load: Tells what the agent holds; asked at each scrape.
    """

    def __init__(self, load: Callable[[], AgentLoad]) -> None:
        self.registry = registry = CollectorRegistry(auto_describe=True)
        requests = Counter(
            "inferscope_requests",
            "Calls that were answered, by the gRPC status of the answer.",
            ("method", "model", "code"),
            registry=registry,
        )
        request_seconds = Histogram(
            "inferscope_request_duration_seconds",
            "From when a thread took the call until its answer was made; a stream until its end.",
            ("method", "model"),
            registry=registry,
            buckets=_LATENCY_S,
        )
        in_flight = Gauge(
            "inferscope_requests_in_flight",
            "Calls that threads are answering.",
            ("method",),
            registry=registry,
        )
        self._prediction_seconds = Histogram(
            "inferscope_prediction_duration_seconds",
            "How long the framework took for a batch, transfers and synchronisation included.",
            ("model",),
            registry=registry,
            buckets=_LATENCY_S,
        )
        self._batch_inputs = Histogram(
            "inferscope_batch_inputs",
            "Inputs in a batch that was predicted.",
            ("model",),
            registry=registry,
            buckets=_BATCH_INPUTS,
        )
        self._failures = Counter(
            "inferscope_prediction_failures",
            "Batches that the framework failed on, by the kind of failure.",
            ("model", "kind"),
            registry=registry,
        )
        self._hangs = Counter(
            "inferscope_prediction_hangs",
            "Predictions that took longer than --predict_timeout_s.",
            ("model",),
            registry=registry,
        )
        self._queue_seconds = Histogram(
            "inferscope_queue_duration_seconds",
            "How long a request waited for its batch to begin.",
            ("model",),
            registry=registry,
            buckets=_QUEUE_S,
        )
        # Remembered, because finding a metric by its labels takes longer than counting.
        self._in_flight_of = cache(in_flight.labels)
        self._answered_of = cache(
            lambda method, model, code: (
                requests.labels(method, model, code.name),
                request_seconds.labels(method, model),
            )
        )
        registry.register(_LoadCollector(load))
        registry.register(GpuMetrics())
        ProcessCollector(registry=registry)
        PlatformCollector(registry=registry)

    def call_began(self, call: Call) -> None:
        """Counts a call that is under way."""
        self._in_flight_of(call.method).inc()

    def call_ended(self, call: Call, code: grpc.StatusCode, duration_ns: int) -> None:
        """Counts a call that was answered."""
        self._in_flight_of(call.method).dec()
        requests, seconds = self._answered_of(call.method, call.model, code)
        requests.inc()
        seconds.observe(duration_ns / _NS_PER_S)

    def predicted(self, model: str, inputs: int, duration_ns: int) -> None:
        """Counts a batch."""
        self._prediction_seconds.labels(model).observe(duration_ns / _NS_PER_S)
        self._batch_inputs.labels(model).observe(inputs)

    def prediction_failed(self, model: str, error: BaseException) -> None:
        """Counts a batch that the framework failed on."""
        self._failures.labels(model, failure_kind(error)).inc()

    def prediction_hangs(self, model: str) -> None:
        """Counts a prediction that hangs."""
        self._hangs.labels(model).inc()

    def waited(self, model: str, queue_ns: Sequence[int]) -> None:
        """Counts how long requests waited."""
        observe = self._queue_seconds.labels(model).observe
        for time_ns in queue_ns:
            observe(time_ns / _NS_PER_S)


def failure_kind(error: BaseException) -> str:
    """Returns the value of the label ``kind`` of ``inferscope_prediction_failures_total``."""
    kinds: tuple[tuple[type[BaseException], str], ...] = (
        (OutOfMemoryError, "out_of_memory"),
        (DeviceLostError, "device_lost"),
        (HungError, "hung"),
        (PredictionError, "framework"),
        (InputError, "input"),
    )
    return next((name for kind, name in kinds if isinstance(error, kind)), "fault")


class _LoadCollector(Collector):
    """What the agent holds when it is asked."""

    def __init__(self, load: Callable[[], AgentLoad]) -> None:
        self._load = load

    def describe(self) -> Iterable[Metric]:
        return self._families(AgentLoad())

    def collect(self) -> Iterable[Metric]:
        return self._families(self._load())

    def _families(self, load: AgentLoad) -> Iterator[Metric]:
        info = GaugeMetricFamily("inferscope_info", "1; which version this is.", labels=("version",))
        info.add_metric((__version__,), 1)
        yield info
        yield GaugeMetricFamily(
            "inferscope_serving", "1 while the agent is fit to serve, 0 while it is not.", load.serving
        )
        yield GaugeMetricFamily("inferscope_sessions_open", "Sessions that clients hold open.", load.sessions)
        yield GaugeMetricFamily(
            "inferscope_predictions_hanging",
            "Predictions that hang at the moment.",
            len(load.trouble.hanging),
        )
        labels = ("model", "version", "framework", "device")
        loaded = GaugeMetricFamily("inferscope_models_loaded", "How often a model is loaded.", labels=labels)
        waiting = GaugeMetricFamily(
            "inferscope_queue_requests", "Requests that wait for their batch to begin.", labels=("model",)
        )
        copies: dict[tuple[str, ...], int] = {}
        queues: dict[str, int] = {}
        for model in load.models:
            key = (model.name, model.version, model.framework, model.device)
            copies[key] = copies.get(key, 0) + 1
            queues[model.name] = queues.get(model.name, 0) + model.waiting
        for values, count in copies.items():
            loaded.add_metric(values, count)
        for name, count in queues.items():
            waiting.add_metric((name,), count)
        yield loaded
        yield waiting
