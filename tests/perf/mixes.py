"""Several models at once beside each alone: interference, and that of a model with nothing, which is 1.

Each mix runs in this process. The ratio of a mix of one model is that of two equal blocks, and its interval
holds 1 unless the machine changed between the blocks of every pair in the same way.
"""

from __future__ import annotations

import math
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

import inferometer
from inferometer.evaluators.evaluation import Status
from inferometer.evaluators.kinds.load.measurement import Interference, LoadRun, MixMeasurement
from tests.perf.ratios import Row

BLOCKS = 8
BLOCK_S = 1.2
_RATE_QPS = 60
_ORT, _TORCH = ({"framework_name": name, "threads": 1} for name in ("ONNXRuntime", "PyTorch"))
_MIXES: Mapping[str, Mapping[str, Mapping[str, object]]] = {
    "one model": {"ONNX Runtime": _ORT},
    "two models": {"ONNX Runtime": _ORT, "PyTorch": _TORCH},
    "four models": {
        f"{name} {n}": each for n in (1, 2) for name, each in (("ORT", _ORT), ("PyTorch", _TORCH))
    },
}


def measure() -> list[Row]:
    """Measures each mix, in two minutes together."""
    rows = []
    for what, models in _MIXES.items():
        found = _measured(models)
        for mix in found:
            for percent in (50.0, 95.0):
                ratio = mix.interference(percent)
                name = f"{what}: {mix.name} p{percent:g} together / alone"
                aim = "interval with 1" if len(models) == 1 else ""
                rows.append(Row(name, [ratio.ratio if ratio else math.nan], aim, _text(ratio)))
        lags = [(_lag_ms(mix.alone), _lag_ms(mix.together)) for mix in found]
        largest = max(together for _, together in lags)
        name = f"{what}: p99 of the lag together / alone"
        rows.append(
            Row(name, [over / under for under, over in lags], "", f"at most {largest:.3f} ms together")
        )
    return rows


def _measured(models: Mapping[str, Mapping[str, object]]) -> list[MixMeasurement]:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "mix.yaml"
        path.write_text("".join(_entry(name, options) for name, options in models.items()))
        found = inferometer.measure_group(
            "mix", mix=str(path), blocks=BLOCKS, duration_s=BLOCK_S, seed=0, publish=False
        )
    if any(each.status is Status.INTERRUPTED for each in found):
        raise KeyboardInterrupt  # which the library has made a result of
    return [each.measurement for each in found]


def _entry(name: str, options: Mapping[str, object]) -> str:
    given = {"model_name": "DigitsCNN", "synthetic": "true", "initial_qps": _RATE_QPS, "percentile": 95}
    return f"- name: {name}\n" + "".join(f"  {key}: {value}\n" for key, value in {**given, **options}.items())


def _text(found: Interference | None) -> str:
    return f"95 %: {found.interval.low:.3f} – {found.interval.high:.3f}" if found and found.interval else ""


def _lag_ms(runs: Sequence[LoadRun]) -> float:
    return float(np.percentile(np.concatenate([run.queries.lag_ns for run in runs]), 99)) / 1e6
