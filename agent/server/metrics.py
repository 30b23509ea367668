"""The agent's metrics for Prometheus: their names, the sources of their values, and their server.

Prometheus scrapes a web server on a separate port: ``GET /metrics``.

Counters, gauges and histograms are cheap to update; a scrape converts them to Prometheus metrics.
``prometheus_client`` takes a lock for each number of a metric and scans the buckets one by one: for the
metrics of one request, that takes longer than parsing its message. Names and units follow
https://prometheus.io/docs/practices/naming/.
"""

from __future__ import annotations

import logging
import socket
import threading
import time
from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from http.server import ThreadingHTTPServer
from itertools import accumulate, chain
from typing import Any, Generic, TypeVar

import grpc
import pynvml
from prometheus_client import CollectorRegistry, PlatformCollector, ProcessCollector
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.exposition import MetricsHandler
from prometheus_client.registry import Collector
from prometheus_client.samples import Sample

from inferometer.agent import __version__
from inferometer.agent.generation.engine import PROVIDER, Generation
from inferometer.agent.server.admission import bound, metrics_warning
from inferometer.agent.serving.observers import Call
from inferometer.agent.serving.prediction_watch import AgentLoad
from inferometer.manifests.errors import (
    DeviceLostError,
    HungError,
    InputError,
    InstanceLostError,
    OutOfMemoryError,
    PredictionError,
)

_Child = TypeVar("_Child")
_LATENCY_S = (
    *(0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1),
    *(0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 120.0),
)


class Tally:
    """A number that events increase or decrease. Thread-safe."""

    __slots__ = ("_lock", "created_s", "value")

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self.created_s = time.time()
        self.value = 0

    def add(self, number: int = 1) -> None:
        """Adds a number."""
        with self._lock:
            self.value += number


class Distribution:
    """The counts of values in buckets with upper bounds. Thread-safe."""

    __slots__ = ("_bounds", "_counts", "_lock", "_total", "created_s")

    def __init__(self, bounds: Sequence[float]) -> None:
        self._lock = threading.Lock()
        self._bounds = bounds
        self._counts = [0] * (len(bounds) + 1)
        self._total = 0.0
        self.created_s = time.time()

    def add(self, value: float) -> None:
        """Counts a value."""
        place = bisect_left(self._bounds, value)
        with self._lock:
            self._counts[place] += 1
            self._total += value

    def read(self) -> tuple[list[int], float]:
        """Returns the counts of the buckets, the last of them unbounded, and the sum of the values."""
        with self._lock:
            return list(self._counts), self._total


class _Labelled(Collector, Generic[_Child]):
    """A metric with one child per combination of label values. Thread-safe."""

    _make: Callable[[], _Child]
    _kind: Callable[..., Any]

    def __init__(self, name: str, description: str, labels: Sequence[str]) -> None:
        self._name = name
        self._description = description
        self._labels = tuple(labels)
        self._children: dict[tuple[str, ...], _Child] = {}
        self._lock = threading.Lock()

    def of(self, *values: str) -> _Child:
        """Returns the child with these label values; the caller may keep it."""
        child = self._children.get(values)
        if child is None:
            with self._lock:
                child = self._children.setdefault(values, self._make())
        return child

    def collect(self) -> Iterator[Metric]:
        with self._lock:
            children = dict(self._children)
        family = self._kind(self._name, self._description, labels=self._labels)
        for values, child in children.items():
            self._add(family, values, child)
        yield family

    def _add(self, family: Any, values: tuple[str, ...], child: _Child) -> None:
        raise NotImplementedError


class Counts(_Labelled[Tally]):
    """A counter."""

    _make, _kind = Tally, CounterMetricFamily

    def _add(self, family: CounterMetricFamily, values: tuple[str, ...], child: Tally) -> None:
        family.add_metric(values, child.value, child.created_s)


class Levels(_Labelled[Tally]):
    """A gauge."""

    _make, _kind = Tally, GaugeMetricFamily

    def _add(self, family: GaugeMetricFamily, values: tuple[str, ...], child: Tally) -> None:
        family.add_metric(values, child.value)


class Distributions(_Labelled[Distribution]):
    """A histogram."""

    _kind = HistogramMetricFamily

    def __init__(
        self, name: str, description: str, labels: Sequence[str], bounds: Sequence[float] = _LATENCY_S
    ) -> None:
        self._bounds = tuple(map(float, bounds))
        self._make = lambda: Distribution(self._bounds)
        super().__init__(name, description, labels)

    def _add(self, family: HistogramMetricFamily, values: tuple[str, ...], child: Distribution) -> None:
        counts, total = child.read()
        names = [*map(str, self._bounds), "+Inf"]
        family.add_metric(values, list(zip(names, accumulate(counts), strict=True)), total)
        labels = dict(zip(self._labels, values, strict=True))
        family.add_sample(f"{self._name}_created", labels, child.created_s)


_LABELS = ("gpu", "uuid", "name")
_OF_GPU = "inferometer_gpu_"
_FIGURES: tuple[tuple[str, str, Callable[[Any], float]], ...] = (
    (
        "utilization_ratio",
        "Share of the last second or so in which the GPU was at work, 0 to 1, for whatever process.",
        lambda gpu: pynvml.nvmlDeviceGetUtilizationRates(gpu).gpu / 100,
    ),
    (
        "memory_used_bytes",
        "The GPU's memory that all processes hold.",
        lambda gpu: pynvml.nvmlDeviceGetMemoryInfo(gpu).used,
    ),
    ("memory_total_bytes", "The GPU's memory.", lambda gpu: pynvml.nvmlDeviceGetMemoryInfo(gpu).total),
    ("power_watts", "What the GPU draws.", lambda gpu: pynvml.nvmlDeviceGetPowerUsage(gpu) / 1000),
    (
        "temperature_celsius",
        "The GPU's temperature.",
        lambda gpu: pynvml.nvmlDeviceGetTemperature(gpu, pynvml.NVML_TEMPERATURE_GPU),
    ),
)


class GpuMetrics(Collector):
    """One sample per GPU for each figure that its driver reports; no samples without a driver.

    The label ``gpu`` is the driver's number for the GPU, which ``CUDA_VISIBLE_DEVICES`` does not change.
    """

    def __init__(self) -> None:
        self._has_driver = False
        with suppress(pynvml.NVMLError):
            pynvml.nvmlInit()  # once: it takes long
            self._has_driver = True

    def collect(self) -> Iterator[Metric]:
        """Yields the current figures."""
        gpus = list(self._gpus()) if self._has_driver else []
        for name, help_, read in _FIGURES:
            family = GaugeMetricFamily(_OF_GPU + name, help_, labels=_LABELS)
            for labels, gpu in gpus:
                with suppress(pynvml.NVMLError):  # a GPU need not report everything
                    family.add_metric(labels, read(gpu))
            yield family

    def _gpus(self) -> Iterator[tuple[tuple[str, str, str], Any]]:
        with suppress(pynvml.NVMLError):
            for index in range(pynvml.nvmlDeviceGetCount()):
                with suppress(pynvml.NVMLError):  # one that is lost does not hide the others
                    gpu = pynvml.nvmlDeviceGetHandleByIndex(index)
                    labels = (str(index), pynvml.nvmlDeviceGetUUID(gpu), pynvml.nvmlDeviceGetName(gpu))
                    yield labels, gpu


_NS_PER_S = 1e9
_QUEUE_S = (0.0001, *_LATENCY_S)
_GENERATION_LABELS = ("gen_ai_operation_name", "gen_ai_provider_name", "gen_ai_request_model")
_BATCH_INPUTS = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024)


class Metrics:
    """Observes and counts calls and predictions, and reads ``load`` at each scrape. Thread-safe."""

    def __init__(self, load: Callable[[], AgentLoad]) -> None:
        self.registry = registry = CollectorRegistry(auto_describe=True)  # takes the names from the metrics
        self._requests = Counts(
            "inferometer_requests",
            "Calls that were answered, by the gRPC status of the answer, also over HTTP.",
            ("method", "model", "code"),
        )
        self._request_seconds = Distributions(
            "inferometer_request_duration_seconds",
            "From the start of a call to its answer or, for a stream, to its end.",
            ("method", "model"),
        )
        self._in_flight = Levels("inferometer_requests_in_flight", "Calls under way.", ("method",))
        self._prediction_seconds = Distributions(
            "inferometer_prediction_duration_seconds",
            "How long the framework took for a batch, transfers and synchronisation included.",
            ("model",),
        )
        self._batch_inputs = Distributions(
            "inferometer_batch_inputs", "Inputs in a batch that was predicted.", ("model",), _BATCH_INPUTS
        )
        self._failures = Counts(
            "inferometer_prediction_failures",
            "Batches that the framework failed on, by the kind of failure.",
            ("model", "kind"),
        )
        self._hangs = Counts(
            "inferometer_prediction_hangs",
            "Predictions that took longer than --predict_timeout_s.",
            ("model",),
        )
        self._queue_seconds = Distributions(
            "inferometer_queue_duration_seconds",
            "How long a request waited for its batch to begin.",
            ("model",),
            _QUEUE_S,
        )
        self._first_token_seconds = Distributions(
            "gen_ai_server_time_to_first_token_seconds",
            "From the arrival of a request at its language model to the text of its first token.",
            _GENERATION_LABELS,
        )
        self._token_seconds = Distributions(
            "gen_ai_server_time_per_output_token_seconds",
            "The mean time of the tokens of a text after the first.",
            _GENERATION_LABELS,
        )
        self._part_seconds = Distributions(
            "inferometer_generation_duration_seconds",
            "How long a part of a request to a language model took.",
            ("model", "part"),
            _QUEUE_S,
        )
        self._tokens = Counts("inferometer_tokens", "Tokens of prompts and texts.", ("model", "type"))
        self._answered: dict[tuple[str, str, grpc.StatusCode], tuple[Tally, Tally, Distribution]] = {}
        """The counters of the calls that were answered, by method, model and status."""
        for metric in vars(self).values():
            if isinstance(metric, _Labelled):
                registry.register(metric)
        registry.register(_LoadCollector(load))
        registry.register(GpuMetrics())
        ProcessCollector(registry=registry)
        PlatformCollector(registry=registry)

    def call_began(self, call: Call) -> None:
        """Counts a call in progress."""
        self._in_flight.of(call.method).add()

    def call_ended(self, call: Call, code: grpc.StatusCode, duration_ns: int) -> None:
        """Counts an answered call."""
        model, key = call.model, (call.method, call.model, code)
        found = self._answered.get(key)
        if found is None:
            found = self._answered[key] = (
                self._in_flight.of(call.method),
                self._requests.of(call.method, model, code.name),
                self._request_seconds.of(call.method, model),
            )
        in_flight, requests, seconds = found
        in_flight.add(-1)
        requests.add()
        seconds.add(duration_ns / _NS_PER_S)

    def generated(self, model: str, generation: Generation) -> None:
        """Counts the tokens of a request to a language model, and its times if it has its whole answer."""
        self._tokens.of(model, "input").add(len(generation.prompt))
        self._tokens.of(model, "output").add(len(generation.tokens))
        if generation.latest is None or generation.latest.finish_reason is None:
            return
        for part, spent_ns in generation.spent_ns().items():
            self._part_seconds.of(model, part).add(spent_ns / _NS_PER_S)
        labels, ended_ns = (generation.parameters.operation, PROVIDER, model), generation.times_ns[-1]
        self._first_token_seconds.of(*labels).add((ended_ns[0] - generation.arrived_ns) / _NS_PER_S)
        if len(ended_ns) > 1:
            mean_ns = (ended_ns[-1] - ended_ns[0]) / (len(ended_ns) - 1)
            self._token_seconds.of(*labels).add(mean_ns / _NS_PER_S)

    def predicted(self, model: str, inputs: int, duration_ns: int) -> None:
        """Counts a batch."""
        self._prediction_seconds.of(model).add(duration_ns / _NS_PER_S)
        self._batch_inputs.of(model).add(inputs)

    def prediction_failed(self, model: str, error: BaseException) -> None:
        """Counts a batch that the framework failed on."""
        self._failures.of(model, failure_kind(error)).add()

    def prediction_hangs(self, model: str) -> None:
        """Counts a hanging prediction."""
        self._hangs.of(model).add()

    def waited(self, model: str, queue_ns: Sequence[int]) -> None:
        """Records how long requests waited."""
        count = self._queue_seconds.of(model).add
        for time_ns in queue_ns:
            count(time_ns / _NS_PER_S)


def failure_kind(error: BaseException) -> str:
    """Returns the value of the label ``kind`` of ``inferometer_prediction_failures_total``."""
    kinds: tuple[tuple[type[BaseException], str], ...] = (
        (OutOfMemoryError, "out_of_memory"),
        (DeviceLostError, "device_lost"),
        (HungError, "hung"),
        (InstanceLostError, "instance_lost"),
        (PredictionError, "framework"),
        (InputError, "input"),
    )
    return next((name for kind, name in kinds if isinstance(error, kind)), "fault")


class _LoadCollector(Collector):
    """The metrics of the agent's load, which is read at each scrape."""

    def __init__(self, load: Callable[[], AgentLoad]) -> None:
        self._load = load

    def describe(self) -> Iterable[Metric]:
        return self._families(AgentLoad())

    def collect(self) -> Iterable[Metric]:
        return self._families(self._load())

    def _families(self, load: AgentLoad) -> Iterator[Metric]:
        hanging = len(load.trouble.hanging)
        info = GaugeMetricFamily("inferometer_info", "1; the label is the version.", labels=("version",))
        info.add_metric((__version__,), 1)
        yield info
        for name, text, value in (
            ("inferometer_serving", "1 while the agent is fit to serve, 0 while it is not.", load.serving),
            ("inferometer_sessions_open", "Sessions that clients hold open.", load.sessions),
            ("inferometer_predictions_hanging", "Predictions that are currently hanging.", hanging),
        ):
            yield GaugeMetricFamily(name, text, value)
        copies, living, queues = (Counter[tuple[str, ...]]() for _ in range(3))
        for model in load.models:
            manifest, device = model.manifest, str(model.description.device)
            key = manifest.name, manifest.version, manifest.framework.name, device
            copies[key] += model.options.instances
            living[key] += model.alive
            queues[manifest.name,] += model.waiting
        labels = ("model", "version", "framework", "device")
        for name, text, counts in (
            ("inferometer_models_loaded", "Loaded instances of a model.", copies),
            ("inferometer_instances_alive", "Loaded instances of a model that can predict.", living),
            ("inferometer_queue_requests", "Requests that wait for their batch to begin.", queues),
        ):
            family = GaugeMetricFamily(name, text, labels=labels[:1] if counts is queues else labels)
            for values, count in counts.items():
                family.add_metric(values, count)
            yield family


_LEAST = {"inferometer_serving", "process_max_fds", "process_start_time_seconds"}
_EQUAL = (_OF_GPU, "inferometer_info", "python_info")
"""What all processes on a host read alike begins with one of these."""


class SummedPages(Collector):
    """The metrics of several processes as one page: ``read`` returns those of each process.

    Counters, histograms and gauges are sums. Of the gauges that no sum describes, the page has the least
    (whether each process is fit to serve) or the one that all processes read alike (of a GPU).
    """

    def __init__(self, read: Callable[[], Iterable[Iterable[Metric]]]) -> None:
        self._read = read
        self._counts: list[Metric] = []
        self.registry = CollectorRegistry()
        self.registry.register(self)

    def collect(self) -> list[Metric]:
        """Returns the current metrics."""
        return _summed([self._counts, *self._read()])

    def keep_counts(self, page: Iterable[Metric]) -> None:
        """Adds the counters and histograms of a process that has ended, so that the sums do not drop."""
        counts = (family for family in page if family.type in {"counter", "histogram"})
        self._counts = _summed([self._counts, counts])


def _summed(pages: Iterable[Iterable[Metric]]) -> list[Metric]:
    families: dict[str, Metric] = {}
    samples: dict[tuple[object, ...], list[Sample]] = {}
    for family in chain.from_iterable(pages):
        families.setdefault(family.name, Metric(family.name, family.documentation, family.type))
        for sample in family.samples:
            key = family.name, sample.name, *sorted(sample.labels.items())
            samples.setdefault(key, []).append(sample)
    for (name, *_), found in samples.items():
        values = [sample.value for sample in found]
        families[str(name)].samples.append(found[0]._replace(value=_joined(found[0].name)(values)))
    return [*families.values()]


def _joined(sample: str) -> Callable[[Iterable[float]], float]:
    """Returns what makes one value of those of several processes."""
    if sample in _LEAST or sample.endswith("_created"):
        return min
    return max if sample.startswith(_EQUAL) else sum


_TIMEOUT_S = 10.0
_log = logging.getLogger(__name__)
_POLL_S = 0.05
"""The interval at which the server checks whether to stop."""


class MetricsServer:
    """Answers scrapes from ``start`` to ``close``; port 0 selects a free one.

    Raises ConfigurationError if the address cannot be bound.
    """

    def __init__(self, registry: CollectorRegistry, host: str, port: int) -> None:
        advice = "; choose another --metrics_port, or --metrics_host"
        listener = bound(host, port, " for metrics", advice, backlog=_Server.request_queue_size)
        self._server = _Server(listener, _Handler.factory(registry))
        self._host = f"[{host}]" if ":" in host else host
        self._warning = metrics_warning(host, self.port)
        self._thread = threading.Thread(
            target=self._server.serve_forever, args=(_POLL_S,), name="metrics", daemon=True
        )

    @property
    def port(self) -> int:
        """The port that the server listens on."""
        return int(self._server.server_address[1])

    @property
    def url(self) -> str:
        """The URL to scrape."""
        return f"http://{self._host}:{self.port}/metrics"

    def start(self) -> None:
        """Starts answering scrapes; logs a warning if others can read the metrics."""
        self._thread.start()
        if self._warning:
            _log.warning("%s", self._warning)

    def close(self) -> None:
        """Stops the server; calling it again does nothing."""
        if self._thread.is_alive():
            self._server.shutdown()
            self._thread.join()
        self._server.server_close()


class _Server(ThreadingHTTPServer):
    """A server on a socket that listens; binding it itself, it would look up its name in the DNS."""

    block_on_close = False

    def __init__(self, listener: socket.socket, handler: type[MetricsHandler]) -> None:
        super().__init__(listener.getsockname(), handler, bind_and_activate=False)
        self.socket.close()
        self.socket = listener

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Ignores the error: a scraper that disconnects early is not a fault of the agent."""


class _Handler(MetricsHandler):
    timeout = _TIMEOUT_S  # for who connects and says nothing
