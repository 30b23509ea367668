"""Spans from PyTorch's profiler: operators linked to their modules, and GPU kernels linked to both."""

from __future__ import annotations

import importlib
import itertools
import os
import re
import threading
import warnings
from bisect import bisect_right
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch.profiler import ProfilerActivity, profile

from inferometer.agent.tracing.recorder import (
    LayerWriter,
    PredictWindow,
    Profiler,
    SpanKind,
    SpanRecorder,
    TraceLevel,
    shape_texts,
)
from inferometer.manifests.errors import PredictionError

# Kineto writes to stderr whenever it starts and stops.
os.environ.setdefault("KINETO_LOG_LEVEL", "99")
_KINETO = threading.Lock()
"""Held while a profiler records: Kineto has one for the whole process, which a second one would crash."""
_INDUCTOR_FOLDER = "TORCHINDUCTOR_CACHE_DIR"
_CPU = torch.autograd.DeviceType.CPU  # type: ignore[attr-defined]  # which torch's stubs do not export
_MARK = "inferometer/"
"""The prefix of module annotations, before the module's path, which is empty for the model."""
_BACKWARD = "autograd::engine::evaluate_function: "
"""The prefix of operators that autograd runs, before the name of the backward function."""
_OPERATOR, _ANNOTATION, _MEMORY = "cpu_op", "user_annotation", "cpu_instant_event"
_RUNTIME = "cuda_runtime"  # or a call of the driver
_RUNTIME_CALL = re.compile("(cuda|cu|hip)[A-Z]")
_USER_SCOPE = 7
"""What ``scope`` is for an annotation of ``record_function``: ``RecordScope::USER_SCOPE``."""


def import_inductor() -> None:
    """Imports the profiler's dependency without leaving a folder in ``/tmp``.

    Its import creates a cache folder by default; here it uses an existing one.
    """
    if _INDUCTOR_FOLDER in os.environ:
        return
    os.environ[_INDUCTOR_FOLDER] = str(Path(torch.__file__).parent)
    try:
        importlib.import_module("torch._inductor")
    finally:
        del os.environ[_INDUCTOR_FOLDER]


class PyTorchProfiler(Profiler):
    """Profiles a module with ``torch.profiler`` (Kineto).

    A layer is an operator that the module's Python code called, such as ``aten::conv2d``; its name is the
    path of the innermost module whose ``forward`` called it, followed by the operator's name if that module
    has other parts: ``layer1.0.conv1``, ``layer1.0/add``. The operators inside it are ML_LIBRARY spans. On a
    GPU, a layer lasts from the start of its first kernel to the end of the last; the ML_LIBRARY spans show
    the host's work, which precedes it. There, a runtime call outside all operators is a layer if it started
    work on the device, and a layer's memory is device memory.

    With ``training``, a window is a whole step, and each layer has a ``phase``: ``forward``, ``loss``,
    ``backward`` or ``update``. A layer of ``backward`` has the name of its forward layer.
    """

    def __init__(
        self, module: torch.nn.Module, level: TraceLevel, *, gpu: bool, training: bool = False
    ) -> None:
        super().__init__(level, gpu=gpu)
        self._module = module
        self._training = training
        self._profile: profile | None = None
        self._hooks: list[Any] = []

    def start(self) -> None:
        """Registers hooks that mark each module's calls, and starts Kineto; see ``Profiler``.

        Does nothing while another profiler of this process uses Kineto, which ``collect`` notes.
        """
        self._windows = []
        if not _KINETO.acquire(blocking=False):
            return
        activities = [ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if self._gpu else [])]
        self._profile = profile(
            activities=activities, record_shapes=True, profile_memory=True, acc_events=False
        )
        import_inductor()
        try:
            with warnings.catch_warnings():
                # some versions warn of the first profile that it loses earlier cycles; there are none
                warnings.filterwarnings("ignore", "Warning: Profiler clears events")
                self._profile.start()
        except RuntimeError as error:
            self._profile = None
            _KINETO.release()
            raise PredictionError(f"PyTorch's profiler cannot be started: {error}") from error
        self._add_hooks()

    def collect(self, recorder: SpanRecorder) -> None:
        if self._profile is None:
            recorder.note("no layers of some batches: PyTorch profiles only one prediction at a time")
            return
        profiled = self._profile
        self._stop()
        self._remove_hooks()  # which would slow down predictions without a trace
        results = profiled.profiler.kineto_results if profiled.profiler else None
        events = list(results.events()) if results else []
        if isinstance(self._module, torch.jit.ScriptModule):
            recorder.note("no modules: a TorchScript archive's layers have the names of their operators")
        if not self._gpu:
            self.note_missing_device_calls(recorder, "PyTorch")
        epoch_offset_ns = recorder.epoch_offset_ns
        read = _Calls.of(events, gpu=self._gpu)
        for window, shift_ns, operators in _matched(self._windows, read, epoch_offset_ns):
            _SpanWriter(recorder, self._level, window, shift_ns - epoch_offset_ns).write(
                operators, _phases(operators) if self._training else None
            )

    def close(self) -> None:
        self._remove_hooks()
        self._stop()

    def _stop(self) -> None:
        if self._profile is not None:
            profiled, self._profile = self._profile, None
            try:
                profiled.stop()
            finally:
                _KINETO.release()

    def _remove_hooks(self) -> None:
        for hook in self._hooks:
            hook.remove()
        self._hooks = []

    def _add_hooks(self) -> None:
        if isinstance(self._module, torch.jit.ScriptModule):
            return  # which has no hooks
        enter, leave = torch.ops.profiler._record_function_enter_new, torch.ops.profiler._record_function_exit
        for path, module in self._module.named_modules():
            parts = any(True for _ in module.children())
            name = f"{_MARK}{path}{'/' if parts else ''}"
            opened: list[Any] = []

            def before(_: object, __: object, name: str = name, opened: list[Any] = opened) -> None:
                opened.append(enter(name))

            def after(_: object, __: object, ___: object, opened: list[Any] = opened) -> None:
                leave._RecordFunction(opened.pop())

            self._hooks.append(module.register_forward_pre_hook(before))
            self._hooks.append(module.register_forward_hook(after, always_call=True))


def _activity(event: Any) -> str:
    """Returns Kineto's name for what an event is, which ``activity_type`` returns only since PyTorch 2.12."""
    name: str = event.name()
    if name == "[memory]":
        return _MEMORY
    if event.device_type() != _CPU:
        return {"Memcpy": "gpu_memcpy", "Memset": "gpu_memset"}.get(name.partition(" ")[0], "kernel")
    if _RUNTIME_CALL.match(name):
        return _RUNTIME
    return _ANNOTATION if event.scope() == _USER_SCOPE else _OPERATOR


@dataclass(slots=True)
class _Operator:
    """An operator or a runtime call on the host, with the calls inside it."""

    event: Any
    path: str
    children: list[_Operator] = field(default_factory=list)
    memory: list[int] = field(default_factory=list)
    device: list[Any] = field(default_factory=list)
    in_model: bool = False

    @property
    def type(self) -> str:
        """The operator's name, or the name of the backward function if autograd runs the operator."""
        name: str = self.event.name()
        return name.removeprefix(_BACKWARD)

    @property
    def is_backward(self) -> bool:
        """Whether autograd runs it."""
        return bool(self.event.name().startswith(_BACKWARD))


def _phases(operators: Sequence[_Operator]) -> Sequence[str]:
    """Returns the phase of a training step that each operator belongs to."""
    backward = [place for place, each in enumerate(operators) if each.is_backward]
    first, last = (backward[0], backward[-1]) if backward else (len(operators), len(operators))
    after = (
        "loss" if place < first else "backward" if place <= last else "update"
        for place in range(len(operators))
    )
    return [
        "forward" if operator.in_model else phase for operator, phase in zip(operators, after, strict=True)
    ]


def _forward_paths(operators: Sequence[_Operator]) -> dict[int, str]:
    """Returns the module paths of forward operators, by the sequence numbers shared with backward ones."""
    paths: dict[int, str] = {}
    for operator in operators:
        if not operator.is_backward:
            inside = [operator]
            while inside:
                each = inside.pop()
                inside += each.children
                if each.event.sequence_nr() >= 0:
                    paths[each.event.sequence_nr()] = operator.path
    return paths


@dataclass(slots=True)
class _Calls:
    """The calls of the model, read from Kineto's events."""

    calls: list[tuple[int, int]] = field(default_factory=list)
    operators: list[_Operator] = field(default_factory=list)

    @classmethod
    def of(cls, events: Sequence[Any], *, gpu: bool) -> _Calls:
        """Reads the events of the thread that called the model and of autograd's thread."""
        read = cls()
        by_correlation: dict[int, _Operator] = {}
        marks = [event for event in events if event.name() == f"{_MARK}/" or event.name() == _MARK]
        operators = Counter(event.start_thread_id() for event in events if _activity(event) == _OPERATOR)
        thread = marks[0].start_thread_id() if marks else next(iter(dict(operators.most_common(1))), 0)
        # on a GPU autograd has a thread of its own, for which the one that called it waits
        threads = {thread, *(each.start_thread_id() for each in events if each.name().startswith(_BACKWARD))}
        # an allocation counts to the operator that made it, whichever device has the memory
        host = [
            event
            for event in events
            if (event.device_type() != _CPU) == (gpu and _activity(event) == _MEMORY)
            and event.start_thread_id() in threads
        ]
        host.sort(key=lambda event: (event.start_ns(), -event.duration_ns()))
        modules: list[Any] = []
        open_: list[_Operator] = []
        for event in host:
            start_ns = event.start_ns()
            while modules and modules[-1].end_ns() <= start_ns:
                modules.pop()
            while open_ and open_[-1].event.end_ns() <= start_ns:
                open_.pop()
            name, kind = event.name(), _activity(event)
            if name.startswith(_MARK):
                modules.append(event)
                if len(modules) == 1:
                    read.calls.append((start_ns, event.end_ns()))
            elif kind == _MEMORY:
                if open_:
                    open_[0].memory.append(int(event.nbytes()))
            # an event without a namespace is a method of a TorchScript archive, which contains operators
            elif (kind == _OPERATOR and "::" in name) or kind == _RUNTIME:
                path = modules[-1].name().removeprefix(_MARK) if modules else ""
                operator = _Operator(event, path, in_model=bool(modules))
                (open_[-1].children if open_ else read.operators).append(operator)
                open_.append(operator)
                if kind == _RUNTIME and event.correlation_id():
                    by_correlation[event.correlation_id()] = open_[0]
        for event in events:
            if event.device_type() != _CPU:
                layer = by_correlation.get(event.correlation_id())
                if layer is not None:
                    layer.device.append(event)
        return read


def _matched(
    windows: Sequence[PredictWindow], read: _Calls, epoch_offset_ns: int
) -> Iterator[tuple[PredictWindow, int, Sequence[_Operator]]]:
    """Yields each prediction with the lag of the profiler's clock and the operators of its call.

    Both clocks count from 1970, but differ if the system clock was set after the recorder was created. Calls
    and predictions are in the same order; the distance between a pair is the difference of the clocks.
    """
    # without hooks there is no reference for the clocks
    calls: Sequence[tuple[int, int] | None] = read.calls or [None] * len(windows)
    if len(windows) != len(calls):
        raise PredictionError(
            f"PyTorch's profiler recorded {len(read.calls)} calls of the model, but {len(windows)} were made"
        )
    starts = [operator.event.start_ns() for operator in read.operators]
    for window, call in zip(windows, calls, strict=True):
        begin_ns, stop_ns = window.start_ns + epoch_offset_ns, window.end_ns + epoch_offset_ns
        start_ns, end_ns = call or (begin_ns, stop_ns)
        shift_ns = max(begin_ns - start_ns, min(0, stop_ns - end_ns))
        low = bisect_right(starts, begin_ns - shift_ns - 1)
        high = bisect_right(starts, stop_ns - shift_ns)
        yield window, shift_ns, read.operators[low:high]


class _SpanWriter:
    """Adds the spans of one prediction."""

    def __init__(
        self, recorder: SpanRecorder, level: TraceLevel, window: PredictWindow, offset_ns: int
    ) -> None:
        self._offset_ns = offset_ns
        self._level = level
        self._add = LayerWriter(recorder, window).add

    def write(self, operators: Sequence[_Operator], phases: Sequence[str] | None = None) -> None:
        """Adds the layers of a call, each with its phase in training, and the spans inside them."""
        index, paths = 0, {} if phases is None else _forward_paths(operators)
        for operator, phase in zip(operators, phases or itertools.repeat(None, len(operators)), strict=True):
            if _activity(operator.event) == _RUNTIME and not operator.device:
                self._write_inner(operator, None)
                continue
            # a layer that used the device lasts from its first kernel to its last
            events = operator.device or [operator.event]
            start_ns = min(event.start_ns() for event in events) + self._offset_ns
            end_ns = max(event.end_ns() for event in events) + self._offset_ns
            path = paths.get(operator.event.sequence_nr(), "") if operator.is_backward else operator.path
            span_id = self._add(_layer_kind(index, operator, path, phase), start_ns, end_ns)
            index += 1
            if self._level >= TraceLevel.ML_LIBRARY_TRACE:
                for child in operator.children:
                    self._write_inner(child, span_id)
            if self._level >= TraceLevel.SYSTEM_LIBRARY_TRACE:
                for event in operator.device:
                    self._write_device(event, span_id)

    def _write_inner(self, operator: _Operator, parent_id: int | None) -> None:
        event = operator.event
        if _activity(event) == _RUNTIME:
            if self._level < TraceLevel.SYSTEM_LIBRARY_TRACE:
                return
            kind = SpanKind.of(
                event.name(), TraceLevel.SYSTEM_LIBRARY_TRACE, correlation_id=event.correlation_id()
            )
        else:
            kind = SpanKind.of(event.name(), TraceLevel.ML_LIBRARY_TRACE, input_shapes=_shapes(event))
        start_ns, end_ns = event.start_ns() + self._offset_ns, event.end_ns() + self._offset_ns
        span_id = self._add(kind, start_ns, end_ns, parent_id)
        for child in operator.children:
            self._write_inner(child, span_id)

    def _write_device(self, event: Any, parent_id: int) -> None:
        kind = SpanKind.of(
            event.name(),
            TraceLevel.SYSTEM_LIBRARY_TRACE,
            activity=_activity(event),
            correlation_id=event.correlation_id(),
            device=event.device_index(),
            stream=event.device_resource_id(),
        )
        start_ns, end_ns = event.start_ns() + self._offset_ns, event.end_ns() + self._offset_ns
        stream_thread = -1 - int(event.device_resource_id())  # differs from all threads of the host
        self._add(kind, start_ns, end_ns, parent_id, thread=stream_thread)


def _layer_kind(index: int, operator: _Operator, path: str, phase: str | None) -> SpanKind:
    type_ = operator.type
    short = type_.rpartition("::")[2]
    # in a module with other parts, or outside all modules, the operator's name distinguishes it
    name = f"{path}{short}" if path.endswith("/") or not path else path
    allocated, peak, held = 0, 0, 0
    for nbytes in operator.memory:
        allocated += max(nbytes, 0)
        held += nbytes
        peak = max(peak, held)
    return SpanKind.of(
        name.removeprefix("/"),
        TraceLevel.FRAMEWORK_TRACE,
        layer_index=index,
        layer_type=type_,
        phase=phase,
        input_shapes=_shapes(operator.event),
        arguments=_arguments(operator.event),
        allocated_bytes=allocated,
        peak_bytes=peak,
    )


def _shapes(event: Any) -> tuple[str, ...] | None:
    """Returns the shapes of an operator's tensors, including those in lists; scalars have none."""
    shapes = event.structured_input_shapes() if hasattr(event, "structured_input_shapes") else event.shapes()
    return shape_texts(_spread(shapes))


def _spread(shapes: Sequence[Any]) -> Iterator[Sequence[int]]:
    """Yields the shapes, with lists of tensors flattened."""
    for shape in shapes:
        if all(isinstance(side, int) for side in shape):
            yield shape
        else:
            yield from _spread([each for each in shape if not isinstance(each, int)])


def _arguments(event: Any) -> tuple[str, ...] | None:
    """Returns an operator's arguments by position; tensors, None and unrecorded values are empty texts."""
    values = event.concrete_inputs() if hasattr(event, "concrete_inputs") else ()
    texts = tuple("" if value is None else str(value) for value in values)
    return texts if any(texts) else None
