"""MXNet and PyTorch train alike: from equal weights and batches, their losses agree step by step."""

from __future__ import annotations

from contextlib import closing

import numpy as np
import pytest
from numpy.typing import NDArray
from trainer_fixtures import parameters_of, set_parameters

from inferometer.agent.hardware.environment import PredictorOptions, Weights
from inferometer.agent.inference.registry import Registry
from inferometer.agent.training.trainer import OptimizerOptions, TrainerOptions, TrainingBatch, open_trainer
from inferometer.manifests.catalog import Catalog

STEPS, SAMPLES = 50, 32
LEARNING_RATES = {"CIFAR10_LeNet": 0.01, "DigitsCNN": 0.01}


def digits(shape: tuple[int, ...]) -> tuple[NDArray[np.float32], NDArray[np.int64]]:
    """Scikit-learn's digits in the shape of a model's inputs: each pixel repeated, in each channel."""
    datasets = pytest.importorskip("sklearn.datasets")
    images, targets = datasets.load_digits(return_X_y=True)
    channels, side, _ = shape
    larger = images.reshape(-1, 1, 8, 8).repeat(side // 8, axis=2).repeat(side // 8, axis=3)
    return ((larger.repeat(channels, axis=1) - 5) / 6).astype(np.float32), targets.astype(np.int64)


def losses_of(
    model: str, framework: str, api: str, optimizer: OptimizerOptions
) -> tuple[list[float], list[NDArray[np.float32]]]:
    """The losses of the steps and the parameters after them, from weights that are drawn for both alike."""
    manifest = Catalog().find_model(model, None, {framework: Registry().find(framework).installed_version})
    options = TrainerOptions(
        PredictorOptions(weights=Weights.RANDOM, threads=1), optimizer=optimizer, api=api
    )
    images, targets = digits(manifest.inputs[0].parameters.dimensions)
    rng = np.random.default_rng(7)
    trainer, _ = open_trainer(manifest, options, Registry())
    with closing(trainer):
        drawn = {}
        for name, parameter in parameters_of(trainer).items():
            bound = (3.0 / max(parameter[0].size, 1)) ** 0.5 if parameter.ndim > 1 else 0.05
            drawn[name] = rng.uniform(-bound, bound, parameter.shape).astype(np.float32)
        set_parameters(trainer, drawn)
        losses = []
        for _ in range(STEPS):
            chosen = rng.choice(len(images), SAMPLES, replace=False)
            batch = trainer.place(TrainingBatch(images[chosen], targets[chosen]))
            losses.append(trainer.step(batch).loss)
        return losses, list(parameters_of(trainer).values())


@pytest.mark.parametrize("api", ["gluon", "module"])
@pytest.mark.parametrize("model", LEARNING_RATES)
def test_mxnet_and_pytorch_have_the_same_losses(model: str, api: str) -> None:
    optimizer = OptimizerOptions("sgd", learning_rate=LEARNING_RATES[model])

    found, _ = losses_of(model, "MXNet", api, optimizer)
    expected, _ = losses_of(model, "PyTorch", "", optimizer)

    np.testing.assert_allclose(found[:10], expected[:10], rtol=1e-4)
    np.testing.assert_allclose(found, expected, rtol=1e-2)
    assert np.mean(expected[-5:]) < 0.9 * np.mean(expected[:5])  # they learn something


@pytest.mark.parametrize("name", ["nag", "adam", "adamw", "rmsprop"])
def test_every_optimizer_computes_what_pytorchs_does(name: str) -> None:
    rate = 0.01 if name == "nag" else 0.0005
    optimizer = OptimizerOptions(name, learning_rate=rate, momentum=0.5, weight_decay=0.01)

    found, parameters = losses_of("DigitsCNN", "MXNet", "", optimizer)
    expected, others = losses_of("DigitsCNN", "PyTorch", "", optimizer)

    np.testing.assert_allclose(found[:10], expected[:10], rtol=1e-4)
    np.testing.assert_allclose(found, expected, rtol=1e-2)
    for parameter, other in zip(parameters, others, strict=True):
        np.testing.assert_allclose(parameter, other, atol=2e-3)


def test_the_parameters_of_digits_cnn_have_the_same_names_in_both_frameworks() -> None:
    names = []
    for framework in ("PyTorch", "MXNet"):
        manifest = Catalog().find_model(
            "DigitsCNN", None, {framework: "2.6" if framework == "PyTorch" else "1.9.1"}
        )
        options = TrainerOptions(PredictorOptions(weights=Weights.RANDOM, threads=1))
        trainer, _ = open_trainer(manifest, options, Registry())
        with closing(trainer):
            names.append({name: values.shape for name, values in parameters_of(trainer).items()})

    assert list(names[0].items()) == list(names[1].items())


@pytest.mark.parametrize("framework", ["PyTorch", "MXNet"])
def test_the_shipped_weights_of_digits_cnn_are_where_a_training_goes_on(framework: str) -> None:
    entry = Registry().find(framework)
    manifest = Catalog().find_model("DigitsCNN", None, {framework: entry.installed_version})
    # the dataset's PNGs have 255 where scikit-learn has 16, and the manifest's mean and scale are for them
    images, targets = digits((1, 16, 16))
    inputs = ((images * 6 + 5) / 16 * 255 - 78) / 96
    trainer, _ = open_trainer(manifest, TrainerOptions(PredictorOptions(threads=1)), Registry())
    with closing(trainer):
        scores = trainer.scores(inputs[:500].astype(np.float32))

    assert (scores.argmax(axis=1) == targets[:500]).mean() > 0.9
