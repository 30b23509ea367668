"""The spans of a run of batches through the pipeline, from the times that it takes anyway."""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from typing import Protocol

from agent.trace_level import TraceLevel
from agent.tracing.profiler import PredictWindow, Profiler
from agent.tracing.recorder import SpanRecorder
from agent.tracing.scope import TraceScope
from agent.tracing.span import AttributeValue, SpanKind

_READ = SpanKind("read", TraceLevel.APPLICATION_TRACE)
_PREPROCESS = SpanKind("preprocess", TraceLevel.APPLICATION_TRACE)
_POSTPROCESS = SpanKind("postprocess", TraceLevel.APPLICATION_TRACE)


class Prepared(Protocol):
    """When one input was read and preprocessed; see ``agent.preparation.PreparedInput``."""

    @property
    def read_at_ns(self) -> int: ...  # noqa: D102
    @property
    def read_ns(self) -> int: ...  # noqa: D102
    @property
    def preprocess_at_ns(self) -> int: ...  # noqa: D102
    @property
    def preprocess_ns(self) -> int: ...  # noqa: D102
    @property
    def thread(self) -> int: ...  # noqa: D102


class RunTracing:
    """Records a run: its inputs, its batches, and through a profiler what the model does.

    For each input ``read`` and ``preprocess``; for each batch ``predict_step`` with ``predict`` (from
    MODEL_TRACE on: exactly what is timed) and ``postprocess`` below it. It is for one run, and its methods
    come from the thread that predicts. Nothing of it lies inside the time of a prediction.

    Args:
        scope: Where the spans go.
        profiler: Records layers; None for none. It is not closed here.
        attributes: What every ``predict_step`` and ``predict`` is said to be of, behind ``inferscope.``.
    """

    def __init__(
        self, scope: TraceScope, profiler: Profiler | None, attributes: Mapping[str, AttributeValue]
    ) -> None:
        self._scope = scope
        self._recorder = scope.recorder
        self._profiler = profiler
        self._attributes = attributes
        self._kinds: dict[int, tuple[SpanKind, SpanKind]] = {}
        self._batch = scope.first_batch - 1
        self._profiled = 0
        self._step_id = 0
        self._size = 0

    def begin_batch(self, inputs: Sequence[Prepared]) -> None:
        """Is told of the inputs of the next batch, which are prepared."""
        self._batch += 1
        self._step_id = self._recorder.new_id()
        self._size = len(inputs)
        for each in inputs:
            read_end_ns = each.read_at_ns + each.read_ns
            self._add(_READ, each.read_at_ns, read_end_ns, self._scope.parent_id, thread=each.thread)
            if each.preprocess_at_ns:
                end_ns = each.preprocess_at_ns + each.preprocess_ns
                parent_id = self._scope.parent_id
                self._add(_PREPROCESS, each.preprocess_at_ns, end_ns, parent_id, thread=each.thread)

    def begin_tensor(self, size: int, start_ns: int, end_ns: int) -> None:
        """Is told of the next batch, which came as one tensor of ``size`` inputs, and when it was checked."""
        self._batch += 1
        self._step_id = self._recorder.new_id()
        self._size = size
        self._add(_PREPROCESS, start_ns, end_ns, self._scope.parent_id, thread=threading.get_native_id())

    def before_predict(self) -> None:
        """Comes right before a prediction is timed; the profiler is running afterwards."""
        if self._profiler is not None and not self._profiled:
            self._profiler.start()

    def after_predict(self, start_ns: int, end_ns: int, *, failed: bool = False) -> None:
        """Is told of a prediction that was timed, or that failed."""
        span_id = self._recorder.new_id()
        if self._recorder.wants(TraceLevel.MODEL_TRACE):
            self._add(self._kind_of_batch()[1], start_ns, end_ns, self._step_id, span_id=span_id)
        if self._profiler is None:
            return
        if failed:  # what it recorded of that cannot be told apart from the rest
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
        """Is told when the outputs of the batch were read."""
        self._add(_POSTPROCESS, start_ns, end_ns, self._step_id)

    def end_batch(self, start_ns: int, end_ns: int) -> None:
        """Is told when the batch was done."""
        self._add(self._kind_of_batch()[0], start_ns, end_ns, self._scope.parent_id, span_id=self._step_id)

    def collect(self) -> None:
        """Takes what the profiler has recorded; to be called when the run ends."""
        if self._profiler is not None and self._profiled:
            self._profiled = 0
            self._profiler.collect(self._recorder if self._scope.layers else _nowhere(self._recorder))

    def _kind_of_batch(self) -> tuple[SpanKind, SpanKind]:
        """The kinds of ``predict_step`` and ``predict`` for a batch of this size."""
        kinds = self._kinds.get(self._size)
        if kinds is None:
            given = {**self._attributes, "batch_size": self._size}
            kinds = self._kinds[self._size] = (
                SpanKind.of("predict_step", TraceLevel.APPLICATION_TRACE, **given),
                SpanKind.of("predict", TraceLevel.MODEL_TRACE, **given),
            )
        return kinds

    def _add(
        self,
        kind: SpanKind,
        start_ns: int,
        end_ns: int,
        parent_id: int,
        *,
        span_id: int | None = None,
        thread: int = 0,
    ) -> None:
        self._recorder.add(
            kind, start_ns, end_ns, parent_id, span_id=span_id, batch=self._batch, thread=thread
        )


def _nowhere(recorder: SpanRecorder) -> SpanRecorder:
    """A recorder that keeps nothing, on the same clock."""
    return SpanRecorder(recorder.context, recorder.level, limit=0, clock=recorder.clock)
