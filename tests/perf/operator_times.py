"""The timing of ``op run`` beside ``torch.utils.benchmark`` and opperf of MXNet, on the same tensors."""

from __future__ import annotations

import importlib
import os
import statistics
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from inferometer.agent.inference.registry import BUILTIN
from inferometer.agent.operators.operator import OperatorRunner, Preset, RunnerOptions, operators
from inferometer.evaluators.kinds.operators.options import Mode, OperatorOptions
from inferometer.evaluators.kinds.operators.request import draw_inputs
from inferometer.evaluators.kinds.operators.timing import time_operator
from tests.perf.fresh_process import PROCESSES, in_fresh_process
from tests.perf.ratios import Row, divided, interleaved

OPERATORS = (
    "add",
    "exp",
    "sum",
    "argmax",
    "sort",
    "transpose",
    "concat",
    "softmax",
    "dense",
    "dot",
    "max_pool2d",
    "batch_norm",
)
OPPERF = "INFEROMETER_OPPERF"
"""The variable that names a folder with MXNet's ``benchmark`` in it."""
_TIME_S = 0.3
_OPTIONS = OperatorOptions(budget_s=_TIME_S, target_percent=None)


def measure(rounds: int, threads: int) -> list[Row]:
    """Measures each operator by turns with the peer and with the peer again; a framework has a fresh process.

    opperf is not here: ``INFEROMETER_OPPERF`` names where it is. Without it, MXNet is left out.
    """
    frameworks = ("PyTorch", "MXNet") if os.environ.get(OPPERF) else ("PyTorch",)
    rows = []
    peers = {"PyTorch": "blocked_autorange", "MXNet": "opperf"}
    for framework in frameworks:
        taken = [
            in_fresh_process(_of_framework, framework, max(rounds // PROCESSES, 2), threads)
            for _ in range(PROCESSES)
        ]
        for name in OPERATORS:
            ours, theirs, again = (
                [t for each in taken for t in each[name][side]] for side in ("ours", "theirs", "again")
            )
            detail = f"{statistics.median(ours) / 1000:.1f} / {statistics.median(theirs) / 1000:.1f} µs"
            title, peer = f"{framework}, {name}", peers[framework]
            rows.append(Row(f"{title}: p50 / {peer}", divided(ours, theirs), "0.95 … 1.05", detail))
            rows.append(Row(f"{title}: {peer} / itself (A/A)", divided(again, theirs)))
    return rows


def _of_framework(framework: str, rounds: int, threads: int) -> Mapping[str, Mapping[str, Sequence[float]]]:
    """The times of each operator by each side, in nanoseconds."""
    entry = next(each for each in BUILTIN if each.name == framework)
    runner: Any = entry.load_operators()
    made = runner(RunnerOptions(threads=threads))
    peer = _torch_timer if framework == "PyTorch" else _opperf()
    return {name: _times(made, name, peer(made, name, threads), rounds) for name in OPERATORS}


def _times(
    runner: OperatorRunner, name: str, theirs: Callable[[], float], rounds: int
) -> Mapping[str, Sequence[float]]:
    call = _call(runner, name)

    def ours() -> float:
        timing = time_operator([call], Mode.FORWARD, _OPTIONS)
        return statistics.median(timing.times_ns.tolist()) / timing.block

    return interleaved(rounds, {"ours": ours, "theirs": theirs, "again": theirs})


def _torch_timer(runner: OperatorRunner, name: str, threads: int) -> Callable[[], float]:
    """The median of ``blocked_autorange`` in nanoseconds, of the function and the tensors of the runner."""
    import torch
    from torch.utils.benchmark import Timer

    call = _call(runner, name)
    names = {"function": call._function, "tensors": call._tensors}

    def run() -> float:
        with torch.inference_mode():
            timer = Timer("function(*tensors)", globals=names, num_threads=threads)
            return timer.blocked_autorange(min_run_time=_TIME_S).median * 1e9

    return run


def _opperf() -> Callable[[OperatorRunner, str, int], Callable[[], float]]:
    """The p50 that opperf's own decorator tells, of the function and the arrays of the runner."""
    sys.path.insert(0, os.environ[OPPERF])
    profiling: Any = importlib.import_module("benchmark.opperf.utils.profiler_utils")
    running: Any = importlib.import_module("benchmark.opperf.utils.ndarray_utils")
    profile = profiling.python_profile(running.nd_forward_and_profile)

    def peer(runner: OperatorRunner, name: str, threads: int) -> Callable[[], float]:
        call = _call(runner, name)

        def operator(*arrays: Any) -> Any:
            return call._function(*arrays)

        operator.__name__ = name
        arrays = {f"args{place}": array for place, array in enumerate(call._arrays)}

        def run() -> float:
            _, first = profile(operator, 10, **arrays)
            runs = max(20, min(2000, int(_TIME_S * 1000 / max(first[f"avg_time_{name}"], 1e-3))))
            _, found = profile(operator, runs, **arrays)
            return float(found[f"p50_time_{name}"]) * 1e6

        return run

    return peer


def _call(runner: OperatorRunner, name: str) -> Any:
    """A prepared call, whose function and tensors the peers take."""
    operator = operators()[name]
    case = operator.cases(Preset.NORMAL)[0]
    return runner.prepare(operator, case, draw_inputs(operator, case, np.dtype(np.float32), 0))
