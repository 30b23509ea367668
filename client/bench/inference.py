"""The request of ``agent bench inference``: a fixed number of batches, of random tensors or a dataset."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

from inferometer.client.bench.parsing import BenchSystem, read_data
from inferometer.evaluators.jobs.defaults import BENCH_BATCHES
from inferometer.evaluators.jobs.requests import DatasetChoice, EvaluationRequest
from inferometer.evaluators.kinds.batches.measurement import BatchOptions
from inferometer.manifests.errors import ConfigurationError


def inference_notes(values: Mapping[str, Any]) -> Iterator[str]:
    """Yields one line for each data option that has no effect on inference."""
    if values["data_shuffle"]:
        yield "data_shuffle changes nothing: inference takes the samples in their order"
    if values["data_dir"] and values["loader"].lower() == "processes":
        yield "loader processes changes nothing: inference reads by threads"
    if values["data_dir"] and values["drop_cache"]:
        yield "drop_cache changes nothing in inference; bench training and bench ingestion drop it"


def read_inference(
    values: Mapping[str, Any], system: BenchSystem, given_workers: int | None = None
) -> EvaluationRequest:
    """Returns the request: ``num_batches`` full batches, after ``num_warmup_batches``.

    Of a larger dataset, only as many batches are read; a smaller one is repeated.

    Args:
        values: The values of the options.
        system: The model and its device.
        given_workers: The number of threads that read and preprocess; None means the default of
            ``agent predict dataset``.

    Raises:
        ConfigurationError: An option does not apply to inference.
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
    request = system.request
    if given_workers is not None:
        request = replace(request, session=replace(request.session, preprocess_threads=given_workers))
    return EvaluationRequest(
        system=request,
        dataset=choice,
        options=options,
        measure_enough=False,
        repeat=values["repeat"],
        trace_level=values["trace_level"],
        tracer_address=values["tracer_address"],
        trace_url=values["trace_url"],
    )
