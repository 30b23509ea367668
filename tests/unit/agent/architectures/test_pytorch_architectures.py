"""The PyTorch builders: parameters, names and outputs. Each network is built once and freed."""

import importlib
import math
from typing import Any

import pytest

from inferometer.agent.architectures.sources import ARCHITECTURES, BUILTIN_ARCHITECTURES, BuiltinArchitecture

torch = pytest.importorskip("torch")

pytestmark = pytest.mark.usefixtures("weights_drawn_once")

TRAINABLE_PARAMETERS = {
    "acoustic_model": 34_678_784,
    "deep_mnist": 11_972_510,
    "sensor_net": 2_919_440,
    "alexnet": 62_378_344,
    "alexnet_owt": 61_100_840,
    "overfeat": 145_920_872,
    "googlenet": 6_998_552,
    "inception3": 23_834_568,
    "inception4": 42_679_816,
    "inception_resnet_v2": 56_009_476,
    "resnet18": 11_689_512,
    "resnet34": 21_797_672,
    "resnet50": 25_557_032,
    "resnet101": 44_549_160,
    "resnet152": 60_192_808,
    "resnet200": 64_673_832,
    "resnet269": 102_073_384,
    "vgg11": 132_863_336,
    "vgg13": 133_047_848,
    "vgg16": 138_357_544,
    "vgg19": 143_667_240,
    "deep_speech2": 67_819_562,
    "cifar10_lenet": 62_006,
    "single_convolution": 9_216,
}
# DLBS counts what a Caffe file holds: also the running mean, the running variance and one counter of each
# normalisation, which are the buffers here. The second number is what its networks have and ours have not:
# Caffe's ResNet50 has a bias in its first convolution (64), and the small ones project the first shortcut
# (64 × 64 weights and 4 × 64 + 1 of normalisation).
DLBS_COUNTS = {
    "inception3": (23_869_094, 0),
    "inception4": (42_743_133, 0),
    "resnet18": (11_703_485, 64 * 64 + 4 * 64 + 1),
    "resnet34": (21_819_085, 64 * 64 + 4 * 64 + 1),
    "resnet50": (25_610_269, 64),
    "resnet101": (44_654_608, 0),
    "resnet152": (60_344_387, 0),
    "resnet200": (64_850_035, 0),
    "resnet269": (102_326_456, 0),
}
OUTPUT_SHAPES = {"deep_speech2": (67, 842), "single_convolution": (32, 256, 256)}
LEAST_DIFFERENCE = {"alexnet": 0.001, "alexnet_owt": 0.001}
"""The first logits of an AlexNet are near one another with the weights of the original."""
BETWEEN = {"resnet34", "resnet101", "resnet152", "resnet200", "vgg13", "vgg16"}
"""Neither the shallowest of their blocks nor the deepest: what differs is counted, and they are not run."""
NORMALISATION = ("weight", "bias", "running_mean", "running_var", "num_batches_tracked")


def build(architecture: BuiltinArchitecture) -> Any:
    module, _, name = architecture.builder.partition(":")
    builder = getattr(importlib.import_module(f"inferometer.agent.architectures.pytorch.{module}"), name)
    with torch.random.fork_rng():
        torch.manual_seed(7)
        return builder(**architecture.options, classes=architecture.classes).eval()


def without_memory(name: str) -> Any:
    with torch.device("meta"):
        return build(ARCHITECTURES[name])


def state_shapes(name: str) -> dict[str, tuple[int, ...]]:
    return {key: tuple(value.shape) for key, value in without_memory(name).state_dict().items()}


@pytest.fixture(scope="module", params=[name for name in TRAINABLE_PARAMETERS if name not in BETWEEN])
def architecture(request: pytest.FixtureRequest) -> BuiltinArchitecture:
    return ARCHITECTURES[request.param]


@pytest.fixture(scope="module")
def network(architecture: BuiltinArchitecture) -> Any:
    # only one is in memory at a time: pytest runs all tests of one architecture before the next is built
    return build(architecture)


def test_every_architecture_of_the_table_is_tested_here():
    listed = {a.name for a in ARCHITECTURES.values() if "PyTorch" in a.frameworks}
    shipped = {
        name for name in listed if name.startswith(("Digits", "Statements"))
    }  # tested with their weights
    assert set(TRAINABLE_PARAMETERS) == listed - shipped


@pytest.mark.parametrize("name", TRAINABLE_PARAMETERS)
def test_the_number_of_trainable_parameters_is_the_known_one(name):
    parameters = without_memory(name).parameters()
    assert sum(each.numel() for each in parameters if each.requires_grad) == TRAINABLE_PARAMETERS[name]


@pytest.mark.parametrize("name", DLBS_COUNTS)
def test_parameters_and_buffers_together_are_what_dlbs_counts(name):
    counted, not_here = DLBS_COUNTS[name]
    assert sum(map(math.prod, state_shapes(name).values())) + not_here == counted


def test_a_batch_of_two_gives_finite_outputs_that_depend_on_the_input(network, architecture):
    data = torch.randn(2, *architecture.input_shape, generator=torch.Generator().manual_seed(11))
    # two images of the same noise look alike to a network that averages over them
    data[1] *= 2
    with torch.inference_mode():
        outputs = network(data)
    assert tuple(outputs.shape) == (2, *OUTPUT_SHAPES.get(architecture.name, (architecture.classes,)))
    assert outputs.dtype == torch.float32
    assert torch.isfinite(outputs).all()
    # float16 must be able to hold them, and logits must not be the biases of the last layer alone
    assert 0.1 < outputs.abs().max() < 2_000
    assert (outputs[0] - outputs[1]).abs().max() > LEAST_DIFFERENCE.get(architecture.name, 0.1)


# Krizhevsky et al. (2012): zero-mean Gaussians, and positive biases in the second, fourth and fifth
# convolution and the hidden fully connected layers; the values of Caffe's bvlc_alexnet/train_val.prototxt.
ALEXNET_DEVIATIONS = [0.01, 0.01, 0.01, 0.01, 0.01, 0.005, 0.005, 0.01]
ALEXNET_BIASES = [0.0, 0.1, 0.0, 0.1, 0.1, 0.1, 0.1, 0.0]


@pytest.mark.parametrize("architecture", LEAST_DIFFERENCE, indirect=True)
def test_an_alexnet_begins_with_the_weights_of_the_original(network):
    layers = [each for each in network.modules() if isinstance(each, torch.nn.Conv2d | torch.nn.Linear)]
    weights = [each.weight.detach() for each in layers]
    assert [float(each.std()) for each in weights] == pytest.approx(ALEXNET_DEVIATIONS, rel=0.02)
    assert [float(each.mean()) for each in weights] == pytest.approx([0.0] * 8, abs=3e-4)
    for layer, bias in zip(layers, ALEXNET_BIASES, strict=True):
        assert (layer.bias == bias).all()


@pytest.mark.parametrize("architecture", ["vgg11", "overfeat"], indirect=True)
def test_a_large_classifier_begins_near_the_loss_of_chance(network, architecture):
    layers = [each for each in network.modules() if isinstance(each, torch.nn.Linear)]
    assert [float(each.weight.detach().std()) for each in layers] == pytest.approx([0.01] * 3, rel=0.02)
    draw = torch.Generator().manual_seed(3)
    data = torch.rand(2, *architecture.input_shape, generator=draw)
    with torch.inference_mode():
        outputs = network(data)
    chance = math.log(architecture.classes)
    mean_loss = (outputs.logsumexp(1) - outputs.mean(1)).mean()  # over all targets
    assert chance <= float(mean_loss) < 1.2 * chance


@pytest.mark.parametrize("architecture", LEAST_DIFFERENCE, indirect=True)
def test_the_loss_of_an_alexnet_does_not_rise_at_the_default_learning_rate(network, architecture):
    draw = torch.Generator().manual_seed(3)
    optimizer = torch.optim.SGD(network.parameters(), 0.01, 0.9, weight_decay=1e-4)
    losses = []
    for _ in range(2):
        data = torch.rand(4, *architecture.input_shape, generator=draw)
        targets = torch.randint(architecture.classes, (4,), generator=draw)
        loss = torch.nn.functional.cross_entropy(network(data), targets)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(float(loss.detach()))
    assert losses == pytest.approx([math.log(architecture.classes)] * 2, rel=0.05)


@pytest.mark.parametrize(
    ("name", "count", "known"),
    [
        (
            "resnet18",
            122,
            {
                "conv1.weight": (64, 3, 7, 7),
                **{f"bn1.{part}": (64,) for part in NORMALISATION[:4]},
                "bn1.num_batches_tracked": (),
                "layer1.0.conv1.weight": (64, 64, 3, 3),
                "layer1.1.bn2.bias": (64,),
                "layer2.0.downsample.0.weight": (128, 64, 1, 1),
                "layer2.0.downsample.1.running_var": (128,),
                "layer4.0.conv1.weight": (512, 256, 3, 3),
                "layer4.1.bn2.num_batches_tracked": (),
                "fc.weight": (1000, 512),
                "fc.bias": (1000,),
            },
        ),
        (
            "resnet50",
            320,
            {
                "conv1.weight": (64, 3, 7, 7),
                "layer1.0.conv1.weight": (64, 64, 1, 1),
                "layer1.0.conv2.weight": (64, 64, 3, 3),
                "layer1.0.conv3.weight": (256, 64, 1, 1),
                "layer1.0.bn3.running_mean": (256,),
                "layer1.0.downsample.0.weight": (256, 64, 1, 1),
                "layer3.5.conv1.weight": (256, 1024, 1, 1),
                "layer4.2.conv3.weight": (2048, 512, 1, 1),
                "layer4.2.bn3.num_batches_tracked": (),
                "fc.weight": (1000, 2048),
                "fc.bias": (1000,),
            },
        ),
        (
            "vgg11",
            22,
            {
                "features.0.weight": (64, 3, 3, 3),
                "features.0.bias": (64,),
                "features.3.weight": (128, 64, 3, 3),
                "features.6.weight": (256, 128, 3, 3),
                "features.8.weight": (256, 256, 3, 3),
                "features.11.weight": (512, 256, 3, 3),
                "features.13.weight": (512, 512, 3, 3),
                "features.16.weight": (512, 512, 3, 3),
                "features.18.weight": (512, 512, 3, 3),
                "classifier.0.weight": (4096, 25088),
                "classifier.3.weight": (4096, 4096),
                "classifier.6.weight": (1000, 4096),
                "classifier.6.bias": (1000,),
            },
        ),
        (
            "alexnet_owt",
            16,
            {
                "features.0.weight": (64, 3, 11, 11),
                "features.0.bias": (64,),
                "features.3.weight": (192, 64, 5, 5),
                "features.6.weight": (384, 192, 3, 3),
                "features.8.weight": (256, 384, 3, 3),
                "features.10.weight": (256, 256, 3, 3),
                "classifier.1.weight": (4096, 9216),
                "classifier.4.weight": (4096, 4096),
                "classifier.6.weight": (1000, 4096),
                "classifier.6.bias": (1000,),
            },
        ),
        (
            "inception3",
            94 * 6 + 2,
            {
                "Conv2d_1a_3x3.conv.weight": (32, 3, 3, 3),
                "Conv2d_1a_3x3.bn.running_var": (32,),
                "Conv2d_4a_3x3.conv.weight": (192, 80, 3, 3),
                "Mixed_5b.branch1x1.conv.weight": (64, 192, 1, 1),
                "Mixed_5b.branch5x5_2.conv.weight": (64, 48, 5, 5),
                "Mixed_6a.branch3x3dbl_3.conv.weight": (96, 96, 3, 3),
                "Mixed_6b.branch7x7dbl_5.conv.weight": (192, 128, 1, 7),
                "Mixed_7a.branch7x7x3_3.conv.weight": (192, 192, 7, 1),
                "Mixed_7c.branch3x3dbl_3b.conv.weight": (384, 384, 3, 1),
                "Mixed_7c.branch_pool.bn.bias": (192,),
                "fc.weight": (1000, 2048),
                "fc.bias": (1000,),
            },
        ),
    ],
)
def test_names_shapes_and_order_of_the_tensors_are_torchvisions(name, count, known):
    shapes = state_shapes(name)
    assert len(shapes) == count
    assert {key: shapes.get(key) for key in known} == known
    assert [key for key in shapes if key in known] == list(known)
    assert (next(iter(shapes)), list(shapes)[-1]) == (next(iter(known)), list(known)[-1])


def test_the_3x3_convolution_of_a_bottleneck_has_the_stride():
    block = without_memory("resnet50").layer2[0]
    assert (block.conv1.stride, block.conv2.stride, block.conv3.stride) == ((1, 1), (2, 2), (1, 1))


def test_the_same_seed_gives_the_same_weights():
    first, second = (build(ARCHITECTURES["cifar10_lenet"]).state_dict() for _ in range(2))
    assert all(torch.equal(first[key], second[key]) for key in first)


def test_weights_that_a_file_replaces_are_not_drawn():
    found = BUILTIN_ARCHITECTURES.find("resnet18", "PyTorch")
    before = torch.random.get_rng_state()
    state = found.build(initialize=False).state_dict()
    assert torch.equal(torch.random.get_rng_state(), before)
    assert {key: tuple(value.shape) for key, value in state.items()} == state_shapes("resnet18")
    assert {value.device.type for value in state.values()} == {"cpu"}
    assert state["bn1.num_batches_tracked"] == 0


@pytest.mark.parametrize("name", ["sensor_net", "cifar10_lenet", "resnet18", "vgg11", "single_convolution"])
def test_the_number_of_classes_is_an_option(name):
    module, _, builder = ARCHITECTURES[name].builder.partition(":")
    with torch.device("meta"):
        network = getattr(
            importlib.import_module(f"inferometer.agent.architectures.pytorch.{module}"), builder
        )(**ARCHITECTURES[name].options, classes=5)
    assert list(network.state_dict().values())[-1].shape[0] == 5


@pytest.mark.parametrize("name", ["resnet18", "vgg11"])
def test_a_depth_that_there_is_not_is_refused_with_those_that_there_are(name):
    module, _, builder = ARCHITECTURES[name].builder.partition(":")
    with pytest.raises(ValueError, match=r"with 17 layers, only with \d+, \d+"):
        getattr(importlib.import_module(f"inferometer.agent.architectures.pytorch.{module}"), builder)(
            depth=17
        )


def test_googlenet_rounds_the_size_of_pooled_maps_up_as_caffe_does():
    network = build(ARCHITECTURES["googlenet"])
    sides = []
    for layer in network.features:
        if isinstance(layer, torch.nn.MaxPool2d):
            layer.register_forward_hook(lambda _, __, maps: sides.append(maps.shape[-1]))
    with torch.inference_mode():
        network(torch.zeros(1, 3, 224, 224))
    assert sides == [56, 28, 14, 7]


def test_deep_speech2_keeps_the_order_of_the_time_steps_of_each_input():
    network = build(ARCHITECTURES["deep_speech2"])
    data = torch.randn(2, 1, 40, 161, generator=torch.Generator().manual_seed(3))
    with torch.inference_mode():
        together = network(data)
        alone = network(data[1:])
    assert torch.allclose(together[1:], alone, atol=1e-5)
