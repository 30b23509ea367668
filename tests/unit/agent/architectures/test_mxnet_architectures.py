"""Every architecture in MXNet: its number of parameters, and that it runs."""

from __future__ import annotations

import functools
import importlib
from typing import Any

import numpy as np
import pytest
from repeated_weights import Repeated

from inferometer.agent.architectures.sources import ARCHITECTURES, BuiltinArchitecture
from tests.optional_mxnet import mxnet

pytestmark = pytest.mark.usefixtures("free_memory")

NAMES = [name for name, a in ARCHITECTURES.items() if "MXNet" in a.frameworks]
OUTPUT_SHAPES = {"single_convolution": (32, 256, 256), "deep_speech2": (67, 842)}
BETWEEN = {"resnet34", "resnet101", "resnet152", "resnet200", "vgg13", "vgg16"}
"""Neither the shallowest of their blocks nor the deepest: what differs is counted, and they are not run."""
# What would take seconds runs with smaller inputs, which halve as the large ones do: without or with a rest
SMALL_INPUTS = {
    **dict.fromkeys(("vgg11", "vgg19", "resnet50", "resnet269"), (3, 64, 64)),
    **dict.fromkeys(("inception4", "inception_resnet_v2"), (3, 107, 107)),
    "deep_speech2": (1, 14, 161),
}

TRAINABLE = {
    "digitscnn": 38_282,
    "acoustic_model": 34_678_784,
    "deep_mnist": 11_972_510,
    "sensor_net": 2_919_440,
    "alexnet": 62_378_344,
    "alexnet_owt": 61_100_840,
    "overfeat": 145_920_872,
    "googlenet": 6_998_552,
    "resnet18": 11_689_512,
    "resnet34": 21_797_672,
    "resnet50": 25_557_032,
    "resnet101": 44_549_160,
    "resnet152": 60_192_808,
    "vgg11": 132_863_336,
    "vgg13": 133_047_848,
    "vgg16": 138_357_544,
    "vgg19": 143_667_240,
    "cifar10_lenet": 62_006,
    "single_convolution": 32 * 32 * 9,
}
# DLBS counts the blobs of Caffe's networks: a batch normalisation has its statistics and one number more
CAFFE_BLOBS = {
    "inception3": 23_869_094,
    "inception4": 42_743_133,
    "resnet101": 44_654_608,
    "resnet152": 60_344_387,
    "resnet200": 64_850_035,
    "resnet269": 102_326_456,
}


def builder(architecture: BuiltinArchitecture) -> Any:
    module, class_name = architecture.builder.split(":")
    return getattr(importlib.import_module(f"inferometer.agent.architectures.mxnet.{module}"), class_name)


def build(name: str, **options: Any) -> Any:
    architecture = ARCHITECTURES[name]
    return builder(architecture)(**{**architecture.options, **options})


@functools.cache
def parameters(name: str) -> list[Any]:
    """The parameters with their shapes, none of which is allocated."""
    net = build(name)
    net.infer_shape(mxnet.nd.zeros((1, *ARCHITECTURES[name].input_shape)))
    return list(net.collect_params().values())


def size(parameter: Any) -> int:
    return int(np.prod(parameter.shape))


def initialise(net: Any, shape: tuple[int, ...]) -> None:
    """Gives the parameters values, without room for gradients."""
    net.infer_shape(mxnet.nd.zeros((1, *shape)))
    parameters = net.collect_params()
    parameters.setattr("grad_req", "null")
    for parameter in parameters.values():
        parameter.initialize(Repeated())


def output_shape(net: Any, name: str) -> tuple[int, ...]:
    """The shape of the logits of three inputs, which is inferred and not run."""
    symbol = net(mxnet.sym.var("data"))
    _, outputs, _ = symbol.infer_shape(data=(3, *ARCHITECTURES[name].input_shape))
    return outputs[0]


def run_symbol(net: Any, data: Any) -> np.ndarray:
    """What the block's symbol gives, bound to the parameters as a predictor binds them."""
    symbol = net(mxnet.sym.var("data"))
    values = {name: parameter.data() for name, parameter in net.collect_params().items()}
    arguments = {name: values[name] for name in symbol.list_arguments() if name != "data"}
    states = {name: values[name] for name in symbol.list_auxiliary_states()}
    executor = symbol.bind(mxnet.cpu(), {**arguments, "data": data}, aux_states=states, grad_req="null")
    return executor.forward(is_train=False)[0].asnumpy()


@pytest.mark.parametrize("name", TRAINABLE)
def test_the_trainable_parameters_are_as_many_as_published(name: str) -> None:
    assert sum(size(p) for p in parameters(name) if p.grad_req != "null") == TRAINABLE[name]


@pytest.mark.parametrize("name", CAFFE_BLOBS)
def test_parameters_and_statistics_are_as_many_as_dlbs_says(name: str) -> None:
    found = parameters(name)
    normalisations = sum(p.name.endswith("running_mean") for p in found)

    assert sum(map(size, found)) + normalisations == CAFFE_BLOBS[name]


@pytest.mark.usefixtures("thin_in_mxnet")
@pytest.mark.parametrize("name", [name for name in NAMES if name not in BETWEEN])
def test_a_batch_runs_as_a_block_as_a_symbol_and_hybridized(name: str) -> None:
    architecture = ARCHITECTURES[name]
    shape = SMALL_INPUTS.get(name, architecture.input_shape)
    net = build(name)
    initialise(net, shape)
    inputs = np.random.default_rng(1).random((2, *shape), dtype=np.float32)
    inputs[1] *= 2
    data = mxnet.nd.from_numpy(inputs, zero_copy=False)

    logits = net(data[:1]).asnumpy()
    both = run_symbol(net, data)
    net.hybridize()
    hybridized = net(data[:1]).asnumpy()

    assert logits.dtype == np.float32
    assert logits.shape == (1, *both.shape[1:])
    assert np.isfinite(logits).all()
    scale = np.abs(logits).max()
    np.testing.assert_allclose(hybridized, logits, rtol=0, atol=1e-4 * scale)
    # an input's logits do not depend on the rest of its batch, only on the input
    np.testing.assert_allclose(both[:1], logits, rtol=0, atol=1e-4 * scale)
    assert np.abs(both[1] - both[0]).max() > 1e-3 * scale


@pytest.mark.parametrize("name", NAMES)
def test_the_logits_of_its_inputs_have_the_shape_of_its_classes(name: str) -> None:
    architecture = ARCHITECTURES[name]

    assert output_shape(build(name), name) == (3, *OUTPUT_SHAPES.get(name, (architecture.classes,)))


@pytest.mark.parametrize("name", ["resnet18", "googlenet", "deep_mnist", "cifar10_lenet", "alexnet_owt"])
def test_the_number_of_classes_is_an_option(name: str) -> None:
    assert output_shape(build(name, classes=7), name) == (3, 7)


@pytest.mark.parametrize("name", ["resnet50", "vgg16"])
def test_a_depth_that_does_not_exist_is_refused(name: str) -> None:
    with pytest.raises(ValueError, match=r"with 17 layers, only with .*\d+"):
        build(name, depth=17)


class Drawn:
    """A parameter that keeps what is drawn for it."""

    def __init__(self, parameter: Any) -> None:
        self.name, self.shape = parameter.name, parameter.shape
        self.values = np.empty(0)

    def set_data(self, values: np.ndarray) -> None:
        self.values = values


@pytest.mark.parametrize("name", ["alexnet", "alexnet_owt"])
def test_an_alexnet_begins_with_the_weights_of_the_original(name: str) -> None:
    drawn = [Drawn(each) for each in parameters(name)]
    from inferometer.agent.frameworks.mxnet.networks import draw_weights

    draw_weights(drawn, 5, builder(ARCHITECTURES[name]).gaussian_layers)

    weights, biases = drawn[::2], drawn[1::2]
    assert all(each.values.dtype == np.float32 and each.values.shape == each.shape for each in drawn)
    assert [float(each.values.std()) for each in weights] == pytest.approx(
        [0.01, 0.01, 0.01, 0.01, 0.01, 0.005, 0.005, 0.01], rel=0.02
    )
    assert [float(each.values.mean()) for each in weights] == pytest.approx([0.0] * 8, abs=3e-4)
    for each, value in zip(biases, [0.0, 0.1, 0.0, 0.1, 0.1, 0.1, 0.1, 0.0], strict=True):
        assert (each.values == np.float32(value)).all()
