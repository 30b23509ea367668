"""The profiler: the interface to a framework's own profiler, which records layers during ``predict``."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

from inferometer.agent.tracing.recorder import SpanRecorder
from inferometer.agent.tracing.span import SpanKind, TraceLevel


@dataclass(frozen=True, slots=True)
class PredictWindow:
    """One profiled call of ``Predictor.predict``, with its times on the recorder's clock.

    ``span_id`` is its span of level MODEL_TRACE, the parent of the layers; ``batch`` is the number of the
    batch.
    """

    span_id: int
    start_ns: int
    end_ns: int
    batch: int


class Profiler(ABC):
    """Records the layers of a model during predictions, and at deeper levels the operators inside them.

    The order of calls is ``start``, then any number of predictions each followed by ``predicted``, then
    ``collect``; and again. All calls are made by the thread that predicts, outside the time of a prediction.
    ``close`` may be called at any time, and more than once.

    Spans of level FRAMEWORK_TRACE are *layers*: they are in the order of execution, and do not
    overlap if the framework runs one after the other. Their kinds have the attributes

    - ``layer_index``: int, the position in the order of execution, from 0;
    - ``layer_type``: the operator, such as ``Convolution`` or ``aten::conv2d``;
    - ``input_shapes``, ``output_shapes``: texts such as ``8x3x224x224``, if known;
    - ``arguments``: texts that tell the parameters as the framework has them, such as strides, if known;
    - ``allocated_bytes``, ``peak_bytes``: ints, if known;

    each with the prefix ``inferometer.``, as in ``SpanKind.of``. Spans of ML_LIBRARY_TRACE are operators
    inside a layer. Those of SYSTEM_LIBRARY_TRACE are calls of the device's runtime, kernels and copies; their
    parent is the layer, and they have a ``correlation_id`` if there is one. A span lies inside its parent,
    except for kernels and copies, which run on the device's own time line.

    Attributes:
        round_batches: The number of batches after which to ``collect`` and ``start`` again, which bounds the
            memory; it may change at ``collect``.
    """

    round_batches: int = 16

    def __init__(self, level: TraceLevel, *, gpu: bool) -> None:
        self._level = level
        self._gpu = gpu
        self._windows: list[PredictWindow] = []
        self._folder: TemporaryDirectory[str] | None = None

    @abstractmethod
    def start(self) -> None:
        """Starts recording.

        Raises:
            PredictionError: The framework's profiler is not available, for instance because another one runs.
        """

    def predicted(self, window: PredictWindow) -> None:
        """Registers a prediction since ``start``."""
        self._windows.append(window)

    @abstractmethod
    def collect(self, recorder: SpanRecorder) -> None:
        """Stops recording, and adds the spans of the predictions since ``start``.

        Data that the framework does not provide is reported with ``SpanRecorder.note``.
        """

    @abstractmethod
    def close(self) -> None:
        """Stops recording and removes all hooks; calling it again does nothing."""

    def open_folder(self) -> Path:
        """Returns a temporary folder for the framework's files, made at the first call."""
        if self._folder is None:
            self._folder = TemporaryDirectory(prefix="inferometer-")
        return Path(self._folder.name)

    def remove_folder(self) -> None:
        """Removes the temporary folder, if there is one."""
        if self._folder is not None:
            folder, self._folder = self._folder, None
            folder.cleanup()

    def note_missing_device_calls(self, recorder: SpanRecorder, framework: str) -> None:
        """Notes that a framework's profiler records no device calls, if the level includes them."""
        if self._level >= TraceLevel.SYSTEM_LIBRARY_TRACE:
            why = f"{framework}'s profiler has none" if self._gpu else "the model runs on the CPU"
            recorder.note(f"no calls of a device's runtime, kernels or copies: {why}")


class LayerWriter:
    """Adds spans below a prediction, clipped to it where the clocks differ."""

    def __init__(self, recorder: SpanRecorder, window: PredictWindow) -> None:
        self._recorder = recorder
        self._window = window

    def add(
        self, kind: SpanKind, start_ns: int, end_ns: int, parent_id: int | None = None, thread: int = 0
    ) -> int:
        """Adds a span and returns its id; ``parent_id`` is the layer that contains it, None for a layer.

        The times are on the recorder's clock; ``thread`` is the thread or stream that it ran on.
        """
        window = self._window
        start_ns = min(max(start_ns, window.start_ns), window.end_ns)
        end_ns = min(max(end_ns, start_ns), window.end_ns)
        parent_id = window.span_id if parent_id is None else parent_id
        return self._recorder.add(kind, start_ns, end_ns, parent_id, batch=window.batch, thread=thread)


def shape_texts(shapes: Iterable[Iterable[int]]) -> tuple[str, ...] | None:
    """Returns shapes as texts such as ``8x3x224x224``, without scalars; None if there are none."""
    return tuple(text for shape in shapes if (text := "x".join(map(str, shape)))) or None
