"""The manifests in manifests/builtin: valid, unchanged, small, and the same model in every framework."""

from __future__ import annotations

import io
import zipfile
from collections import Counter
from importlib import metadata
from pathlib import Path

import pytest
import torch
from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet
from PIL import Image

from inferometer.agent.architectures.pytorch.feed_forward import DigitsCNN
from inferometer.agent.architectures.pytorch.text_convolution import StatementsCNN
from inferometer.agent.artifacts.files import get_file, resolve_artifacts
from inferometer.agent.artifacts.locations import refer, tokenizer_files
from inferometer.agent.inference.registry import Registry
from inferometer.manifests.catalog import Catalog
from inferometer.manifests.files import BUILTIN
from inferometer.manifests.schema import DatasetManifest, ModelManifest

FRAMEWORKS = ("PyTorch", "MXNet", "ONNXRuntime")
EXTRAS = {"PyTorch": ("pytorch", "torch"), "MXNet": ("mxnet", "mxnet"), "ONNXRuntime": ("onnxruntime",) * 2}


@pytest.fixture(scope="module")
def catalog() -> Catalog:
    return Catalog()


@pytest.fixture(scope="module")
def digits_cnn(catalog: Catalog) -> dict[str, ModelManifest]:
    """The manifests of DigitsCNN by framework."""
    return {model.framework.name: model for model in catalog.models if model.name == "DigitsCNN"}


@pytest.fixture(scope="module")
def archive_path(catalog: Catalog) -> Path:
    dataset = catalog.find_dataset("digits_validation")
    return get_file(refer(dataset, "path", dataset.path, dataset.checksum)).path


def test_every_builtin_manifest_is_valid(catalog: Catalog) -> None:
    files = [path for path in BUILTIN.rglob("*") if path.suffix in {".yml", ".yaml"}]
    assert catalog.problems == ()
    assert len(files) == len(catalog.models) + len(catalog.datasets) + len(catalog.frameworks)


def test_every_registered_framework_has_a_manifest(catalog: Catalog) -> None:
    assert {f.name for f in catalog.frameworks} == {entry.name for entry in Registry().entries}


def test_every_builtin_model_file_has_its_checksum(catalog: Catalog) -> None:
    for model in catalog.models:
        files = model.model
        for path, checksum in (
            (files.graph_path, files.graph_checksum),
            (files.weights_path, files.weights_checksum),
        ):
            assert (path is None) == (not checksum), f"{model.source}: {path} has no checksum"
        if files.base_url:  # what is at a URL has it in test_zoo_manifests.py
            continue
        artifacts = resolve_artifacts(model)
        assert artifacts.checksums or files.architecture, f"{model.source}: has no file and no architecture"
        assert {files.graph_checksum, files.weights_checksum} - {""} == set(artifacts.checksums.values())


def test_every_builtin_dataset_has_its_checksum_and_licence(catalog: Catalog) -> None:
    for dataset in catalog.datasets:
        assert dataset.license
        assert dataset.references
        if dataset.obtain:
            continue
        assert dataset.source is not None
        if (dataset.source.parent / dataset.path).is_dir():
            assert dataset.backend  # which a folder of several kinds of files does not show
            continue
        assert dataset.checksum.startswith("sha256:")
        assert get_file(refer(dataset, "path", dataset.path, dataset.checksum)).path.is_file()


def test_builtin_files_have_at_most_5_mb_together() -> None:
    assert sum(path.stat().st_size for path in BUILTIN.rglob("*") if path.is_file()) <= 5_000_000


def test_digits_cnn_is_there_for_every_framework(digits_cnn: dict[str, ModelManifest]) -> None:
    assert sorted(digits_cnn) == sorted(FRAMEWORKS)


def test_digits_cnn_is_the_same_model_in_every_framework(digits_cnn: dict[str, ModelManifest]) -> None:
    first = digits_cnn["PyTorch"]
    for model in digits_cnn.values():
        assert (model.version, model.inputs, model.output) == (first.version, first.inputs, first.output)
        assert (model.dataset, model.license) == (first.dataset, first.license)
        assert model.attributes == first.attributes
    assert first.attributes["top1_accuracy"] >= 0.97
    assert first.output.parameters.labels == tuple("0123456789")


@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_a_framework_has_the_version_range_that_the_package_installs(
    framework: str, catalog: Catalog, digits_cnn: dict[str, ModelManifest]
) -> None:
    extra, distribution = EXTRAS[framework]
    ranges = [
        requirement.specifier
        for requirement in map(Requirement, metadata.requires("inferometer") or ())
        if requirement.name == distribution
        and requirement.marker is not None
        and requirement.marker.evaluate({"extra": extra})
    ]
    manifest = next(f for f in catalog.frameworks if f.name == framework)
    assert ranges == [SpecifierSet(manifest.version)]
    assert digits_cnn[framework].framework.version == manifest.version
    assert digits_cnn[framework].container == manifest.container


def test_the_models_dataset_is_known(catalog: Catalog) -> None:
    for model in catalog.models:
        if model.dataset is not None:
            assert isinstance(catalog.find_dataset(model.dataset), DatasetManifest)


def test_digits_cnn_has_the_parameters_that_its_manifest_counts(digits_cnn: dict[str, ModelManifest]) -> None:
    manifest = digits_cnn["PyTorch"]
    weights = resolve_artifacts(manifest).weights
    assert weights is not None
    model = DigitsCNN()
    model.load_state_dict(torch.load(weights, weights_only=True))
    assert sum(p.numel() for p in model.parameters()) == manifest.attributes["parameters"]
    shape = (3, *manifest.inputs[0].parameters.dimensions)
    assert model(torch.zeros(shape)).shape == (3, len(manifest.output.parameters.labels))


def test_digits_validation_holds_8x8_grey_pngs_in_class_folders(archive_path: Path) -> None:
    with zipfile.ZipFile(archive_path) as archive:
        names = archive.namelist()
        for name in names:
            folder, _, file = name.partition("/")
            assert folder in set("0123456789")
            assert file.endswith(".png")
            assert "/" not in file
            with Image.open(io.BytesIO(archive.read(name))) as image:
                assert (image.format, image.mode, image.size) == ("PNG", "L", (8, 8))
    assert len(names) == len({name.partition("/")[2] for name in names}) == 450
    counts = Counter(name[0] for name in names)
    assert len(counts) == 10
    assert max(counts.values()) - min(counts.values()) <= 3


def test_digits_validation_mixes_the_classes_in_the_order_of_its_file_names(archive_path: Path) -> None:
    with zipfile.ZipFile(archive_path) as archive:
        names = sorted(archive.namelist(), key=lambda name: name.partition("/")[2])
    labels = [name[0] for name in names]
    assert len(set(labels[:20])) >= 8
    assert labels != sorted(labels)


def test_digits_validation_was_zipped_without_anything_of_the_machine(archive_path: Path) -> None:
    with zipfile.ZipFile(archive_path) as archive:
        entries = archive.infolist()
    assert [e.filename for e in entries] == sorted(e.filename for e in entries)
    assert {e.date_time for e in entries} == {(1980, 1, 1, 0, 0, 0)}
    assert {e.compress_type for e in entries} == {zipfile.ZIP_STORED}


def test_statements_cnn_is_the_same_model_in_every_framework(catalog: Catalog) -> None:
    models = {model.framework.name: model for model in catalog.models if model.name == "StatementsCNN"}
    assert sorted(models) == sorted(FRAMEWORKS)
    first = models["PyTorch"]
    for model in models.values():
        assert (model.version, model.inputs, model.output) == (first.version, first.inputs, first.output)
        assert (model.dataset, model.attributes) == (first.dataset, first.attributes)
        (tokenizer,) = tokenizer_files(model).values()
        assert tokenizer.checksum == get_file(tokenizer).checksum
    weights = resolve_artifacts(first).weights
    assert weights is not None
    network = StatementsCNN()
    network.load_state_dict(torch.load(weights, weights_only=True))
    assert sum(p.numel() for p in network.parameters()) == first.attributes["parameters"]
    assert first.attributes["accuracy"] >= 0.9
