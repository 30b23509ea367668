"""Time and memory of reports over a million stored spans, relative to reading as many lines of JSON."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from dataclasses import replace
from pathlib import Path

import numpy as np

from inferometer.agent.inference.registry import Registry
from inferometer.agent.inference.session import SessionOptions, open_session, select_model
from inferometer.agent.preprocessing.inputs import Tensor
from inferometer.agent.tracing.recorder import SpanKind, SpanRecorder, TraceContext, TraceLevel
from inferometer.evaluators.datasets.base import DatasetIdentity, Sample
from inferometer.evaluators.evaluation import Evaluation, TraceSummary
from inferometer.evaluators.kinds.batches.measurement import BatchTimes
from inferometer.evaluators.kinds.batches.request import BatchOptions
from inferometer.evaluators.kinds.batches.run import DatasetRun
from inferometer.evaluators.store.opening import open_store
from inferometer.manifests.catalog import Catalog
from tests.perf.dataset_overhead import RepeatedDataset
from tests.perf.ratios import Row

SPANS = 1_000_000
LAYERS = 175
AIM = 20
_KIB_PER_MIB = 1024
_COMMANDS = {
    "layers -f csv": ("info", "evaluation", "layers", "-f", "csv"),
    "layer_tree -f csv": ("info", "evaluation", "layer_tree", "-f", "csv"),
    "eventflow -f csv": ("info", "evaluation", "eventflow", "-f", "csv"),
    "eventflow -f table": ("info", "evaluation", "eventflow", "-f", "table"),
    "trace export -f chrome": ("trace", "export", "ID", "-f", "chrome"),
    "trace export -f otlp-json": ("trace", "export", "ID", "-f", "otlp-json"),
    "trace export -f flamegraph": ("trace", "export", "ID", "-f", "flamegraph"),
}


def measure() -> list[Row]:
    """Measures the time and the peak memory of each command in a separate process."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        whole, small = _kept(folder / "whole", SPANS), _kept(folder / "small", SPANS // 10)
        _write_lines(folder / "spans.jsonl")
        rows = []
        for title, command in _COMMANDS.items():
            lines_s = _read_lines(folder / "spans.jsonl")
            taken_s, memory = _run(folder / "whole", [whole if c == "ID" else c for c in command])
            _, less = _run(folder / "small", [small if c == "ID" else c for c in command])
            rows.append(
                Row(
                    f"{title} / reading {SPANS:,} lines of JSON",
                    [taken_s / lines_s],
                    f"<= {AIM}" if title.startswith("layers") else "",
                    f"{taken_s:.1f} / {lines_s:.1f} s; {memory:.0f} MiB peak, {less:.0f} with a tenth",
                )
            )
        return rows


def _kept(folder: Path, spans: int) -> str:
    """Stores an evaluation with ``spans`` spans and returns its id."""
    evaluation = _evaluation(spans)
    store = open_store(None, "inferometer", folder)
    try:
        store.save(evaluation)
    finally:
        store.close()
    return evaluation.id


def _evaluation(spans: int) -> Evaluation:
    manifest = select_model(Catalog(), Registry(), "DigitsCNN")
    sample = Sample("0", Tensor(np.zeros((1, 16, 16), np.float32)))
    dataset = RepeatedDataset(DatasetIdentity("vision", "zeros", None, None, 1), [sample])
    with open_session(manifest, SessionOptions(), Registry()) as session:
        options = BatchOptions(1, 1)
        level = TraceLevel.FRAMEWORK_TRACE
        evaluation = DatasetRun(session, dataset, options, trace_level=level).run()
    batches = spans // (LAYERS + 1)
    recorder = SpanRecorder(TraceContext.new(), TraceLevel.FRAMEWORK_TRACE, limit=2 * spans)
    kinds = [
        SpanKind.of(
            f"layer{number}.conv",
            TraceLevel.FRAMEWORK_TRACE,
            layer_index=number,
            layer_type=f"type {number % 9}",
            input_shapes=("8x64x56x56", "64x64x3x3"),
            output_shapes=("8x64x56x56",),
            allocated_bytes=6_422_528,
        )
        for number in range(LAYERS)
    ]
    predict = SpanKind("predict", TraceLevel.MODEL_TRACE)
    random = np.random.default_rng(0)
    for batch in range(batches):
        begin = batch * 10**9
        parent = recorder.add(predict, begin, begin + 9 * 10**8, recorder.context.span_id, batch=batch)
        at = begin
        for kind, duration in zip(kinds, random.integers(1_000, 4_000_000, LAYERS).tolist(), strict=True):
            recorder.add(kind, at, at + duration, parent, batch=batch)
            at += duration
    ones = np.ones(batches, np.int64)
    return replace(
        evaluation,
        measurement=replace(evaluation.measurement, times=BatchTimes(ones, *[ones * 1000] * 4)),
        trace=TraceSummary(recorder.context.trace_id, len(recorder)),
        spans=recorder.chunks(),
    )


def _write_lines(path: Path) -> None:
    """Writes as many spans to a file, one JSON object per line."""
    span = {
        "span_id": "0000000700000002",
        "parent_id": "0000000700000001",
        "name": "layer1.0.conv1",
        "level": "FRAMEWORK_TRACE",
        "start_unix_ns": 1_700_000_000_000_000_000,
        "duration_us": 123.456,
        "batch": 12,
        "layer_index": 3,
        "layer_type": "aten::conv2d",
        "input_shapes": ["8x64x56x56", "64x64x3x3"],
    }
    line = json.dumps(span) + "\n"
    with path.open("w") as file:
        file.writelines(line for _ in range(SPANS))


def _read_lines(path: Path) -> float:
    """Returns the seconds for reading all spans from the file of ``_write_lines``."""
    started_s = time.perf_counter()
    with path.open() as file:
        count = sum(json.loads(line)["batch"] == 12 for line in file)
    assert count == SPANS
    return time.perf_counter() - started_s


def _run(data: Path, command: list[str]) -> tuple[float, float]:
    """Runs a command as a process and returns its seconds and its peak memory in MiB."""
    script = (
        "import sys; from inferometer.client.cli.main import run; "
        "code = run(sys.argv[1:]); sys.stdout.flush(); "
        # unlike ru_maxrss, it does not include the memory of the parent at the fork
        "[line] = [line for line in open('/proc/self/status') if line.startswith('VmHWM')]; "
        "sys.stderr.write(f'\\n{line.split()[1]}'); sys.exit(code)"
    )
    started_s = time.perf_counter()
    done = subprocess.run(
        [sys.executable, "-c", script, *command],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        check=True,
        env={**os.environ, "AGENT_DATA_DIR": str(data)},
    )
    taken_s = time.perf_counter() - started_s
    return taken_s, int(done.stderr.split()[-1]) / _KIB_PER_MIB
