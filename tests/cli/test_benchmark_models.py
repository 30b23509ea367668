"""The 22 models of DLBS by their ids: which they are here, and that each trains in both frameworks."""

from __future__ import annotations

import math

import pytest

from inferometer.agent.hardware.environment import Weights
from inferometer.agent.inference.registry import Registry
from inferometer.agent.inference.session import select_model
from inferometer.manifests.catalog import Catalog
from inferometer.manifests.errors import UnknownModelError

FRAMEWORKS = ("PyTorch", "MXNet")
# the parameters of these are compared with DLBS's in tests/unit/agent/architectures and tests/contract
IDS = {
    "acoustic_model": "AcousticModel",
    "alexnet": "BVLC-AlexNet",
    "alexnet_owt": "AlexNet",
    "deep_mnist": "DeepMNIST",
    "deep_speech2": "DeepSpeech2",
    "googlenet": "GoogLeNet",
    "inception3": "Inception_v3",
    "inception4": "Inception_v4",
    "inception_resnet_v2": "Inception_ResNet_v2",
    "overfeat": "OverFeat",
    **{f"resnet{depth}": f"ResNet{depth}" for depth in (18, 34, 50, 101, 152, 200, 269)},
    "sensor_net": "SensorNet",
    **{f"vgg{depth}": f"VGG{depth}" for depth in (11, 13, 16, 19)},
}
SMALL = ("deep_mnist", "sensor_net")


@pytest.mark.parametrize("framework", FRAMEWORKS)
@pytest.mark.parametrize("model_id", IDS)
def test_an_id_of_dlbs_is_a_model_in_code(model_id: str, framework: str) -> None:
    catalog = Catalog()
    name, version = catalog.named(model_id)
    assert name == IDS[model_id]
    manifest = select_model(catalog, Registry(), name, version, framework, Weights.RANDOM)
    assert (manifest.name, manifest.version) == (name, version)
    architecture = manifest.model.architecture
    assert architecture is not None
    # some of MXNet's are those of gluon, which have the same parameters
    assert architecture == model_id or architecture.startswith("gluon:")


def test_all_22_ids_are_there() -> None:
    assert len(IDS) == 22


@pytest.mark.parametrize(
    ("named", "found"),
    [
        ("alexnet", ("BVLC-AlexNet", "1.0")),
        ("AlexNet", ("AlexNet", None)),
        ("ALEXNET_OWT", ("AlexNet", "1.0")),
        ("digitscnn", ("DigitsCNN", "1.0")),
        ("googlenet", ("GoogLeNet", "1.0")),
        ("GoogLeNet", ("GoogLeNet", None)),
    ],
)
def test_the_name_of_a_manifest_comes_before_an_architecture(
    named: str, found: tuple[str, str | None]
) -> None:
    assert Catalog().named(named) == found


def test_an_architecture_has_the_version_that_is_asked_for() -> None:
    name, highest = Catalog().named("alexnet")
    assert highest is not None
    assert Catalog().named("alexnet", "0.5") == (name, "0.5")
    assert Catalog().named(name, "0.5") == (name, "0.5")


def test_an_unknown_model_names_the_nearest_one() -> None:
    with pytest.raises(UnknownModelError, match=r'unknown model "alexnt"; did you mean "AlexNet"'):
        Catalog().named("alexnt")


def trained(agent, model_id: str, framework: str) -> None:
    answer = agent(
        "bench", "training", f"--model={model_id}", f"--framework_name={framework}", "--batch_size=2",
        "--num_batches=2", "--num_warmup_batches=0", "--lr=0.0001", "--publish=false", "--parts_every=0",
    )  # fmt: skip
    assert answer.code == 0, answer.stderr
    assert "over 2 full steps of 2" in answer.figure("step")
    first, _, last = answer.figure("loss").partition(" in ")[0].partition(" → ")
    assert math.isfinite(float(first))
    assert math.isfinite(float(last))


@pytest.mark.parametrize("framework", FRAMEWORKS)
@pytest.mark.parametrize("model_id", SMALL)
def test_a_small_model_trains(agent, model_id: str, framework: str) -> None:
    trained(agent, model_id, framework)


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("framework", FRAMEWORKS)
@pytest.mark.parametrize("model_id", [each for each in IDS if each not in SMALL])
def test_a_deep_model_trains(agent, model_id: str, framework: str) -> None:
    trained(agent, model_id, framework)
