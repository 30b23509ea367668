"""The architectures by name: what is known, and that every builder is there."""

from __future__ import annotations

import subprocess
import sys

import pytest

from agent.models.architecture import ARCHITECTURES, find_architecture
from manifests.catalog import Catalog
from manifests.errors import ArtifactError


@pytest.mark.parametrize("name", ["os", "torch", "../digits_cnn", "agent.models", "", "resnet51"])
@pytest.mark.parametrize("framework", ["PyTorch", "MXNet"])
def test_a_name_that_is_no_architecture_is_refused(name: str, framework: str) -> None:
    with pytest.raises(ArtifactError, match=f'unknown {framework} architecture "{name}"; '):
        find_architecture(name, framework)


def test_the_nearest_names_are_told() -> None:
    with pytest.raises(ArtifactError, match='did you mean "resnet50"'):
        find_architecture("resnet_50", "MXNet")


def test_case_does_not_matter() -> None:
    assert find_architecture(" RESNET50 ", "PyTorch").name == "resnet50"


def test_one_that_a_framework_does_not_have_is_refused_there_only() -> None:
    assert find_architecture("DigitsCNN", "PyTorch").classes == 10
    with pytest.raises(ArtifactError, match="unknown MXNet architecture"):
        find_architecture("DigitsCNN", "MXNet")


def test_the_table_imports_no_framework() -> None:
    code = (
        "import sys, agent.models.architecture; "
        "sys.exit(str({'torch', 'mxnet'} & set(sys.modules) or '') or None)"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_every_built_in_manifest_names_an_architecture_that_takes_its_input() -> None:
    built = [model for model in Catalog().models if model.model.architecture]
    assert len(built) > 30
    for model in built:
        framework = model.framework.name.replace("ONNXRuntime", "PyTorch")  # which it is exported from
        architecture = find_architecture(model.model.architecture or "", framework)
        assert architecture.input_shape == model.inputs[0].parameters.dimensions
    named = {(model.model.architecture or "").casefold() for model in built}
    images = {name for name, a in ARCHITECTURES.items() if len(a.input_shape) == 3 and a.input_shape[0] == 3}
    assert images - named == {"cifar10_lenet"}
