"""The layer writer: adds the layers of one prediction to a trace, inside of it."""

from __future__ import annotations

from collections.abc import Iterable

from agent.tracing.profiler import PredictWindow
from agent.tracing.recorder import SpanRecorder
from agent.tracing.span import SpanKind


class LayerWriter:
    """Adds spans below a prediction, and cuts off what the clocks differ by at its edges.

    Args:
        recorder: Takes the spans.
        window: The prediction.
    """

    def __init__(self, recorder: SpanRecorder, window: PredictWindow) -> None:
        self._recorder = recorder
        self._window = window

    def add(self, kind: SpanKind, start_ns: int, end_ns: int, parent_id: int | None = None) -> int:
        """Adds a span and returns its id.

        Args:
            kind: What it is.
            start_ns: When it began, on the recorder's clock.
            end_ns: When it ended.
            parent_id: The layer that it lies in; None for a layer.
        """
        window = self._window
        start_ns = min(max(start_ns, window.start_ns), window.end_ns)
        end_ns = min(max(end_ns, start_ns), window.end_ns)
        parent_id = window.span_id if parent_id is None else parent_id
        return self._recorder.add(kind, start_ns, end_ns, parent_id, batch=window.batch)


def shape_texts(shapes: Iterable[Iterable[int]]) -> tuple[str, ...] | None:
    """Returns shapes as texts such as ``8x3x224x224``, without scalars, which have none; None for no text."""
    return tuple(text for shape in shapes if (text := "x".join(map(str, shape)))) or None
