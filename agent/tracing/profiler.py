"""What a framework's own profiler is to a trace: it records what runs inside ``predict``."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass

from agent.tracing.recorder import SpanRecorder

PROFILED_BATCHES = 16
"""Batches after which what a profiler holds is turned into spans, unless it asks for another number."""


@dataclass(frozen=True, slots=True)
class PredictWindow:
    """One call of ``Predictor.predict`` that was profiled.

    Attributes:
        span_id: Its span of level MODEL_TRACE, which layers hang under.
        start_ns: When it was called, on the recorder's clock.
        end_ns: When it returned.
        batch: The number of the batch.
    """

    span_id: int
    start_ns: int
    end_ns: int
    batch: int


class Profiler(ABC):
    """Records the layers of a model while it predicts, and from deeper levels what the layers are made of.

    The order of calls is ``start``, then any number of predictions each followed by ``predicted``, then
    ``collect``; and again. All come from the thread that predicts, and none is inside the time of a
    prediction. ``close`` may come at any time, and more than once.

    Spans of level FRAMEWORK_TRACE are *layers*: they follow each other in the order in which they ran, and do
    not overlap where the framework runs one after the other. Their kinds have the attributes

    - ``layer_index``: int, the place in the order of execution, from 0;
    - ``layer_type``: the operator, such as ``Convolution`` or ``aten::conv2d``;
    - ``input_shapes``, ``output_shapes``: texts such as ``8x3x224x224``, as far as the framework tells;
    - ``allocated_bytes``, ``peak_bytes``: ints, as far as the framework tells;

    each behind ``inferscope.``, as ``SpanKind.of`` makes them. Spans of ML_LIBRARY_TRACE are operators inside
    a layer. Those of SYSTEM_LIBRARY_TRACE are calls of the device's runtime, kernels and copies; they hang
    under their layer, with ``correlation_id`` where there is one. A span lies inside its parent, except for
    kernels and copies, which run on the device's own time line.

    Attributes:
        round_batches: The batches after which to ``collect`` and ``start`` again, to bound what it holds; it
            may change at ``collect``.
    """

    round_batches: int = PROFILED_BATCHES

    @abstractmethod
    def start(self) -> None:
        """Begins to record.

        Raises:
            PredictionError: The framework's profiler cannot be used, for instance because another one runs.
        """

    @abstractmethod
    def predicted(self, window: PredictWindow) -> None:
        """Is told of a prediction since ``start``."""

    @abstractmethod
    def collect(self, recorder: SpanRecorder) -> None:
        """Stops recording, and adds the spans of the predictions since ``start``.

        What the framework does not give is noted with ``SpanRecorder.note``, not made up.
        """

    @abstractmethod
    def close(self) -> None:
        """Stops recording and removes all hooks; calling it again does nothing."""
