"""The statistics of a server while it is under load: series on the run's clock, and what reads them.

A source is read at a fixed rate, in a thread of its own: the statistics of the Open Inference Protocol, the
status of an agent, or a page of Prometheus metrics. A reading belongs to the middle of its round trip; it is
off by at most half of that, which is kept with it (Cristian, "Probabilistic clock synchronization", 1989).
"""

from __future__ import annotations

import re
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Protocol, TypeAlias, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from inferometer.agent.artifacts.web import Reach, Timeouts, WebError, open_url
from inferometer.manifests.errors import AgentError, InferometerError, one_line

READ_TIMEOUT_S = 1.0
MOST_READINGS = 2_048
"""The maximum number of readings of a source; a longer run is read less and less often."""
_MOST_FAILURES = 3
"""The number of failures in a row after which a source is not read any more."""
_MOST_PAGE_BYTES = 8 * 1024 * 1024
COUNTERS = frozenset(
    {"requests", "success_ns", "queue_ns", "input_ns", "infer_ns", "output_ns"}
    | {"inferences", "executions", "cpu_ns", "prefix_tokens", "prefix_hits"}
)
"""The figures that only grow while a server runs; the others are levels.

``requests`` counts the answered requests; the times add up what each of them took: ``success_ns`` in the
server as a whole, ``queue_ns`` until its batch began, ``input_ns`` and ``output_ns`` to assemble and to split
its batch, and ``infer_ns`` in the model. ``inferences`` counts inputs, ``executions`` batches.
``prefix_tokens`` counts the tokens that were looked up in a cache of prefixes, ``prefix_hits`` those found.
"""
_DERIVED = {
    "queue_length": ("queue_ns", ""),
    "in_flight": ("success_ns", ""),
    "batch_size": ("inferences", "executions"),
    "prefix_hit_share": ("prefix_hits", "prefix_tokens"),
    "cpu_cores": ("cpu_ns", ""),
}
"""Levels between two readings, as the growth of one counter over that of another, or over the time.

By Little's law, the time that requests spend in a queue over the time that passes is its mean length.
"""
ReadStatistics: TypeAlias = Callable[[float], Mapping[str, float]]
"""Reads the figures of a server within a number of seconds; raises InferometerError if it does not answer."""


@runtime_checkable
class ReportingTarget(Protocol):
    """A load target whose server reports statistics."""

    @property
    def served_name(self) -> str:
        """The server's name of the model."""
        ...

    def statistics_sources(self) -> Mapping[str, ReadStatistics]:
        """Returns what reads the server's statistics, by name."""
        ...


@dataclass(frozen=True, slots=True, eq=False)
class ServerSeries:
    """What one source reported during a run, in n readings.

    Attributes:
        source: The name of the source.
        at_ns: int64; when each reading was taken, since the run began; the middle of its round trip.
        bound_ns: int64; the maximum error of ``at_ns``: half of the round trip.
        figures: float64 by name; see ``COUNTERS``. NaN stands for a figure that a reading lacks.
        note: The source's first failure, in one line; empty if there was none.
    """

    source: str
    at_ns: NDArray[np.int64]
    bound_ns: NDArray[np.int64]
    figures: Mapping[str, NDArray[np.float64]]
    note: str = ""

    @property
    def was_reset(self) -> NDArray[np.bool_]:
        """bool, n - 1; whether a counter fell between two readings, as when the server was restarted."""
        fell = np.zeros(max(len(self.at_ns) - 1, 0), np.bool_)
        for name in COUNTERS & self.figures.keys():
            fell |= np.diff(self.figures[name]) < 0
        return fell

    def growth(self, name: str) -> NDArray[np.float64]:
        """float64, n - 1; how much a counter grew between two readings; NaN if unknown or reset."""
        if name not in self.figures:
            return np.full(max(len(self.at_ns) - 1, 0), np.nan)
        return np.where(self.was_reset, np.nan, np.diff(self.figures[name]))

    def level(self, name: str) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Returns the times and the values of a level, as far as known; see ``_DERIVED``.

        A level that was read is that of its time; a derived one is the mean between two readings.
        """
        at_ns, values = self.at_ns.astype(np.float64), self.figures.get(name)
        if values is None:
            over, under = _DERIVED.get(name, (name, ""))
            passed = self.growth(under) if under else np.diff(at_ns)
            values = self.growth(over) / np.where(passed > 0, passed, np.nan)
            at_ns = at_ns[:-1] + np.diff(at_ns) / 2
        known = np.isfinite(values)
        return at_ns[known], values[known]


_Reading: TypeAlias = tuple[int, int, Mapping[str, float]]
"""When a call was sent and answered, and the figures."""


class ServerReader:
    """A context manager that reads each source in a thread during a run, and once before it and after it.

    It serves several runs in turn. A source that fails three times in a row is not read any more. One that
    hangs delays the begin of a run by one timeout, and its end by two at most.

    Args:
        sources: What reads each source, by name.
        rate_hz: How often each source is read, per second; 0 for never.
        clock: The clock of the runs, in nanoseconds.
    """

    def __init__(
        self,
        sources: Mapping[str, ReadStatistics],
        rate_hz: float = 0.0,
        clock: Callable[[], int] = time.perf_counter_ns,
    ) -> None:
        self._sources = dict(sources) if rate_hz else {}
        self._rate_hz = rate_hz
        self._clock = clock
        self._taken: dict[str, list[_Reading]] = {}
        self._threads: list[threading.Thread] = []
        self.notes: dict[str, str] = {}
        """The first failure of each source that failed, in one line."""

    def __enter__(self) -> ServerReader:
        self._ended, first = threading.Event(), threading.Semaphore(0)
        self._taken, self._threads = {name: [] for name in tuple(self._sources)}, []
        for each in self._taken.items():
            work = partial(self._work, *each, self._ended, first)
            self._threads.append(threading.Thread(target=work, name="read-statistics", daemon=True))
            self._threads[-1].start()
        for _ in self._threads:
            first.acquire(timeout=READ_TIMEOUT_S)
        return self

    def __exit__(self, kind: object, *_: object) -> None:
        self._ended.set()
        for each in self._threads if kind is None else ():  # an interrupted run does not wait
            each.join(2 * READ_TIMEOUT_S)

    def _work(
        self, name: str, taken: list[_Reading], ended: threading.Event, first: threading.Semaphore
    ) -> None:
        read, failures, interval_s, due_s = self._sources[name], 0, 1 / self._rate_hz, time.monotonic()
        while True:
            is_last, sent_ns = ended.is_set(), self._clock()
            try:
                figures = read(READ_TIMEOUT_S)
                taken.append((sent_ns, self._clock(), figures))
                failures = 0
            except (InferometerError, ValueError) as error:  # the latter is gRPC's for a closed connection
                self.notes.setdefault(name, one_line(error))
                failures, is_last = failures + 1, ended.is_set()
            first.release()
            if failures == _MOST_FAILURES:
                del self._sources[name]
                return
            if is_last:
                return
            if len(taken) >= MOST_READINGS:
                del taken[1::2]
                interval_s *= 2
            due_s = max(due_s + interval_s, time.monotonic())
            ended.wait(due_s - time.monotonic())

    def series(self, began_ns: int) -> tuple[ServerSeries, ...]:
        """Returns what the sources reported during the last run, which began at a time of the clock."""
        return tuple(self._series(name, list(taken), began_ns) for name, taken in self._taken.items())

    def _series(self, source: str, taken: Sequence[_Reading], began_ns: int) -> ServerSeries:
        ends_ns = np.array([each[:2] for each in taken], np.int64).reshape(-1, 2)
        at_ns, bound_ns = ends_ns.sum(axis=1) // 2 - began_ns, (ends_ns[:, 1] - ends_ns[:, 0] + 1) // 2
        names = dict.fromkeys(name for _, _, figures in taken for name in figures)
        columns = {name: np.array([each[2].get(name, np.nan) for each in taken]) for name in names}
        return ServerSeries(source, at_ns, bound_ns, columns, self.notes.get(source, ""))


_METRICS: Mapping[str, str] = {
    "queue_length": "inferometer_queue_requests nv_inference_pending_request_count vllm:num_requests_waiting",
    "in_flight": "inferometer_requests_in_flight vllm:num_requests_running",
    "cache_use": "vllm:kv_cache_usage_perc vllm:gpu_cache_usage_perc",  # a version has one of the two
    "prefix_tokens": "vllm:prefix_cache_queries_total",
    "prefix_hits": "vllm:prefix_cache_hits_total",
    "gpu_use": "inferometer_gpu_utilization_ratio nv_gpu_utilization",
    "gpu_memory_bytes": "inferometer_gpu_memory_used_bytes nv_gpu_memory_used_bytes",
    "host_cpu_use": "nv_cpu_utilization",
    "host_memory_bytes": "nv_cpu_memory_used_bytes",
    "cpu_ns": "process_cpu_seconds_total",
    "memory_bytes": "process_resident_memory_bytes",
    "inferences": "inferometer_batch_inputs_sum nv_inference_count",
    "executions": "inferometer_batch_inputs_count nv_inference_exec_count",
    "requests": "nv_inference_request_success vllm:e2e_request_latency_seconds_count "
    "request_predict_seconds_count",
    "success_ns": "nv_inference_request_duration_us vllm:e2e_request_latency_seconds_sum",
    "queue_ns": "nv_inference_queue_duration_us vllm:request_queue_time_seconds_sum",
    "input_ns": "nv_inference_compute_input_duration_us request_preprocess_seconds_sum",
    "infer_ns": "nv_inference_compute_infer_duration_us vllm:request_inference_time_seconds_sum "
    "request_predict_seconds_sum",
    "output_ns": "nv_inference_compute_output_duration_us request_postprocess_seconds_sum",
}
"""The metrics of each figure: those of our agents, and those that Triton 2.51 (nv_…; of a GPU, as its
documentation names them), vLLM 0.32, KServe's Python servers 0.21 (request_…) and any Prometheus client
(process_…) print."""
_FIGURES = {name: figure for figure, names in _METRICS.items() for name in names.split()}
_UNITS = {"_us": 1e3, "_seconds_sum": 1e9, "_seconds_total": 1e9}
"""The nanoseconds in the unit at the end of a metric's name."""
_SHARES = ("gpu_use", "host_cpu_use", "cache_use")
"""Figures of which several samples, as of several GPUs, have a mean; the others have a sum."""
_SAMPLE = re.compile(
    rf"^({'|'.join(map(re.escape, _FIGURES))})"
    r'(?:\{((?:[^"}]|"(?:[^"\\]|\\.)*")*)\})?[ \t]+'
    r"([-+]?(?:\d+\.?\d*|\.\d+)(?:[eE][-+]?\d+)?)(?=[ \t\r]|$)",
    re.MULTILINE,
)
"""A finite sample in Prometheus's text format. Only known names match, so that a long page takes no time."""
_MODEL = re.compile(r'(?:^|,)\s*model(?:_name)?="((?:[^"\\]|\\.)*)"')
_IN_FLIGHT = "inferometer_requests_in_flight"
_PREDICTS = re.compile(r'method="[^"]*(?:/Predict|/PredictStream|/ModelInfer|/ModelStreamInfer|/infer)"')


def read_page(text: str, model: str = "") -> dict[str, float]:
    """Returns the known figures of a page of metrics in Prometheus's text format.

    Of the samples with a label for the model, those of ``model`` count, or all if the page does not know it.
    Of our own requests in flight, only those for predictions count.
    """
    samples = _SAMPLE.findall(text)
    models = [found[1] if (found := _MODEL.search(labels)) else None for _, labels, _ in samples]
    counted = {None, model} if model in models else {*models}
    values: dict[str, list[float]] = {}
    for (name, labels, value), of_model in zip(samples, models, strict=True):
        if of_model in counted and (name != _IN_FLIGHT or _PREDICTS.search(labels)):
            factor = next((unit for end, unit in _UNITS.items() if name.endswith(end)), 1.0)
            values.setdefault(_FIGURES[name], []).append(float(value) * factor)
    return {name: sum(each) / (len(each) if name in _SHARES else 1) for name, each in values.items()}


def page_sources(urls: str, model: str) -> Iterator[tuple[str, ReadStatistics]]:
    """Yields the name of each page of metrics and what reads it, for URLs separated by commas."""
    for url in filter(None, map(str.strip, urls.split(","))):
        yield f"metrics at {url}", partial(_read_url, url, model)


def _read_url(url: str, model: str, timeout_s: float) -> Mapping[str, float]:
    """Reads a page of metrics; raises AgentError if that fails, or if it has no known metric."""
    timeouts = Timeouts(timeout_s, timeout_s, timeout_s)
    try:
        with open_url(url, timeouts, Reach.ANY, headers={"Accept": "text/plain;version=0.0.4"}) as response:
            if not 200 <= response.status < 300:
                raise response.refusal()
            text = b"".join(response.chunks(_MOST_PAGE_BYTES)).decode("utf-8", "replace")
    except WebError as error:
        raise AgentError(f"metrics at {url}: {error}") from error
    if not (found := read_page(text, model)):
        raise AgentError(f"metrics at {url}: the page has no metric of a server that is known here")
    return found
