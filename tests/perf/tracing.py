"""Cost of tracing, on ResNet50 with random weights."""

from __future__ import annotations

import itertools
import json
import statistics
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from inferometer.agent.hardware.environment import Weights
from inferometer.agent.inference.registry import Registry
from inferometer.agent.inference.session import Session, SessionOptions, open_session, select_model
from inferometer.agent.preprocessing.inputs import Input, Tensor
from inferometer.agent.tracing.recorder import SpanRecorder, TraceContext, TraceLevel, TraceScope
from inferometer.manifests.catalog import Catalog
from tests.perf.bare_loops import Predict
from tests.perf.ratios import Row, divided, interleaved
from tests.perf.resnet50 import BARE

BATCHES = {1: 24, 8: 4}
"""Batches per round, by batch size."""
MOST_ROUNDS = 5
_SHAPE = (3, 224, 224)
_INPUT = "data"

Profiled = Callable[[], int]


def measure(rounds: int) -> list[Row]:
    """Measures the levels in every installed framework."""
    catalog, registry = Catalog(), Registry()
    rows: list[Row] = []
    for entry in registry.entries:
        if not (entry.installed_version and entry.name in BARE):
            continue
        manifest = select_model(catalog, registry, "ResNet50", framework=entry.name, weights=Weights.RANDOM)
        for size in BATCHES:
            with ExitStack() as stack:
                options = SessionOptions(weights=Weights.RANDOM)
                session = stack.enter_context(open_session(manifest, options, registry))
                rows += _rows(entry.name, session, stack, size, min(rounds, MOST_ROUNDS))
    return rows


def _rows(framework: str, session: Session, stack: ExitStack, size: int, rounds: int) -> list[Row]:
    random = np.random.default_rng(0)
    arrays = random.standard_normal((BATCHES[size], size, *_SHAPE), np.float32)
    batches = [[Input(str(n), Tensor(row)) for n, row in enumerate(batch)] for batch in arrays]
    bare = BARE[framework](stack, size)
    bare(arrays[0])
    profiled = PROFILED[framework](bare, arrays, stack)
    taken = interleaved(
        rounds,
        {
            "bare": lambda: _time_bare(bare, arrays),
            "none": lambda: _time_session(session, batches, TraceLevel.NO_TRACE),
            "model": lambda: _time_session(session, batches, TraceLevel.MODEL_TRACE),
            "framework": lambda: _time_session(session, batches, TraceLevel.FRAMEWORK_TRACE),
            "profiler": profiled,
        },
    )
    named = f"{framework}, batches of {size}:"
    return [
        _row(f"{named} MODEL_TRACE / NO_TRACE", taken, "model", "none", size, "<= 1.02"),
        _row(f"{named} NO_TRACE / bare loop", taken, "none", "bare", size, "1"),
        _row(f"{named} FRAMEWORK_TRACE / profiler alone", taken, "framework", "profiler", size, "<= 1.1"),
        _row(f"{named} FRAMEWORK_TRACE / NO_TRACE", taken, "framework", "none", size, ""),
    ]


def _row(name: str, taken: Mapping[str, Sequence[int]], over: str, under: str, size: int, aim: str) -> Row:
    def per_batch(times_ns: Sequence[int]) -> str:
        return f"{statistics.median(times_ns) / BATCHES[size] / 1e6:.2f}"

    detail = f"{per_batch(taken[over])} / {per_batch(taken[under])} ms per batch"
    return Row(name, divided(taken[over], taken[under]), aim, detail)


def _time_bare(bare: Predict, arrays: NDArray[Any]) -> int:
    started_ns = time.perf_counter_ns()
    for batch in arrays:
        bare(batch).argmax(axis=1)
    return time.perf_counter_ns() - started_ns


def _time_session(session: Session, batches: Sequence[Sequence[Input]], level: TraceLevel) -> int:
    """Returns the nanoseconds from the first batch to the last span in the recorder."""
    scope = None
    if level is not TraceLevel.NO_TRACE:
        recorder = SpanRecorder(TraceContext.new(), level)
        scope = TraceScope(recorder, recorder.new_id())
    started_ns = time.perf_counter_ns()
    for result in session.predict_batches(batches, scope):
        assert not result.failures, result.failures[0]
    if scope is not None:
        assert scope.recorder.chunks()
    return time.perf_counter_ns() - started_ns


def _pytorch(bare: Predict, arrays: NDArray[Any], stack: ExitStack) -> Profiled:
    """Runs torch.profiler with the settings that layers require, and reads its list of events."""
    from torch.profiler import ProfilerActivity, profile

    def run() -> int:
        started_ns = time.perf_counter_ns()
        with profile(activities=[ProfilerActivity.CPU], record_shapes=True, profile_memory=True) as kineto:
            for batch in arrays:
                bare(batch).argmax(axis=1)
        assert kineto.events()
        return time.perf_counter_ns() - started_ns

    return run


def _mxnet(bare: Predict, arrays: NDArray[Any], stack: ExitStack) -> Profiled:
    """Runs MXNet's profiler and reads the file that it writes."""
    import mxnet as mx

    folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
    numbers = itertools.count()

    def run() -> int:
        path = folder / f"{next(numbers)}.json"
        started_ns = time.perf_counter_ns()
        mx.profiler.set_config(filename=str(path), profile_symbolic=True, profile_imperative=True)
        mx.profiler.set_state("run")
        for batch in arrays:
            bare(batch).argmax(axis=1)
        mx.profiler.set_state("stop")
        mx.profiler.dump(finished=False)
        text = path.read_text().replace("[,", "[").replace("[\n,", "[")
        taken_ns = time.perf_counter_ns() - started_ns
        assert '"name"' in text
        return taken_ns

    return run


def _onnxruntime(bare: Predict, arrays: NDArray[Any], stack: ExitStack) -> Profiled:
    """Runs ONNX Runtime's profiler with its own session, and reads the file that it writes."""
    import onnxruntime as ort

    folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
    graph = getattr(bare, "graph")  # noqa: B009 - set where the loop is made

    def run() -> int:
        started_ns = time.perf_counter_ns()
        options = ort.SessionOptions()
        options.enable_profiling = True
        options.profile_file_prefix = str(folder / "profile")
        session = ort.InferenceSession(graph, options, providers=["CPUExecutionProvider"])
        session.run(None, {_INPUT: arrays[0]})
        for batch in arrays:
            np.asarray(session.run(None, {_INPUT: batch})[0]).argmax(axis=1)
        assert json.loads(Path(session.end_profiling()).read_text())
        return time.perf_counter_ns() - started_ns

    return run


PROFILED: Mapping[str, Callable[[Predict, NDArray[Any], ExitStack], Profiled]] = {
    "PyTorch": _pytorch,
    "MXNet": _mxnet,
    "ONNXRuntime": _onnxruntime,
}
