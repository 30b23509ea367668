"""Every shipped model that PyTorch builds in code opens with random weights and predicts.

It does so in PyTorch, and exported in ONNX Runtime.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from zoo_predictions import MODELS, TASKS, check_prediction, each_model_of, opened, require_package

from inferometer.agent.architectures.sources import Architecture, Architectures
from inferometer.agent.inference.session import Session
from inferometer.agent.tasks.predictions import RawOutputs
from inferometer.manifests.catalog import Catalog
from inferometer.manifests.schema import ModelManifest

pytestmark = pytest.mark.usefixtures("free_memory", "weights_drawn_once", "thin_in_pytorch")

# each model in PyTorch, and then in ONNX Runtime
BUILT_IN_PYTORCH = sorted(
    (model for model in MODELS if model.framework.name != "MXNet"),
    key=lambda model: (model.name, model.version, model.framework.name == "ONNXRuntime"),
)
TENSORS = {
    "AcousticModel": (540,),
    "DeepMNIST": (784,),
    "SensorNet": (784,),
    "DeepSpeech2": (1, 200, 161),
    "SingleConvolution": (32, 256, 256),
}


class BuiltOnce(Architectures):
    """Builds a network once for the sessions that name it one after the other."""

    def __init__(self) -> None:
        super().__init__()
        self._name: str | None = None
        self._network: Any = None

    def find(self, name: str, framework: str) -> Architecture | None:
        """See ``Architectures``."""
        found = super().find(name, framework)
        assert found is not None

        def build(*, initialize: bool) -> Any:
            if self._name != name:
                self._network = None  # before there is another
                self._name, self._network = name, found.build(initialize=initialize)
            return self._network

        return replace(found, build=build)


@pytest.fixture(scope="module")
def built_once() -> BuiltOnce:
    return BuiltOnce()


@pytest.fixture(scope="module")
def open_deep_speech() -> Iterator[Callable[[str], Session]]:
    """Opens DeepSpeech2 in a framework, once for all tests; each framework draws the weights itself."""
    sessions: dict[str, Session] = {}

    def find(framework: str) -> Session:
        if framework not in sessions:
            model = next(m for m in MODELS if (m.name, m.framework.name) == ("DeepSpeech2", framework))
            sessions[framework] = opened(model, seed=4)
        return sessions[framework]

    yield find
    for session in sessions.values():
        session.close()


@each_model_of(BUILT_IN_PYTORCH)
def test_a_model_with_random_weights_predicts_an_input(
    model: ModelManifest, built_once: BuiltOnce, open_deep_speech: Callable[[str], Session]
) -> None:
    require_package(model)
    if model.name == "DeepSpeech2":
        check_prediction(open_deep_speech(model.framework.name), model)
        return
    with opened(model, built_once) as session:
        check_prediction(session, model)


def test_deep_speech_exported_gives_what_pytorch_gives_for_batches_of_any_size(
    open_deep_speech: Callable[[str], Session],
) -> None:
    batch = np.random.default_rng(2).normal(size=(3, 1, 200, 161)).astype(np.float32)
    answers = []
    for framework in ("PyTorch", "ONNXRuntime"):
        session = open_deep_speech(framework)
        results = [session.predict_tensor(batch[:size]) for size in (3, 1)]
        for size, result in zip((3, 1), results, strict=True):
            assert isinstance(result.outputs, RawOutputs)
            (output,) = result.outputs.tensors.values()
            assert output.shape == (size, 67, 842)
            answers.append(output)
    tolerance = 1e-5 * np.abs(answers[0]).max()
    for answer in answers[1:]:
        np.testing.assert_allclose(answer, answers[0][: len(answer)], atol=tolerance)
    assert answers[0].std(axis=1).min() > 0  # the logits change over time
    assert np.abs(answers[0][1] - answers[0][0]).max() > 100 * tolerance  # and from input to input


def test_onnx_runtime_has_the_models_that_pytorch_has() -> None:
    pytorch, onnxruntime = (
        {
            (m.name, m.version): (m.inputs, m.output, m.model.architecture)
            for m in MODELS
            if m.framework.name == framework
        }
        for framework in ("PyTorch", "ONNXRuntime")
    )
    # which have a graph there
    assert {name for name, _ in set(pytorch) - set(onnxruntime)} == {"DigitsCNN", *TASKS}
    for key, described in onnxruntime.items():
        assert described == pytorch[key]


def test_the_models_that_take_no_images_are_there_for_every_framework() -> None:
    tensors = {
        (model.name, model.framework.name, model.inputs[0].parameters.dimensions)
        for model in Catalog().models
        if model.inputs[0].type == "tensor" and model.output.type != "generation"
    }
    assert tensors == {
        (name, framework, dimensions)
        for name, dimensions in TENSORS.items()
        for framework in ("PyTorch", "MXNet", "ONNXRuntime")
    }
