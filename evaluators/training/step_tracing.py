"""The spans of a training run: its steps, their parts, and the layers of both directions."""

from __future__ import annotations

from collections.abc import Mapping

from inferometer.agent.tracing.profiler import PredictWindow, Profiler
from inferometer.agent.tracing.recorder import SpanRecorder, TraceScope
from inferometer.agent.tracing.span import AttributeValue, SpanKind, TraceLevel
from inferometer.agent.training.trainer import StepParts
from inferometer.manifests.errors import InferometerError, one_line

_WAIT = SpanKind("wait", TraceLevel.APPLICATION_TRACE)
_COPY = SpanKind("copy", TraceLevel.APPLICATION_TRACE)
_PARTS = ("forward", "backward", "communicate", "update")


class StepTracing:
    """The recorder of the steps of a run; the loop calls it outside the time of a step's parts.

    For each step it records ``train_step`` with ``wait`` and ``copy``, and from MODEL_TRACE on ``train``
    (exactly the timed region) with its parts, one after the other. The layers of a profiler are below
    ``train``. The profiler is not closed here.

    Args:
        scope: The parent of the steps; one without layers discards those of its steps.
        profiler: Records the layers; None for none.
        attributes: Attributes of every ``train_step`` and ``train``.
    """

    def __init__(
        self, scope: TraceScope, profiler: Profiler | None, attributes: Mapping[str, AttributeValue]
    ) -> None:
        self._scope = scope
        self._recorder = scope.recorder
        self._profiler = profiler
        self._attributes = attributes
        self._profiled = 0

    @property
    def profiles(self) -> bool:
        """Whether a profiler slows the steps down, and takes time between them."""
        return self._profiler is not None

    @property
    def times_parts(self) -> bool:
        """Whether each step is to be timed in parts."""
        return self._recorder.wants(TraceLevel.MODEL_TRACE)

    def before_step(self) -> None:
        """Starts the profiler; called before a step is timed."""
        if self._profiler is not None and not self._profiled:
            self._profiler.start()

    def after_step(
        self,
        step: int,
        samples: int,
        times_ns: tuple[int, int, int, int, int],
        parts: StepParts | None,
    ) -> None:
        """Records a step.

        Args:
            step: Its number, from 0.
            samples: Its samples on this rank.
            times_ns: On the recorder's clock: when its batch was asked for, had arrived, and was on the
                devices, and when the timed region began and ended.
            parts: The times of its parts.
        """
        asked_ns, loaded_ns, placed_ns, begun_ns, ended_ns = times_ns
        given = {**self._attributes, "batch_size": samples}
        whole = SpanKind.of("train_step", TraceLevel.APPLICATION_TRACE, **given)
        step_scope = self._scope.add(whole, asked_ns, ended_ns, batch=step)
        step_scope.add(_WAIT, asked_ns, loaded_ns, batch=step)
        step_scope.add(_COPY, loaded_ns, placed_ns, batch=step)
        if not self.times_parts:
            return
        train = SpanKind.of("train", TraceLevel.MODEL_TRACE, **given)
        inner = step_scope.add(train, begun_ns, ended_ns, batch=step)
        part_ns = begun_ns
        for name in _PARTS if parts is not None else ():
            duration_ns: int = getattr(parts, f"{name}_ns")
            inner.add(SpanKind(name, TraceLevel.MODEL_TRACE), part_ns, part_ns + duration_ns, batch=step)
            part_ns += duration_ns
        if self._profiler is not None:
            self._profiled += 1
            self._profiler.predicted(PredictWindow(inner.parent_id, begun_ns, ended_ns, step))
            if self._profiled >= self._profiler.round_batches:
                self.collect()

    def collect(self) -> None:
        """Collects the layers of the last steps; called when the run ends.

        If that fails, as on a full disk, the trace lacks layers: the times of the steps are complete.
        """
        if self._profiler is None or not self._profiled:
            return
        lost, self._profiled = self._profiled, 0
        recorder = self._recorder
        if not self._scope.layers:  # one that keeps nothing, on the same clock
            recorder = SpanRecorder(recorder.context, recorder.level, limit=0, clock=recorder.clock)
        try:
            self._profiler.collect(recorder)
        except (InferometerError, OSError) as error:
            self._recorder.note(f"no layers of {lost} steps: {one_line(error)}")
            self._profiler.close()
