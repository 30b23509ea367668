"""The shipped models of the zoo: the locations of their weights, their inputs, and their labels."""

from __future__ import annotations

import hashlib
import importlib
import importlib.util
import math
import re
from collections.abc import Iterator
from typing import Any

import pytest
import torch

from inferometer.agent.architectures.sources import BUILTIN_ARCHITECTURES
from inferometer.evaluators.tasks.metric import ClassIndex
from inferometer.manifests.catalog import Catalog
from inferometer.manifests.errors import DatasetError, UnknownModelError
from inferometer.manifests.files import BUILTIN
from inferometer.manifests.inputs import ImageParameters
from inferometer.manifests.schema import ModelManifest

FRAMEWORKS = ("PyTorch", "MXNet", "ONNXRuntime")
SIDES = {"AlexNet": 224, "BVLC-AlexNet": 227, "OverFeat": 231, "Inception": 299, "ResNet": 224, "VGG": 224}
# What is published, by model and version: the file at torchvision's, and the name in gluon's model zoo
TORCHVISION = {
    "AlexNet 1.0": "alexnet-owt-7be5be79.pth",
    "GoogLeNet 1.1": "googlenet-1378be20.pth",
    "Inception_v3 1.0": "inception_v3_google-0cc3c7bd.pth",
    "ResNet18 1.0": "resnet18-f37072fd.pth",
    "ResNet34 1.0": "resnet34-b627a593.pth",
    "ResNet50 1.5": "resnet50-0676ba61.pth",
    "ResNet101 1.5": "resnet101-63fe2227.pth",
    "ResNet152 1.5": "resnet152-394f9c45.pth",
    "VGG11 1.0": "vgg11-8a719046.pth",
    "VGG13 1.0": "vgg13-19584684.pth",
    "VGG16 1.0": "vgg16-397923af.pth",
    "VGG19 1.0": "vgg19-dcbb9e9d.pth",
}
GLUON = {
    "AlexNet 1.0": "alexnet",
    "Inception_v3 1.0": "inceptionv3",
    "ResNet18 1.0": "resnet18_v1",
    "ResNet34 1.0": "resnet34_v1",
    "ResNet50 1.0": "resnet50_v1",
    "ResNet101 1.0": "resnet101_v1",
    "ResNet152 1.0": "resnet152_v1",
    "VGG11 1.0": "vgg11",
    "VGG13 1.0": "vgg13",
    "VGG16 1.0": "vgg16",
    "VGG19 1.0": "vgg19",
}
WITHOUT_WEIGHTS = {
    *((name, framework) for name in ("BVLC-AlexNet 1.0", "GoogLeNet 1.0") for framework in FRAMEWORKS),
    *((f"Inception_{name} 1.0", framework) for name in ("v4", "ResNet_v2") for framework in FRAMEWORKS),
    *((name, framework) for name in ("OverFeat 1.0", "ResNet200 1.0") for framework in FRAMEWORKS),
    *(("ResNet269 1.0", framework) for framework in FRAMEWORKS),
    *((f"ResNet{depth} 1.5", "MXNet") for depth in (50, 101, 152)),
}
# The inputs that these weights were trained with are in -1…1; torchvision converts to that in the model
HALVED = {"GoogLeNet 1.1", "Inception_v3 1.0"}
LABELS = BUILTIN / "labels" / "imagenet_1k.txt"


@pytest.fixture(scope="module")
def models() -> tuple[ModelManifest, ...]:
    """The models of ImageNet's 1000 classes."""
    return tuple(m for m in Catalog().models if m.output.parameters.features_url)


@pytest.fixture(scope="module")
def published(models: tuple[ModelManifest, ...]) -> tuple[ModelManifest, ...]:
    return tuple(m for m in models if m.model.weights_path)


def key(model: ModelManifest) -> str:
    return f"{model.name} {model.version}"


def image(model: ModelManifest) -> ImageParameters:
    parameters = model.inputs[0].parameters
    assert isinstance(parameters, ImageParameters)
    return parameters


def test_what_is_published_is_there_for_each_framework_and_nothing_else_is(
    models: tuple[ModelManifest, ...], published: tuple[ModelManifest, ...]
) -> None:
    for framework, names in (("PyTorch", TORCHVISION), ("ONNXRuntime", TORCHVISION), ("MXNet", GLUON)):
        assert {key(m) for m in published if m.framework.name == framework} == set(names)
    without = {(key(m), m.framework.name) for m in models if not m.model.weights_path}
    assert without == WITHOUT_WEIGHTS


def test_torchvisions_files_have_the_checksum_that_is_in_their_names(
    published: tuple[ModelManifest, ...],
) -> None:
    for model in published:
        files = model.model
        if model.framework.name == "MXNet":
            continue
        assert files.weights_path == TORCHVISION[key(model)]
        digits = re.search(r"-([0-9a-f]{8})\.pth$", files.weights_path or "")
        assert digits
        assert files.weights_checksum == f"sha256:{digits[1]}"
        assert (files.base_url, files.is_archive) == ("https://download.pytorch.org/models", False)


def test_gluons_files_have_the_address_and_the_checksum_of_the_installed_mxnet(
    published: tuple[ModelManifest, ...],
) -> None:
    importlib.import_module("inferometer.agent.frameworks.mxnet.predictor")
    store: Any = importlib.import_module("mxnet.gluon.model_zoo.model_store")
    for model in published:
        files = model.model
        if model.framework.name != "MXNet":
            continue
        name = GLUON[key(model)]
        file_name = f"{name}-{store.short_hash(name)}"
        assert files.architecture == f"gluon:{name}"
        assert files.base_url == store._url_format.format(repo_url=store.apache_repo_url, file_name=file_name)
        assert (files.weights_path, files.is_archive) == (f"{file_name}.params", True)
        assert files.weights_checksum == f"sha1:{store._model_sha1[name]}"


def test_images_are_prepared_as_the_weights_were_trained(published: tuple[ModelManifest, ...]) -> None:
    for model in published:
        parameters = image(model)
        side = parameters.height
        assert parameters.dimensions == (3, side, side)
        assert round(side / parameters.crop_ratio) == {224: 256, 299: 342}[side]
        assert parameters.keep_aspect_ratio
        assert parameters.crop_method.value == "center"
        assert (parameters.color_mode.value, parameters.interpolation.value) == ("RGB", "bilinear")
        halved = key(model) in HALVED and model.framework.name != "MXNet"
        mean, deviation = (
            ((0.5,) * 3, (0.5,) * 3) if halved else ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225))
        )
        for found, expected in ((parameters.mean, mean), (parameters.scale, deviation)):
            values = found * 3 if len(found) == 1 else found
            assert [value / 255 for value in values] == pytest.approx(expected)


def test_a_name_and_version_mean_one_network_in_every_framework(models: tuple[ModelManifest, ...]) -> None:
    first: dict[str, ModelManifest] = {}
    for model in models:
        other = first.setdefault(key(model), model)
        assert image(model).dimensions == image(other).dimensions
        assert model.output == other.output
        assert model.attributes["parameters"] == other.attributes["parameters"]
        side = next((s for name, s in SIDES.items() if model.name.startswith(name)), 224)
        assert image(model).height == side


def test_every_model_says_what_it_is_and_published_ones_how_good(models: tuple[ModelManifest, ...]) -> None:
    containers = {f.name: f.container for f in Catalog().frameworks}
    ranges = {f.name: f.version for f in Catalog().frameworks}
    for model in models:
        assert len(model.description) > 10
        assert model.references
        assert model.container == containers[model.framework.name]
        assert model.framework.version == ranges[model.framework.name]
        assert model.attributes["kind"] == "CNN"
        if not model.model.weights_path:
            assert model.license.startswith("Apache-2.0 (the code")
            assert set(model.attributes) == {"kind", "parameters"}
            continue
        assert re.match(r"(BSD-3-Clause \(torchvision|Apache-2\.0 \(MXNet).*ImageNet", model.license)
        assert model.attributes["training_dataset"] == "ImageNet"
        top1, top5 = (float(model.attributes[name]) for name in ("Top1", "Top5"))
        assert 50 < top1 < top5 < 95


def built(model: ModelManifest) -> Any:
    """The network, without weights, or None where the package of its architecture is not installed."""
    name = model.model.architecture or ""
    package = name.partition(":")[0] if ":" in name else ""
    if package not in {"", "gluon"} and importlib.util.find_spec(package) is None:
        return None
    architecture = BUILTIN_ARCHITECTURES.find(name, model.framework.name)
    assert architecture is not None
    with torch.device("meta"):
        return architecture.build(initialize=False)


def counts(network: Any, model: ModelManifest) -> Iterator[int]:
    if isinstance(network, torch.nn.Module):
        named = network.named_parameters()
        # the classifiers that only help training
        return (p.numel() for name, p in named if not name.startswith(("aux", "AuxLogits")))
    mxnet = importlib.import_module("mxnet")
    network.infer_shape(mxnet.nd.zeros((1, *image(model).dimensions)))
    return (math.prod(p.shape) for p in network.collect_params().values() if p.grad_req != "null")


def test_every_architecture_is_there_and_has_the_parameters_that_its_manifests_say(
    models: tuple[ModelManifest, ...],
) -> None:
    has_mxnet = importlib.util.find_spec("mxnet") is not None
    if has_mxnet:
        importlib.import_module("inferometer.agent.frameworks.mxnet.predictor")
    seen = set()
    for model in models:
        where = (model.model.architecture, model.framework.name == "MXNet")
        if where in seen or (where[1] and not has_mxnet):
            continue
        seen.add(where)
        network = built(model)
        if network is not None:
            assert sum(counts(network, model)) == model.attributes["parameters"], model.source


def test_labels_are_imagenets_1000_classes_in_their_order(models: tuple[ModelManifest, ...]) -> None:
    lines = LABELS.read_text(encoding="utf-8").splitlines()
    assert len(lines) == 1000
    synsets = [re.fullmatch(r"(n\d{8}) \S.*", line) for line in lines]
    numbers = [match[1] for match in synsets if match]
    assert numbers == sorted(set(numbers))
    assert len(numbers) == 1000
    for index, start in (
        (0, "n01440764 tench,"),
        (281, "n02123045 tabby,"),
        (437, "n02814860 beacon,"),
        (999, "n15075141 toilet tissue,"),
    ):
        assert lines[index].startswith(start)
    checksum = hashlib.sha256(LABELS.read_bytes()).hexdigest()
    for model in models:
        parameters = model.output.parameters
        assert parameters.features_checksum == f"sha256:{checksum}"
        assert model.source is not None
        assert (model.source.parent / parameters.features_url).resolve() == LABELS.resolve()


def test_a_validation_folders_classes_are_found_by_their_synset() -> None:
    classes = ClassIndex(LABELS.read_text(encoding="utf-8").splitlines())
    assert [classes.find(name) for name in ("n01440764", "N02123045", "n15075141")] == [0, 281, 999]
    with pytest.raises(DatasetError, match=r"n00000000.* is none of the 1000 classes"):
        classes.find("n00000000")


def test_licences_of_the_labels_are_beside_them() -> None:
    text = (LABELS.parent / "LICENSE.txt").read_text(encoding="utf-8")
    for part in (
        "WordNet 3.0 Copyright 2006 by Princeton University",
        "Copyright 2019 Ross Wightman",
        "timm",
    ):
        assert part in text


def test_alexnets_former_name_leads_to_it() -> None:
    with pytest.raises(UnknownModelError, match='did you mean "AlexNet"'):
        Catalog().find_model("AlexNet_OWT", None, {"PyTorch": "2.13.0"})
