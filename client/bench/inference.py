"""The request of ``agent bench inference``: exactly so many batches, of random tensors or of a dataset."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from inferometer.client.bench.parsing import BenchSystem, read_data
from inferometer.evaluators.jobs.defaults import BENCH_BATCHES
from inferometer.evaluators.jobs.requests import DatasetChoice, EvaluationRequest
from inferometer.evaluators.measurements.batches import BatchOptions
from inferometer.manifests.errors import ConfigurationError


def read_inference(values: Mapping[str, Any], system: BenchSystem) -> EvaluationRequest:
    """Returns the request: ``num_batches`` full batches, after ``num_warmup_batches``.

    A dataset is repeated until so many full batches are measured.

    Raises:
        ConfigurationError: An option is not for inference.
    """
    if len(system.devices) > 1:
        raise ConfigurationError(
            f"inference runs on one GPU, and {len(system.devices)} are named; bench training uses several"
        )
    size, batches = values["batch_size"], values["num_batches"] or BENCH_BATCHES
    warm_up, data = values["num_warmup_batches"], read_data(values)
    if data.on_device:
        raise ConfigurationError(
            f"data {values['data']}: inference is measured from host memory to host memory; use synthetic"
        )
    common = {"warmup_num_file_parts": warm_up, "fail_on_error": values["fail_on_error"]}
    if data.is_synthetic:
        needed = max(batches, warm_up) * size
        choice = DatasetChoice(synthetic=needed, seed=values["seed"])
        options = BatchOptions(size, size, batches, **common)
    else:
        choice = DatasetChoice(path=data.path, name=data.name, backend=data.backend)
        options = BatchOptions(size, size, batches, min_batches=batches, **common)
    return EvaluationRequest(
        system=system.request,
        dataset=choice,
        options=options,
        measure_enough=False,
        repeat=values["repeat"],
        trace_level=values["trace_level"],
        tracer_address=values["tracer_address"],
    )
