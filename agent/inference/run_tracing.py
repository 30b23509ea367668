"""The spans of a run of batches through the pipeline, and hardware samples taken during the run."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress

import psutil

from inferometer.agent.hardware.conditions import GpuReader
from inferometer.agent.hardware.environment import Device
from inferometer.agent.inference.stages import PreparedInput
from inferometer.agent.tracing.recorder import (
    AttributeValue,
    PredictWindow,
    Profiler,
    SpanKind,
    SpanRecorder,
    TraceLevel,
    TraceScope,
)
from inferometer.manifests.errors import InferometerError, one_line

_READ = SpanKind("read", TraceLevel.APPLICATION_TRACE)
_PREPROCESS = SpanKind("preprocess", TraceLevel.APPLICATION_TRACE)
_POSTPROCESS = SpanKind("postprocess", TraceLevel.APPLICATION_TRACE)
SAMPLE_INTERVAL_S = 0.1
"""The time between two samples of the hardware. A sample takes about 0.1 ms, in a thread of its own."""


class RunTracing:
    """Records a run: its inputs, its batches and, through a profiler, the model's layers.

    For each input it records ``read`` and ``preprocess``; for each batch ``predict_step`` with ``predict``
    (from MODEL_TRACE on: exactly the timed region) and ``postprocess`` below it. It serves one run; the
    predicting thread calls its methods, outside the timed predictions.

    The profiler is not closed here. The ``attributes`` are added to every ``predict`` and every
    ``predict_step``; ``step`` can rename the latter.
    """

    def __init__(
        self,
        scope: TraceScope,
        profiler: Profiler | None,
        attributes: Mapping[str, AttributeValue],
        step: str = "predict_step",
    ) -> None:
        self._step = step
        self._scope = scope
        self._recorder = scope.recorder
        self._profiler = profiler
        self._attributes = attributes
        self._kinds: dict[int, tuple[SpanKind, SpanKind]] = {}
        self._batch = scope.first_batch - 1
        self._profiled = 0
        self._step_id = 0
        self._size = 0

    def begin_batch(self, inputs: Sequence[PreparedInput]) -> None:
        """Records the preparation of the next batch's inputs."""
        self.begin(len(inputs))
        for each in inputs:
            end_ns = each.read_at_ns + each.read_ns
            self._add(_READ, each.read_at_ns, end_ns, thread=each.thread)
            if each.preprocess_at_ns:
                end_ns = each.preprocess_at_ns + each.preprocess_ns
                self._add(_PREPROCESS, each.preprocess_at_ns, end_ns, thread=each.thread)

    def begin(self, size: int) -> None:
        """Begins the next batch, of ``size`` inputs."""
        self._batch += 1
        self._step_id = self._recorder.new_id()
        self._size = size

    def begin_tensor(self, size: int, start_ns: int, end_ns: int) -> None:
        """Records the check of the next batch, which is a single tensor of ``size`` inputs."""
        self.begin(size)
        self._add(_PREPROCESS, start_ns, end_ns, thread=threading.get_native_id())

    def before_predict(self) -> None:
        """Starts the profiler; called immediately before a prediction is timed."""
        if self._profiler is not None and not self._profiled:
            self._profiler.start()

    def after_predict(self, start_ns: int, end_ns: int, *, failed: bool = False) -> None:
        """Records a prediction that was timed or that failed."""
        span_id = self._recorder.new_id()
        if self._recorder.wants(TraceLevel.MODEL_TRACE):
            self._add(self._kind_of_batch()[1], start_ns, end_ns, self._step_id, span_id=span_id)
        if self._profiler is None:
            return
        if failed:  # its records cannot be separated from the rest
            self._profiler.close()
            if self._profiled:
                lost = f"{self._profiled} batches before batch {self._batch}, whose prediction failed"
                self._recorder.note(f"no layers of {lost}")
            self._profiled = 0
            return
        self._profiler.predicted(PredictWindow(span_id, start_ns, end_ns, self._batch))
        self._profiled += 1
        if self._profiled >= self._profiler.round_batches:
            self.collect()

    def after_postprocess(self, start_ns: int, end_ns: int) -> None:
        """Records the postprocessing of the batch."""
        self._add(_POSTPROCESS, start_ns, end_ns, self._step_id)

    def end_batch(self, start_ns: int, end_ns: int) -> None:
        """Records the whole batch."""
        self._add(self._kind_of_batch()[0], start_ns, end_ns, span_id=self._step_id)

    def collect(self) -> None:
        """Collects the records of the profiler; called when the run ends.

        If that fails, as on a full disk, the trace lacks layers, but the times of the batches are complete.
        """
        if self._profiler is not None and self._profiled:
            lost, self._profiled = self._profiled, 0
            recorder = self._recorder
            if not self._scope.layers:  # one that keeps nothing, on the same clock
                recorder = SpanRecorder(recorder.context, recorder.level, limit=0, clock=recorder.clock)
            try:
                self._profiler.collect(recorder)
            except (InferometerError, OSError) as error:
                self._recorder.note(f"no layers of {lost} batches: {one_line(error)}")
                self._profiler.close()

    def _kind_of_batch(self) -> tuple[SpanKind, SpanKind]:
        """Returns the span kinds ``predict_step`` and ``predict`` for a batch of this size."""
        kinds = self._kinds.get(self._size)
        if kinds is None:
            given = {**self._attributes, "batch_size": self._size}
            kinds = self._kinds[self._size] = (
                SpanKind.of(self._step, TraceLevel.APPLICATION_TRACE, **given),
                SpanKind.of("predict", TraceLevel.MODEL_TRACE, **given),
            )
        return kinds

    def _add(
        self,
        kind: SpanKind,
        start_ns: int,
        end_ns: int,
        parent_id: int | None = None,
        *,
        span_id: int | None = None,
        thread: int = 0,
    ) -> None:
        """Records a span below the run's scope, or below a given parent."""
        parent_id = self._scope.parent_id if parent_id is None else parent_id
        self._recorder.add(
            kind, start_ns, end_ns, parent_id, span_id=span_id, batch=self._batch, thread=thread
        )


class HardwareSampler:
    """Adds a span for each interval between two hardware samples, from ``start`` to ``close``.

    Its attributes, all under ``inferometer.``: ``process_cpu_percent`` (relative to one core, over the
    interval; 200 means two whole cores), ``process_memory_bytes`` (resident, at the interval's end),
    ``system_cpu_percent`` (of all cores) and, for a GPU, ``gpu_utilization_percent``, ``gpu_memory_bytes``
    (of all processes), ``gpu_power_watts``, ``gpu_sm_clock_mhz`` and ``gpu_temperature_celsius``, as far as
    the driver reports them.

    ``gpu_reader`` reads the figures of a GPU in place of NVML.
    """

    def __init__(
        self,
        scope: TraceScope,
        device: Device,
        interval_s: float = SAMPLE_INTERVAL_S,
        gpu_reader: Callable[[], dict[str, float]] | None = None,
    ) -> None:
        self._scope = scope
        self._interval_s = interval_s
        self._process = psutil.Process()
        self._gpu: GpuReader | None = None
        self._read_gpu = gpu_reader
        if device.is_gpu and gpu_reader is None:
            self._gpu = GpuReader(device)
            self._read_gpu = self._gpu.figures
            if self._gpu.error is not None:
                scope.recorder.note(f"no figures for {device}: NVML cannot read it: {self._gpu.error}")
        elif not device.is_gpu:
            scope.recorder.note("no figures for a GPU: the model runs on the CPU")
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._sample, name="hardware-sampler", daemon=True)

    def start(self) -> None:
        """Starts the sampling thread."""
        self._thread.start()

    def close(self) -> None:
        """Takes a last sample and stops; calling it again does nothing."""
        self._stopping.set()
        if self._thread.ident is not None:
            self._thread.join()
        if self._gpu is not None:
            self._gpu.close()

    def _sample(self) -> None:
        clock = self._scope.recorder.clock
        self._process.cpu_percent()  # the first call begins the interval of the next one
        psutil.cpu_percent()
        started_ns = clock()
        stopped = False
        while not stopped:
            stopped = self._stopping.wait(self._interval_s)
            figures: dict[str, float] = {}
            with suppress(psutil.Error):
                figures["process_cpu_percent"] = self._process.cpu_percent()
                figures["process_memory_bytes"] = self._process.memory_info().rss
                figures["system_cpu_percent"] = psutil.cpu_percent()
            if self._read_gpu is not None:
                figures |= self._read_gpu()
            ended_ns = clock()
            kind = SpanKind.of("hardware_sample", TraceLevel.HARDWARE_TRACE, **figures)
            self._scope.add(kind, started_ns, ended_ns, thread=threading.get_native_id())
            started_ns = ended_ns
