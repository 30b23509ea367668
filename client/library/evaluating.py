"""Evaluations over a dataset."""

from __future__ import annotations

import os
from contextlib import closing
from typing import TYPE_CHECKING, Any

from inferometer.client.cli.invocation import Invocation
from inferometer.client.evaluating.progress import ProgressBar
from inferometer.client.library.requests import dataset_choice, system_request
from inferometer.client.library.running import Running
from inferometer.client.library.runs import Run
from inferometer.client.systems import Systems
from inferometer.evaluators.jobs.defaults import MODEL
from inferometer.evaluators.jobs.evaluate import evaluate as evaluate_job
from inferometer.evaluators.jobs.requests import EvaluationRequest, default_batch_size, inputs_for
from inferometer.evaluators.measurements.batches import BatchOptions

if TYPE_CHECKING:
    from numpy.typing import NDArray

_STOPS = "stopping after this batch"


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
    batch_size: int | None = None,
    gpu: bool = False,
    threads: int | None = None,
    agent: str | None = None,
    min_duration_s: float = 0.0,
    min_batches: int = 0,
    target_ci_percent: float | None = None,
    time_budget_s: float | None = None,
    publish: bool = True,
) -> Run:
    """Evaluates a model over a dataset, as ``agent predict dataset`` does, and returns what was measured.

    Ctrl-C ends it after the batch, with what was measured until then; a second one raises KeyboardInterrupt.

    Args:
        model: The name in its manifest; or a file (.onnx, .pt2, .pt, MXNet's symbol), or an object in memory
            (``torch.nn.Module``, ``mxnet.gluon.HybridBlock``, ``onnxruntime.InferenceSession``), which need
            no manifest and run in this process.
        inputs: An array of samples × the shape of the model's input, instead of a dataset.
        synthetic: Whether the inputs are random tensors, for speed only; a model without a manifest gets them
            where there are no others.
        version: A version or a constraint; None means the highest that has the weights.
        framework: The framework; None means the first installed one that has the model.
        weights: ``pretrained``, or ``random`` for speed only.
        seed: The seed of random weights.
        dataset: A name, or the path of a folder of class folders, of a zip or of an .npz; None means the
            dataset that the model names.
        batch_size: Inputs in a batch; None means 64, fewer for fewer ``inputs``, or what the file fixes.
        gpu: Whether it runs on the GPU.
        threads: CPU threads of an operator; None means the default.
        agent: The address of a served agent; None means this process.
        min_duration_s: How long to measure at the least.
        min_batches: How many full batches to measure at the least.
        target_ci_percent: Half the width of the interval of p50 to measure for; without any of these three,
            5 percent.
        time_budget_s: When repeating the dataset ends although it is not enough.
        publish: Whether it is kept in the database of the configuration.

    Raises:
        InferometerError: The model or the dataset cannot be opened, or a value is invalid.
        EvaluationInterrupted: Ctrl-C before a batch was measured.
        StoreError: The database cannot be reached, or lost the evaluation; the message names the file that
            keeps it.
    """
    invocation, choice = Invocation({}), dataset_choice(dataset, inputs)
    system = system_request(
        invocation,
        model,
        dataset=choice,
        version=version,
        framework=framework,
        weights=weights,
        seed=seed,
        gpu=gpu,
        threads=threads,
        agent=agent,
    )
    batch_size = default_batch_size(system, choice) if batch_size is None else batch_size
    options = BatchOptions(
        batch_size,
        batch_size,
        fail_on_error=system.given is not None,  # what fails once fails with every input
        min_duration_s=min_duration_s,
        min_batches=min_batches,
        target_ci_percent=target_ci_percent,
        time_budget_s=time_budget_s,
    )
    choice = inputs_for(system, choice, synthetic=synthetic, batch_size=options.batch_size, seed=seed)
    request = EvaluationRequest(system=system, dataset=choice, options=options)
    bar = ProgressBar(request.system.model_name)
    with Running(invocation, bar, publish=publish, stops=_STOPS) as running:
        with closing(evaluate_job(request, Systems(invocation), running.callbacks())) as found:
            evaluation = next(found)
        return Run(running.publish(evaluation))
