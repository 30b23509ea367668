"""PyTorch's profiler as spans: operators related to the modules that called them, and GPU kernels to both."""

from __future__ import annotations

import importlib
import os
from bisect import bisect_right
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch.profiler import ProfilerActivity, profile

from agent.trace_level import TraceLevel
from agent.tracing.profiler import PredictWindow, Profiler
from agent.tracing.recorder import SpanRecorder
from agent.tracing.span import SpanKind
from manifests.errors import PredictionError

# Kineto writes lines to stderr whenever it starts and stops.
os.environ.setdefault("KINETO_LOG_LEVEL", "99")
_INDUCTOR_FOLDER = "TORCHINDUCTOR_CACHE_DIR"
_CPU = torch.autograd.DeviceType.CPU  # type: ignore[attr-defined]  # which torch's stubs do not export
_MARK = "inferscope/"
"""What the annotations of modules begin with; the module's path follows, empty for the whole model."""
_OPERATOR = "cpu_op"
_MEMORY = "cpu_instant_event"
_RUNTIME = frozenset({"cuda_runtime", "cuda_driver", "privateuse1_runtime", "privateuse1_driver"})


def _import_inductor() -> None:
    """Imports what the profiler imports when it starts, and keeps that from leaving a folder in ``/tmp``.

    On import it makes its cache folder: by default a new one, here one that is there.
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

    A layer is an operator that the module's Python code called, such as ``aten::conv2d``; it has the path of
    the innermost module whose ``forward`` called it, and below a module that also has other parts the
    operator's name as well: ``layer1.0.conv1``, ``layer1.0/add``. Operators that it consists of are its
    ML_LIBRARY spans. On a GPU a layer lasts from the start of the first of its kernels to the end of the
    last; what the host did meanwhile is in its ML_LIBRARY spans, which then lie before it.

    Args:
        module: The model.
        level: How deep to look.
        gpu: Whether the model is on a GPU.
    """

    def __init__(self, module: torch.nn.Module, level: TraceLevel, *, gpu: bool) -> None:
        self._module = module
        self._level = level
        self._gpu = gpu
        self._windows: list[PredictWindow] = []
        self._profile: profile | None = None
        self._hooks: list[Any] = []

    def start(self) -> None:
        """Registers hooks that mark each module's calls, and starts Kineto; see ``Profiler``."""
        self._windows = []
        activities = [ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if self._gpu else [])]
        self._profile = profile(
            activities=activities, record_shapes=True, profile_memory=True, acc_events=False
        )
        _import_inductor()
        try:
            self._profile.start()
        except RuntimeError as error:
            self._profile = None
            raise PredictionError(f"PyTorch's profiler cannot be started: {error}") from error
        self._add_hooks()

    def predicted(self, window: PredictWindow) -> None:
        """Remembers a prediction; see ``Profiler``."""
        self._windows.append(window)

    def collect(self, recorder: SpanRecorder) -> None:
        """Stops Kineto and adds what it has recorded; see ``Profiler``."""
        if self._profile is None:
            return
        profiled, self._profile = self._profile, None
        profiled.stop()
        self._remove_hooks()  # which would slow predictions down that nobody traces
        results = profiled.profiler.kineto_results if profiled.profiler else None
        events = list(results.events()) if results else []
        if isinstance(self._module, torch.jit.ScriptModule):
            recorder.note("no modules: a TorchScript archive's layers have the names of their operators")
        if not self._gpu and self._level >= TraceLevel.SYSTEM_LIBRARY_TRACE:
            recorder.note("no calls of a device's runtime, kernels or copies: the model runs on the CPU")
        calls = _Calls.of(events)
        for window, call in _matched(self._windows, calls, recorder.epoch_offset_ns):
            _SpanWriter(recorder, self._level, window).write(call)

    def close(self) -> None:
        """Removes the hooks and stops Kineto; see ``Profiler``."""
        self._remove_hooks()
        if self._profile is not None:
            profiled, self._profile = self._profile, None
            profiled.stop()

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


@dataclass(slots=True)
class _Operator:
    """An operator or a runtime call on the host, with what lies inside of it."""

    event: Any
    path: str
    children: list[_Operator] = field(default_factory=list)
    memory: list[int] = field(default_factory=list)
    device: list[Any] = field(default_factory=list)

    def everything(self) -> Iterator[_Operator]:
        """This one and all below."""
        yield self
        for child in self.children:
            yield from child.everything()


@dataclass(frozen=True, slots=True)
class _Call:
    """One call of the model: how far the profiler's clock is behind, and the operators of the prediction."""

    shift_ns: int
    operators: Sequence[_Operator]


@dataclass(slots=True)
class _Calls:
    """The calls of the model, read from the events of Kineto."""

    calls: list[tuple[int, int]] = field(default_factory=list)
    operators: list[_Operator] = field(default_factory=list)

    @classmethod
    def of(cls, events: Sequence[Any]) -> _Calls:
        """Reads the thread that called the model; what other threads did meanwhile is inside of that."""
        read = cls()
        by_correlation: dict[int, _Operator] = {}
        marks = [event for event in events if event.name() == f"{_MARK}/" or event.name() == _MARK]
        operators = Counter(event.start_thread_id() for event in events if event.activity_type() == _OPERATOR)
        thread = marks[0].start_thread_id() if marks else next(iter(dict(operators.most_common(1))), 0)
        host = [e for e in events if e.device_type() == _CPU and e.start_thread_id() == thread]
        host.sort(key=lambda event: (event.start_ns(), -event.duration_ns()))
        modules: list[Any] = []
        open_: list[_Operator] = []
        for event in host:
            start_ns = event.start_ns()
            _leave(modules, start_ns)
            while open_ and open_[-1].event.end_ns() <= start_ns:
                open_.pop()
            name, kind = event.name(), event.activity_type()
            if name.startswith(_MARK):
                modules.append(event)
                if len(modules) == 1:
                    read.calls.append((start_ns, event.end_ns()))
            elif kind == _MEMORY:
                if open_:
                    open_[0].memory.append(int(event.nbytes()))
            # what has no namespace is a method of a TorchScript archive, which holds operators
            elif (kind == _OPERATOR and "::" in name) or kind in _RUNTIME:
                path = modules[-1].name().removeprefix(_MARK) if modules else ""
                operator = _Operator(event, path)
                (open_[-1].children if open_ else read.operators).append(operator)
                if open_ and kind in _RUNTIME and event.correlation_id():
                    by_correlation[event.correlation_id()] = open_[0]
                open_.append(operator)
        for event in events:
            if event.device_type() != _CPU:
                layer = by_correlation.get(event.correlation_id())
                if layer is not None:
                    layer.device.append(event)
        return read


def _leave(modules: list[Any], start_ns: int) -> None:
    while modules and modules[-1].end_ns() <= start_ns:
        modules.pop()


def _matched(
    windows: Sequence[PredictWindow], read: _Calls, epoch_offset_ns: int
) -> Iterator[tuple[PredictWindow, _Call]]:
    """Relates the calls to the predictions, which are as many and in the same order.

    Both clocks count from 1970, and may still differ by what the system's clock was set by since the
    recorder was made. A call that lies outside of its prediction tells by how much.
    """
    # without hooks the clocks have to be trusted
    calls: Sequence[tuple[int, int] | None] = read.calls or [None] * len(windows)
    if len(windows) != len(calls):
        raise PredictionError(
            f"PyTorch's profiler recorded {len(read.calls)} calls of the model, not the {len(windows)} that "
            "were made"
        )
    starts = [operator.event.start_ns() for operator in read.operators]
    for window, call in zip(windows, calls, strict=True):
        begin_ns, stop_ns = window.start_ns + epoch_offset_ns, window.end_ns + epoch_offset_ns
        start_ns, end_ns = call or (begin_ns, stop_ns)
        shift_ns = max(begin_ns - start_ns, min(0, stop_ns - end_ns))
        low = bisect_right(starts, begin_ns - shift_ns - 1)
        high = bisect_right(starts, stop_ns - shift_ns)
        yield window, _Call(shift_ns, read.operators[low:high])


class _SpanWriter:
    """Adds the spans of one prediction."""

    def __init__(self, recorder: SpanRecorder, level: TraceLevel, window: PredictWindow) -> None:
        self._recorder = recorder
        self._level = level
        self._window = window

    def write(self, call: _Call) -> None:
        """Adds the layers of a call, and what lies inside of them."""
        offset_ns = call.shift_ns - self._recorder.epoch_offset_ns
        for index, operator in enumerate(call.operators):
            start_ns, end_ns = _times(operator)
            span_id = self._add(_layer_kind(index, operator), start_ns + offset_ns, end_ns + offset_ns)
            if self._level >= TraceLevel.ML_LIBRARY_TRACE:
                for child in operator.children:
                    self._write_inner(child, span_id, offset_ns)
            if self._level >= TraceLevel.SYSTEM_LIBRARY_TRACE:
                for event in operator.device:
                    self._write_device(event, span_id, offset_ns)

    def _write_inner(self, operator: _Operator, parent_id: int, offset_ns: int) -> None:
        event = operator.event
        runtime = event.activity_type() in _RUNTIME
        if runtime and self._level < TraceLevel.SYSTEM_LIBRARY_TRACE:
            return
        if runtime:
            kind = SpanKind.of(
                event.name(), TraceLevel.SYSTEM_LIBRARY_TRACE, correlation_id=event.correlation_id()
            )
        else:
            kind = SpanKind.of(event.name(), TraceLevel.ML_LIBRARY_TRACE, input_shapes=_shapes(event) or None)
        start_ns, end_ns = event.start_ns() + offset_ns, event.end_ns() + offset_ns
        span_id = self._add(kind, start_ns, end_ns, parent_id)
        for child in operator.children:
            self._write_inner(child, span_id, offset_ns)

    def _write_device(self, event: Any, parent_id: int, offset_ns: int) -> None:
        kind = SpanKind.of(
            event.name(),
            TraceLevel.SYSTEM_LIBRARY_TRACE,
            activity=event.activity_type(),
            correlation_id=event.correlation_id(),
            device=event.device_index(),
            stream=event.device_resource_id(),
        )
        start_ns, end_ns = event.start_ns() + offset_ns, event.end_ns() + offset_ns
        self._add(kind, start_ns, end_ns, parent_id, thread=_stream_thread(event))

    def _add(
        self, kind: SpanKind, start_ns: int, end_ns: int, parent_id: int | None = None, thread: int = 0
    ) -> int:
        """Adds a span inside the prediction; what the clocks differ by at its edges is cut off."""
        window = self._window
        start_ns = min(max(start_ns, window.start_ns), window.end_ns)
        end_ns = min(max(end_ns, start_ns), window.end_ns)
        parent = window.span_id if parent_id is None else parent_id
        return self._recorder.add(kind, start_ns, end_ns, parent, batch=window.batch, thread=thread)


def _times(operator: _Operator) -> tuple[int, int]:
    """When a layer ran: on the device, if anything of it did."""
    if operator.device:
        starts, ends = zip(*((e.start_ns(), e.end_ns()) for e in operator.device), strict=True)
        return min(starts), max(ends)
    return operator.event.start_ns(), operator.event.end_ns()


def _layer_kind(index: int, operator: _Operator) -> SpanKind:
    type_ = operator.event.name()
    short = type_.rpartition("::")[2]
    # below a module that has other parts too, or outside of all, the operator's name tells it apart
    name = f"{operator.path}{short}" if operator.path.endswith("/") or not operator.path else operator.path
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
        input_shapes=_shapes(operator.event) or None,
        allocated_bytes=allocated,
        peak_bytes=peak,
    )


def _shapes(event: Any) -> tuple[str, ...]:
    """The shapes of an operator's tensors, such as ``8x3x224x224``; scalars and others have none."""
    return tuple("x".join(map(str, shape)) for shape in event.shapes() if shape and _is_flat(shape))


def _is_flat(shape: Sequence[object]) -> bool:
    return all(isinstance(size, int) for size in shape)


def _stream_thread(event: Any) -> int:
    """A number for a stream that no thread of the host has."""
    return -1 - int(event.device_resource_id())
