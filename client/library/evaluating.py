"""The Python functions that evaluate models over datasets."""

from __future__ import annotations

import os
from collections.abc import Sequence
from contextlib import closing
from functools import partial
from itertools import product
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar

from inferometer.client.api.invocation import Invocation
from inferometer.client.api.runner import Door, Runner, measured
from inferometer.client.library.invocation import library_invocation
from inferometer.client.library.requests import dataset_choice, evaluation_request
from inferometer.client.library.runs import Run, Runs
from inferometer.evaluators.jobs.defaults import MODEL
from inferometer.evaluators.jobs.requests import EvaluationRequest
from inferometer.evaluators.kinds.batches.job import evaluation_job
from inferometer.evaluators.kinds.batches.sweep import SweepCell, sweep_job
from inferometer.manifests.errors import ConfigurationError, EvaluationInterrupted

if TYPE_CHECKING:
    from numpy.typing import NDArray

_Value = TypeVar("_Value")
OneOrSeveral: TypeAlias = _Value | Sequence[_Value]
"""A value, or several of them."""


def evaluate(
    model: str | os.PathLike[str] | object = MODEL,
    *,
    inputs: NDArray[Any] | None = None,
    synthetic: bool = False,
    version: str | None = None,
    framework: str | None = None,
    weights: str = "pretrained",
    seed: int = 0,
    dataset: str | os.PathLike[str] | None = None,
    sample_ids: Sequence[str] | None = None,
    batch_size: int | None = None,
    gpu: bool = False,
    threads: int | None = None,
    precision: str | None = None,
    cudnn_benchmark: bool | None = None,
    agent: str | None = None,
    min_duration_s: float = 0.0,
    min_batches: int = 0,
    target_ci_percent: float | None = None,
    time_budget_s: float | None = None,
    publish: bool = True,
) -> Run:
    """Evaluates a model over a dataset, as ``agent predict dataset`` does, and returns what was measured.

    Ctrl-C ends the evaluation after the current batch, and the measurements up to then are returned; a second
    Ctrl-C raises KeyboardInterrupt.

    Args:
        model: The name in its manifest; or a file (.onnx, .pt2, .pt, MXNet's symbol), or an object in memory
            (``torch.nn.Module``, ``mxnet.gluon.HybridBlock``, ``onnxruntime.InferenceSession``), which need
            no manifest and run in this process.
        inputs: An array of samples × the shape of the model's input, instead of a dataset.
        synthetic: Whether the inputs are random tensors; so are those of a model without manifest and inputs.
        version: A version or a constraint; None means the highest that has the weights.
        framework: The framework; None means the first installed one that has the model.
        weights: ``pretrained``, or ``random`` for speed only.
        seed: The seed of random weights.
        dataset: A name, or a path as of ``--dataset_path``; None means the dataset that the model names.
        sample_ids: The ids of the samples to evaluate; None means all.
        batch_size: Inputs in a batch; None means 64, fewer for fewer ``inputs``, or what the file fixes.
        gpu: Whether to run on the GPU.
        threads: CPU threads of an operator; None means the default.
        precision: ``float32``, ``float16`` or ``bfloat16``, for a model in code; None means the model's own.
        cudnn_benchmark: Whether cuDNN times its algorithms; None means the framework's default.
        agent: The address of a served agent; None means this process.
        min_duration_s: The minimum duration of the measurement, in seconds.
        min_batches: The minimum number of full batches to measure.
        target_ci_percent: The half-width of the interval of p50 to reach, in percent; 5 if none of these
            three is set.
        time_budget_s: The time, in seconds, after which the dataset is not repeated even if the targets
            are not reached.
        publish: Whether to store the evaluation in the configured database.

    Raises:
        InferometerError: The model or the dataset cannot be opened, or a value is invalid.
        EvaluationInterrupted: Ctrl-C before a batch was measured.
        StoreError: The database cannot be reached, or lost the evaluation; the message names the file that
            keeps it.
    """
    invocation = library_invocation()
    request = evaluation_request(
        invocation,
        model,
        dataset=dataset_choice(dataset, inputs, sample_ids),
        length=_length(min_duration_s, min_batches, target_ci_percent, time_budget_s),
        synthetic=synthetic,
        batch_size=batch_size,
        seed=seed,
        version=version,
        framework=framework,
        weights=weights,
        gpu=gpu,
        threads=threads,
        precision=precision,
        cudnn_benchmark=cudnn_benchmark,
        agent=agent,
    )
    return Run(measured(invocation, evaluation_job(request), publish=publish))


def sweep(
    model: OneOrSeveral[str | os.PathLike[str] | object] = MODEL,
    *,
    inputs: NDArray[Any] | None = None,
    synthetic: bool = False,
    version: str | None = None,
    framework: OneOrSeveral[str | None] = None,
    weights: str = "pretrained",
    seed: int = 0,
    dataset: str | os.PathLike[str] | None = None,
    sample_ids: Sequence[str] | None = None,
    batch_size: OneOrSeveral[int | None] = None,
    gpu: OneOrSeveral[bool] = False,
    threads: OneOrSeveral[int | None] = None,
    precision: OneOrSeveral[str | None] = None,
    cudnn_benchmark: bool | None = None,
    agent: str | None = None,
    min_duration_s: float = 0.0,
    min_batches: int = 0,
    target_ci_percent: float | None = None,
    time_budget_s: float | None = None,
    publish: bool = True,
) -> Runs:
    """Evaluates every combination of several values, and returns the results as a table.

    The evaluations run sequentially and are published as one group. The row of a failed evaluation holds the
    reason. Ctrl-C ends the sweep with the results so far; a second Ctrl-C raises KeyboardInterrupt.

    Args:
        model: A name, a file or an object, or several.
        inputs: See ``evaluate``.
        synthetic: See ``evaluate``.
        version: See ``evaluate``.
        framework: A framework, or several.
        weights: See ``evaluate``.
        seed: See ``evaluate``.
        dataset: See ``evaluate``.
        sample_ids: See ``evaluate``.
        batch_size: Inputs in a batch; one number, or several.
        gpu: Whether to run on the GPU; ``[False, True]`` compares both.
        threads: CPU threads of an operator; one number, or several.
        precision: What a model in code computes with; one name, or several.
        cudnn_benchmark: See ``evaluate``.
        agent: See ``evaluate``.
        min_duration_s: See ``evaluate``; this and the next three hold for each evaluation.
        min_batches: See ``evaluate``.
        target_ci_percent: See ``evaluate``.
        time_budget_s: See ``evaluate``.
        publish: See ``evaluate``.

    Raises:
        InferometerError: A value is invalid, or no evaluation succeeded: the error of the first one.
        EvaluationInterrupted: Ctrl-C before a batch was measured.
        StoreError: The database cannot be reached, or lost an evaluation, which a file then keeps.
    """
    invocation, chosen = library_invocation(), dataset_choice(dataset, inputs, sample_ids)
    make = partial(
        evaluation_request,
        invocation,
        dataset=chosen,
        length=_length(min_duration_s, min_batches, target_ci_percent, time_budget_s),
        synthetic=synthetic,
        version=version,
        weights=weights,
        seed=seed,
        cudnn_benchmark=cudnn_benchmark,
        agent=agent,
    )
    requests = [
        make(name, framework=each, gpu=on_gpu, threads=number, precision=kind, batch_size=size)
        for name, each, on_gpu, number, kind, size in product(
            _values("model", model),
            _values("framework", framework),
            _values("gpu", gpu),
            _values("threads", threads),
            _values("precision", precision),
            _values("batch_size", batch_size),
        )
    ]
    return _swept(invocation, requests, publish=publish)


def _length(
    min_duration_s: float, min_batches: int, target_ci_percent: float | None, time_budget_s: float | None
) -> dict[str, Any]:
    """Returns the fields of ``BatchOptions`` that say how long to measure."""
    return {
        "min_duration_s": min_duration_s,
        "min_batches": min_batches,
        "target_ci_percent": target_ci_percent,
        "time_budget_s": time_budget_s,
    }


def _swept(invocation: Invocation, requests: Sequence[EvaluationRequest], *, publish: bool) -> Runs:
    """Runs a sweep. Ctrl-C while a model opens also ends it, unless nothing was measured before."""
    cells: list[SweepCell] = []
    runner = Runner(invocation, Door(), publish=publish)
    try:
        with closing(runner.run(sweep_job(requests))) as found:
            for cell in found:
                if cell.evaluation is None:
                    runner.say(f"{cell.name} failed: {cell.error}")
                cells.append(cell)
    except (EvaluationInterrupted, KeyboardInterrupt) as error:
        again = isinstance(error, KeyboardInterrupt) and runner.stop()
        if again or not any(cell.evaluation for cell in cells):
            raise
    if not any(cell.evaluation for cell in cells) and cells[0].error is not None:
        raise cells[0].error
    return Runs(cells, complete=len(cells) == len(requests))


def _values(name: str, given: Any) -> list[Any]:
    """Returns the values of an argument, each once."""
    values = list(given) if isinstance(given, Sequence) and not isinstance(given, str) else [given]
    if not values:
        raise ConfigurationError(f"{name} is empty; give one value, or several")
    for place, value in enumerate(values):
        if value in values[:place]:
            raise ConfigurationError(f"{name} names {value} twice; leave out one")
    return values
