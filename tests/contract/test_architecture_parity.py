"""PyTorch and MXNet build the same networks: with the same weights they give the same logits.

Weights are copied in the order in which the layers are defined, so this also holds the order together.
"""

from __future__ import annotations

import gc
import importlib
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from agent.models.catalogue import ARCHITECTURES, BuiltinArchitecture

# Of the largest logit; the two frameworks add in other orders
TOLERANCE = 1e-4


@pytest.fixture(autouse=True)
def free_memory() -> Iterator[None]:
    yield
    gc.collect()


def build(architecture: BuiltinArchitecture, framework: str) -> Any:
    if framework == "mxnet":
        importlib.import_module("agent.frameworks.mxnet")
    module, class_name = architecture.builder.split(":")
    builder = getattr(importlib.import_module(f"agent.models.{framework}.{module}"), class_name)
    return builder(classes=architecture.classes, **architecture.options)


def randomise(module: Any, seed: int) -> dict[str, np.ndarray]:
    """Fills a PyTorch module, statistics of batch normalisation too, and returns its arrays in order."""
    import torch

    generator = torch.Generator().manual_seed(seed)
    module.eval()
    arrays = {}
    with torch.no_grad():
        for name, tensor in module.state_dict().items():
            if not tensor.is_floating_point():
                continue
            if tensor.ndim > 1:
                # keeps the variance of what ReLU lets through
                bound = (6.0 / tensor[0].numel()) ** 0.5
                tensor.uniform_(-bound, bound, generator=generator)
            elif "bias" in name or "mean" in name:
                tensor.uniform_(-0.02, 0.02, generator=generator)
            else:
                tensor.uniform_(0.8, 1.2, generator=generator)
            arrays[name] = tensor.numpy()
    return arrays


def fill(net: Any, shape: tuple[int, ...], arrays: dict[str, np.ndarray]) -> None:
    """Gives a gluon block the arrays in its own order."""
    import mxnet

    net.infer_shape(mxnet.nd.zeros((1, *shape)))
    parameters = list(net.collect_params().values())
    assert [parameter.shape for parameter in parameters] == [array.shape for array in arrays.values()]
    for parameter, array in zip(parameters, arrays.values(), strict=True):
        parameter.grad_req = "null"
        parameter.initialize(mxnet.init.Zero())
        parameter.set_data(array)


@pytest.mark.parametrize(
    "name",
    [
        "deep_mnist",
        "cifar10_lenet",
        "single_convolution",
        "alexnet",
        "alexnet_owt",
        "googlenet",
        "resnet18",
        "resnet50",
        "vgg11",
        "inception3",
        "inception4",
        "inception_resnet_v2",
        "deep_speech2",
    ],
)
def test_the_same_weights_give_the_same_logits(name: str) -> None:
    import torch

    architecture = ARCHITECTURES[name]
    module, net = build(architecture, "pytorch"), build(architecture, "mxnet")
    fill(net, architecture.input_shape, randomise(module, seed=11))
    # as large as pixels are, or else local response normalisation would hardly show
    data = 30 * np.random.default_rng(5).standard_normal((2, *architecture.input_shape), dtype=np.float32)

    with torch.inference_mode():
        expected = module(torch.from_numpy(data)).numpy()
    import mxnet

    logits = net(mxnet.nd.from_numpy(data, zero_copy=False)).asnumpy()

    assert logits.shape == expected.shape
    assert np.isfinite(expected).all()
    scale = np.abs(expected).max()
    assert np.abs(logits - expected).max() <= TOLERANCE * scale
    # or else the logits would not tell two inputs, and so two networks, apart
    assert np.abs(expected[0] - expected[1]).max() > 10 * TOLERANCE * scale
