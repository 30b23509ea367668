"""PyTorch and MXNet build the same networks: with the same weights they give the same logits.

Weights are copied in the order in which the layers are defined, so this also holds the order together.
"""

from __future__ import annotations

import importlib
import subprocess
import sys
from typing import Any

import numpy as np
import pytest

from inferometer.agent.architectures.sources import ARCHITECTURES, BuiltinArchitecture

pytestmark = pytest.mark.usefixtures("free_memory", "thin_in_pytorch", "thin_in_mxnet")

# Of the largest logit; the two frameworks add in other orders
TOLERANCE = 1e-4
# Where the last pooling takes any size: the remainders of 32 are those of the networks' own inputs, so that
# each layer that halves has the same rest, or none. DeepSpeech2 takes any number of time steps.
SMALL_INPUTS = {
    **dict.fromkeys(("resnet18", "resnet50"), (3, 96, 96)),
    **dict.fromkeys(("inception4", "inception_resnet_v2"), (3, 107, 107)),
    "deep_speech2": (1, 50, 161),
}


def build(architecture: BuiltinArchitecture, framework: str) -> Any:
    if framework == "mxnet":
        importlib.import_module("inferometer.agent.frameworks.mxnet.predictor")
    module, class_name = architecture.builder.split(":")
    builder = getattr(
        importlib.import_module(f"inferometer.agent.architectures.{framework}.{module}"), class_name
    )
    return builder(classes=architecture.classes, **architecture.options)


def build_undefined(architecture: BuiltinArchitecture) -> Any:
    """A PyTorch module whose weights are not drawn, because ``randomise`` replaces them."""
    undefined = importlib.import_module("inferometer.agent.architectures.pytorch.feed_forward").undefined
    return undefined(lambda: build(architecture, "pytorch"))


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
        "digitscnn",
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
    shape = SMALL_INPUTS.get(name, architecture.input_shape)
    module = build_undefined(architecture)
    net = build(architecture, "mxnet")
    import mxnet  # after the builder, which prepares NumPy for it

    fill(net, shape, randomise(module, seed=11))
    # as large as pixels are, or else local response normalisation would hardly show
    data = 30 * np.random.default_rng(5).standard_normal((2, *shape), dtype=np.float32)

    with torch.inference_mode():
        expected = module(torch.from_numpy(data)).numpy()
    logits = net(mxnet.nd.from_numpy(data, zero_copy=False)).asnumpy()

    assert logits.shape == expected.shape
    assert np.isfinite(expected).all()
    scale = np.abs(expected).max()
    assert np.abs(logits - expected).max() <= TOLERANCE * scale
    # or else the logits would not tell two inputs, and so two networks, apart
    assert np.abs(expected[0] - expected[1]).max() > 10 * TOLERANCE * scale


LOADED = """
import sys
from inferometer.agent.architectures.sources import BUILTIN_ARCHITECTURES

for name in sys.argv[1:]:
    module = BUILTIN_ARCHITECTURES.find(name, "PyTorch").build(initialize=False)
    assert not any(tensor.is_meta for tensor in (*module.parameters(), *module.buffers())), name
sys.exit("sympy" in sys.modules)
"""


def test_a_network_is_built_for_its_weights_without_importing_what_it_does_not_need() -> None:
    """torch's symbolic shapes: half a second of each start, and 35 MiB of each agent."""
    names = ["digitscnn", "resnet50", "inception3", "deep_speech2"]
    assert set(names) <= set(ARCHITECTURES)
    subprocess.run([sys.executable, "-c", LOADED, *names], check=True)
