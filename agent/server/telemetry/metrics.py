"""The agent's metrics for Prometheus: their names, and where their values come from.

Names and units follow https://prometheus.io/docs/practices/naming/.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from typing import Any

import grpc
import pynvml
from prometheus_client import CollectorRegistry, PlatformCollector, ProcessCollector
from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from inferometer.agent import __version__
from inferometer.agent.server.telemetry.agent_load import AgentLoad
from inferometer.agent.server.telemetry.tallies import Counts, Distribution, Distributions, Levels, Tally
from inferometer.agent.serving.observers import Call
from inferometer.manifests.errors import (
    DeviceLostError,
    HungError,
    InputError,
    OutOfMemoryError,
    PredictionError,
)

_LABELS = ("gpu", "uuid", "name")
_FIGURES: tuple[tuple[str, str, Callable[[Any], float]], ...] = (
    (
        "inferometer_gpu_utilization_ratio",
        "Share of the last second or so in which the GPU was at work, 0 to 1, for whatever process.",
        lambda gpu: pynvml.nvmlDeviceGetUtilizationRates(gpu).gpu / 100,
    ),
    (
        "inferometer_gpu_memory_used_bytes",
        "The GPU's memory that all processes hold.",
        lambda gpu: pynvml.nvmlDeviceGetMemoryInfo(gpu).used,
    ),
    (
        "inferometer_gpu_memory_total_bytes",
        "The GPU's memory.",
        lambda gpu: pynvml.nvmlDeviceGetMemoryInfo(gpu).total,
    ),
    (
        "inferometer_gpu_power_watts",
        "What the GPU draws.",
        lambda gpu: pynvml.nvmlDeviceGetPowerUsage(gpu) / 1000,
    ),
    (
        "inferometer_gpu_temperature_celsius",
        "The GPU's temperature.",
        lambda gpu: pynvml.nvmlDeviceGetTemperature(gpu, pynvml.NVML_TEMPERATURE_GPU),
    ),
)


class GpuMetrics(Collector):
    """One sample per GPU of each figure that its driver reports; none without a driver.

    The label ``gpu`` is the driver's number, which ``CUDA_VISIBLE_DEVICES`` does not change.
    """

    def __init__(self) -> None:
        self._has_driver = False
        with suppress(pynvml.NVMLError):
            pynvml.nvmlInit()  # once: it takes long
            self._has_driver = True

    def describe(self) -> Iterable[Metric]:
        """The metrics' names."""
        return [GaugeMetricFamily(name, help_, labels=_LABELS) for name, help_, _ in _FIGURES]

    def collect(self) -> Iterator[Metric]:
        """The figures now."""
        gpus = list(self._gpus()) if self._has_driver else []
        for name, help_, read in _FIGURES:
            family = GaugeMetricFamily(name, help_, labels=_LABELS)
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
_LATENCY_S = (
    *(0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1),
    *(0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 120.0),
)
_QUEUE_S = (0.0001, *_LATENCY_S)
_BATCH_INPUTS = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024)


class Metrics:
    """Counts calls and predictions, and reads ``load`` at each scrape. Thread-safe; observes each kind."""

    def __init__(self, load: Callable[[], AgentLoad]) -> None:
        self.registry = registry = CollectorRegistry(auto_describe=True)
        self._requests = Counts(
            "inferometer_requests",
            "Calls that were answered, by the gRPC status of the answer, also over HTTP.",
            ("method", "model", "code"),
        )
        self._request_seconds = Distributions(
            "inferometer_request_duration_seconds",
            "From when a call began until its answer was made; a stream until its end.",
            ("method", "model"),
            _LATENCY_S,
        )
        self._in_flight = Levels("inferometer_requests_in_flight", "Calls under way.", ("method",))
        self._prediction_seconds = Distributions(
            "inferometer_prediction_duration_seconds",
            "How long the framework took for a batch, transfers and synchronisation included.",
            ("model",),
            _LATENCY_S,
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
        self._answered: dict[tuple[str, str], tuple[Tally, Tally, Distribution]] = {}
        """What counts the calls of a method and a model that were answered with OK."""
        for metric in (
            self._requests,
            self._request_seconds,
            self._in_flight,
            self._prediction_seconds,
            self._batch_inputs,
            self._failures,
            self._hangs,
            self._queue_seconds,
        ):
            registry.register(metric)
        registry.register(_LoadCollector(load))
        registry.register(GpuMetrics())
        ProcessCollector(registry=registry)
        PlatformCollector(registry=registry)

    def call_began(self, call: Call) -> None:
        """Counts a call that is under way."""
        self._in_flight.of(call.method).add()

    def call_ended(self, call: Call, code: grpc.StatusCode, duration_ns: int) -> None:
        """Counts a call that was answered."""
        if code is grpc.StatusCode.OK:
            found = self._answered.get((call.method, call.model))
            if found is None:
                found = self._answered[call.method, call.model] = self._of(call, code)
        else:
            found = self._of(call, code)
        in_flight, requests, seconds = found
        in_flight.add(-1)
        requests.add()
        seconds.add(duration_ns / _NS_PER_S)

    def _of(self, call: Call, code: grpc.StatusCode) -> tuple[Tally, Tally, Distribution]:
        method, model = call.method, call.model
        return (
            self._in_flight.of(method),
            self._requests.of(method, model, code.name),
            self._request_seconds.of(method, model),
        )

    def predicted(self, model: str, inputs: int, duration_ns: int) -> None:
        """Counts a batch."""
        self._prediction_seconds.of(model).add(duration_ns / _NS_PER_S)
        self._batch_inputs.of(model).add(inputs)

    def prediction_failed(self, model: str, error: BaseException) -> None:
        """Counts a batch that the framework failed on."""
        self._failures.of(model, failure_kind(error)).add()

    def prediction_hangs(self, model: str) -> None:
        """Counts a prediction that hangs."""
        self._hangs.of(model).add()

    def waited(self, model: str, queue_ns: Sequence[int]) -> None:
        """Counts how long requests waited."""
        count = self._queue_seconds.of(model).add
        for time_ns in queue_ns:
            count(time_ns / _NS_PER_S)


def failure_kind(error: BaseException) -> str:
    """Returns the value of the label ``kind`` of ``inferometer_prediction_failures_total``."""
    kinds: tuple[tuple[type[BaseException], str], ...] = (
        (OutOfMemoryError, "out_of_memory"),
        (DeviceLostError, "device_lost"),
        (HungError, "hung"),
        (PredictionError, "framework"),
        (InputError, "input"),
    )
    return next((name for kind, name in kinds if isinstance(error, kind)), "fault")


class _LoadCollector(Collector):
    """What the agent holds at a scrape."""

    def __init__(self, load: Callable[[], AgentLoad]) -> None:
        self._load = load

    def describe(self) -> Iterable[Metric]:
        return self._families(AgentLoad())

    def collect(self) -> Iterable[Metric]:
        return self._families(self._load())

    def _families(self, load: AgentLoad) -> Iterator[Metric]:
        info = GaugeMetricFamily("inferometer_info", "1; which version this is.", labels=("version",))
        info.add_metric((__version__,), 1)
        yield info
        yield GaugeMetricFamily(
            "inferometer_serving", "1 while the agent is fit to serve, 0 while it is not.", load.serving
        )
        yield GaugeMetricFamily(
            "inferometer_sessions_open", "Sessions that clients hold open.", load.sessions
        )
        yield GaugeMetricFamily(
            "inferometer_predictions_hanging",
            "Predictions that hang at the moment.",
            len(load.trouble.hanging),
        )
        labels = ("model", "version", "framework", "device")
        loaded = GaugeMetricFamily("inferometer_models_loaded", "How often a model is loaded.", labels=labels)
        waiting = GaugeMetricFamily(
            "inferometer_queue_requests", "Requests that wait for their batch to begin.", labels=("model",)
        )
        copies: dict[tuple[str, ...], int] = {}
        queues: dict[str, int] = {}
        for model in load.models:
            manifest, device = model.manifest, str(model.description.device)
            key = (manifest.name, manifest.version, manifest.framework.name, device)
            copies[key] = copies.get(key, 0) + 1
            queues[manifest.name] = queues.get(manifest.name, 0) + model.waiting
        for values, count in copies.items():
            loaded.add_metric(values, count)
        for name, count in queues.items():
            waiting.add_metric((name,), count)
        yield loaded
        yield waiting
