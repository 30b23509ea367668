"""The shipped models that have one name and version in PyTorch and in MXNet are one network in both.

MXNet's weights are those of gluon's model zoo, so that its networks are gluon's own.
"""

from __future__ import annotations

import functools
import importlib
from typing import Any

import numpy as np
import pytest
import torch

from inferometer.agent.architectures.sources import BUILTIN_ARCHITECTURES
from inferometer.manifests.catalog import Catalog
from inferometer.manifests.inputs import ImageParameters
from inferometer.manifests.schema import ModelManifest
from tests.contract.test_architecture_parity import TOLERANCE, fill, randomise

GLUON = ("AlexNet", "Inception_v3", "ResNet18", "ResNet34", "VGG11", "VGG13", "VGG16", "VGG19")


@functools.cache
def manifest(name: str, framework: str) -> ModelManifest:
    return Catalog().find_model(name, "1.0", {framework: "1.9.1" if framework == "MXNet" else "2.13.0"})


def build(model: ModelManifest) -> Any:
    architecture = BUILTIN_ARCHITECTURES.find(model.model.architecture or "", model.framework.name)
    assert architecture is not None
    return architecture.build(initialize=False)


def shape(model: ModelManifest) -> tuple[int, ...]:
    parameters = model.inputs[0].parameters
    assert isinstance(parameters, ImageParameters)
    return parameters.dimensions


def gluon_net(name: str) -> Any:
    importlib.import_module("inferometer.agent.frameworks.mxnet.predictor")
    model = manifest(name, "MXNet")
    assert model.model.architecture is not None
    assert model.model.architecture.startswith("gluon:")
    return build(model)


@pytest.mark.parametrize("name", GLUON)
def test_gluons_network_has_the_tensors_of_torchvisions(name: str) -> None:
    net = gluon_net(name)
    mxnet = importlib.import_module("mxnet")
    model = manifest(name, "PyTorch")
    net.infer_shape(mxnet.nd.zeros((1, *shape(model))))
    with torch.device("meta"):
        state = build(model).state_dict()
    expected = [tuple(tensor.shape) for tensor in state.values() if tensor.is_floating_point()]
    assert [parameter.shape for parameter in net.collect_params().values()] == expected


@pytest.mark.usefixtures("thin_in_pytorch", "thin_in_mxnet")
@pytest.mark.parametrize("name", ["AlexNet", "Inception_v3", "ResNet18", "ResNet34"])
def test_gluons_network_gives_what_torchvisions_gives_with_the_same_weights(name: str) -> None:
    net, model = gluon_net(name), manifest(name, "PyTorch")
    module = build(model)
    fill(net, shape(model), randomise(module, seed=7))
    data = 30 * np.random.default_rng(6).standard_normal((2, *shape(model)), dtype=np.float32)
    with torch.inference_mode():
        expected = module(torch.from_numpy(data)).numpy()
    mxnet = importlib.import_module("mxnet")

    logits = net(mxnet.nd.from_numpy(data, zero_copy=False)).asnumpy()

    scale = np.abs(expected).max()
    assert np.abs(logits - expected).max() <= TOLERANCE * scale
    # or else the logits would not tell two inputs, and so two networks, apart
    assert np.abs(expected[0] - expected[1]).max() > 10 * TOLERANCE * scale


def test_version_1_0_of_resnet50_is_not_the_network_of_version_1_5() -> None:
    net = gluon_net("ResNet50")
    with torch.device("meta"):
        model = Catalog().find_model("ResNet50", "1.5", {"PyTorch": "2.13.0"})
        biases = [name for name in build(model).state_dict() if "conv" in name and name.endswith("bias")]
    assert biases == []
    assert sum("conv" in name and name.endswith("bias") for name in net.collect_params()) > 0
