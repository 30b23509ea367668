"""Steps of ``bench training`` beside a training loop that one writes by hand in the same framework.

Each pair is measured in fresh processes that keep their heap. Else the layout of the heap decides whether
the C library returns the memory of each step to the kernel, and a small network then takes 1.5 times as long,
whichever of the two loops it happens to.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from inferometer.agent.hardware.environment import PredictorOptions, Weights
from inferometer.agent.inference.registry import Registry
from inferometer.agent.inference.session import select_model
from inferometer.agent.training.trainer import TrainerOptions, open_trainer
from inferometer.evaluators.datasets.base import DatasetIdentity
from inferometer.evaluators.kinds.training.request import TrainingOptions
from inferometer.evaluators.kinds.training.training_run import TrainingRun
from inferometer.evaluators.loading.loader import SyntheticLoader
from inferometer.evaluators.loading.options import DataOptions, LoaderOptions
from inferometer.manifests.catalog import Catalog
from tests.perf.fresh_process import PROCESSES, in_fresh_process
from tests.perf.ratios import Row, divided, interleaved

MODELS: Mapping[str, tuple[int, int]] = {"CIFAR10_LeNet": (64, 60), "DeepMNIST": (64, 20), "ResNet18": (4, 4)}
"""The samples in a batch, and the steps of a round, by model."""
Step: TypeAlias = Callable[[NDArray[Any], NDArray[np.int64]], float]
"""Trains on a batch of inputs and their classes, and returns the loss."""


def measure(rounds: int, threads: int) -> list[Row]:
    """Measures each model in each framework that trains, by turns with the loop and with the loop again."""
    rows = []
    for model, (batch_size, steps) in MODELS.items():
        for framework in BARE:
            taken = [in_fresh_process(_taken, framework, model, rounds, threads) for _ in range(PROCESSES)]
            ours, bare, again = ([t for each in taken for t in each[k]] for k in ("ours", "bare", "again"))
            name = f"{framework}, {model}, batches of {batch_size}"
            detail = f"{_ms(bare, steps)} / {_ms(ours, steps)} ms per step"
            rows.append(Row(f"{name}: throughput / bare loop", divided(bare, ours), "≥ 0.98", detail))
            rows.append(Row(f"{name}: the bare loop against itself", divided(bare, again)))
    return rows


def _taken(framework: str, model: str, rounds: int, threads: int) -> Mapping[str, Sequence[int]]:
    """The times of all steps of each round, in nanoseconds."""
    registry, (batch_size, steps) = Registry(), MODELS[model]
    manifest = select_model(Catalog(), registry, model, framework=framework, weights=Weights.RANDOM)
    options = TrainerOptions(predictor=PredictorOptions(threads=threads, weights=Weights.RANDOM))
    trainer, description = open_trainer(manifest, options, registry)
    with closing(trainer):
        step = BARE[framework](model, threads)
        classes, parameters = trainer.output_shape[-1], manifest.inputs[0].parameters
        loader = SyntheticLoader(parameters, LoaderOptions(batch_size), classes=classes, batches=steps)
        with loader:
            batches = [(np.array(each.inputs), each.labels) for each in loader.epoch(0)]

            def ours() -> int:
                run = TrainingRun(
                    trainer,
                    description,
                    loader,
                    DatasetIdentity("synthetic", "synthetic", None, None, steps * batch_size),
                    TrainingOptions(batch_size=batch_size, num_batches=steps, num_warmup_batches=0),
                    DataOptions(place="host"),
                )
                evaluation = run.run()
                assert evaluation is not None
                return evaluation.measurement.elapsed_ns

            def bare() -> int:
                started_ns = time.perf_counter_ns()
                for inputs, labels in batches:
                    step(inputs, labels)
                return time.perf_counter_ns() - started_ns

            return dict(interleaved(rounds, {"ours": ours, "bare": bare, "again": bare}))


def pytorch(model: str, threads: int) -> Step:
    """Returns a step of PyTorch."""
    import torch

    from inferometer.agent.architectures.sources import ARCHITECTURES

    torch.set_num_threads(threads)
    module = ARCHITECTURES[_NAMES[model]].build("PyTorch").train()
    optimizer = torch.optim.SGD(module.parameters(), lr=0.01, momentum=0.9, weight_decay=1e-4)

    def step(inputs: NDArray[Any], labels: NDArray[np.int64]) -> float:
        optimizer.zero_grad()
        loss = torch.nn.functional.cross_entropy(module(torch.from_numpy(inputs)), torch.from_numpy(labels))
        loss.backward()  # type: ignore[no-untyped-call]  # PyTorch gives it no types
        optimizer.step()
        return float(loss.item())

    return step


def mxnet(model: str, threads: int) -> Step:
    """Returns a step of gluon; the threads are MXNet's workers, which the trainer has set."""
    import mxnet as mx

    from inferometer.agent.architectures.sources import ARCHITECTURES

    net = ARCHITECTURES[_NAMES[model]].build("MXNet")
    net.initialize(mx.init.Xavier())
    net.hybridize(static_alloc=True, static_shape=True)
    criterion = mx.gluon.loss.SoftmaxCrossEntropyLoss()
    optimizer = {"learning_rate": 0.01, "momentum": 0.9, "wd": 1e-4}
    trainer = mx.gluon.Trainer(net.collect_params(), "sgd", optimizer, kvstore=None)

    def step(inputs: NDArray[Any], labels: NDArray[np.int64]) -> float:
        with mx.autograd.record():
            loss = criterion(net(mx.nd.array(inputs)), mx.nd.array(labels))
        loss.backward()
        trainer.step(len(inputs))
        mean = float(loss.mean().asscalar())
        mx.nd.waitall()
        return mean

    return step


BARE: Mapping[str, Callable[[str, int], Step]] = {"PyTorch": pytorch, "MXNet": mxnet}
_NAMES = {"CIFAR10_LeNet": "cifar10_lenet", "DeepMNIST": "deep_mnist", "ResNet18": "resnet18"}


def _ms(times_ns: Sequence[int], steps: int) -> str:
    """The median of a step in milliseconds."""
    return f"{np.median(times_ns) / steps / 1e6:.3f}"
