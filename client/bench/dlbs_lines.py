"""The results of a benchmark as DLBS prints them: ``__key__=JSON``, which its log parser reads."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from inferometer.evaluators.evaluation import Evaluation
from inferometer.evaluators.kinds.registry import kind_of

_NS_PER_MS = 1_000_000


@dataclass(frozen=True, slots=True)
class Experiment:
    """The requested parameters of a benchmark; the output of a failed benchmark contains them too.

    Attributes:
        model: The model, by the name that the user gave.
        phase: ``training``, ``inference`` or ``data_ingestion``.
        replica_batch: Samples per batch and device.
        num_gpus: The GPUs; 0 on a CPU.
        num_batches: The measured batches.
        num_warmup_batches: The warm-up batches, which run first and are not measured.
        dtype: The precision.
    """

    model: str
    phase: str
    replica_batch: int
    num_gpus: int
    num_batches: int
    num_warmup_batches: int
    dtype: str

    @property
    def values(self) -> Mapping[str, Any]:
        """Returns the values by DLBS's keys."""
        return {
            "exp.model": self.model,
            "exp.phase": self.phase,
            "exp.replica_batch": self.replica_batch,
            "exp.num_gpus": self.num_gpus,
            "exp.device_type": "gpu" if self.num_gpus else "cpu",
            "exp.num_batches": self.num_batches,
            "exp.num_warmup_batches": self.num_warmup_batches,
            "exp.dtype": self.dtype,
        }


def result_lines(experiment: Experiment, evaluation: Evaluation) -> Iterator[str]:
    """Yields the result lines of a benchmark. Times cover all measured batches and are in milliseconds."""
    system, kind, measured = evaluation.system, kind_of(evaluation), evaluation.measurement
    times_ns, samples = kind.batch_times(measured)
    times_ms, framework = times_ns / _NS_PER_MS, system.manifest.framework.name.casefold()
    yield from _lines(
        {
            **experiment.values,
            "exp.framework": framework,
            "exp.framework_ver": system.framework_version,
            f"{framework}.version": system.framework_version,
            "exp.model_title": system.manifest.name,
            "exp.effective_batch": kind.effective_batch(measured, experiment.replica_batch),
            "exp.id": evaluation.id,
            "results.time": float(times_ms.mean()),
            "results.time_std": float(times_ms.std()),
            "results.throughput": 1000 * samples / float(times_ms.sum()),
            "results.time_data": times_ms.tolist(),
            "results.status": "ok" if evaluation.status.value == "complete" else evaluation.status.value,
        }
    )


def failure_lines(experiment: Experiment, message: str) -> Iterator[str]:
    """Yields the result lines of a failed benchmark."""
    failure = {"results.status": "failure", "results.status_msg": message}
    yield from _lines({**experiment.values, **failure})


def _lines(values: Mapping[str, Any]) -> Iterator[str]:
    for key, value in values.items():
        yield f"__{key}__={json.dumps(value)}"
