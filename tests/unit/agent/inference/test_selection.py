"""The selection of a model by name, version and installed frameworks."""

from __future__ import annotations

import re
from importlib.metadata import version
from pathlib import Path

import pytest

from inferometer.agent.hardware.environment import Weights
from inferometer.agent.inference.registry import FrameworkEntry, Registry
from inferometer.agent.inference.session import select_model
from inferometer.manifests.catalog import Catalog
from inferometer.manifests.errors import (
    ArtifactError,
    FrameworkUnavailableError,
    UnknownFrameworkError,
    UnknownModelError,
)

INSTALLED, ABSENT = ("numpy",), ("a-distribution-that-is-not-there",)
MODEL = """\
name: {name}
version: {version}
framework: {{name: {framework}, version: "{needs}"}}
inputs:
  - {{type: image, parameters: {{dimensions: [3, 8, 8]}}}}
output: {{type: classification}}
model: {{{files}}}
"""
GRAPH = "graph_path: graph"
PUBLISHED = "architecture: net, weights_path: net.params"
IN_CODE = "architecture: net"
OF_A_PACKAGE = "architecture: 'package:net', weights_path: net.params"


def registry(**distributions: tuple[str, ...]) -> Registry:
    return Registry(
        FrameworkEntry(name, "module:Class", found, f"pip install {name}")
        for name, found in distributions.items()
    )


def catalog(folder: Path, *models: tuple[str, ...]) -> Catalog:
    """A catalogue with models of name, version, framework, constraint and, where it is no graph, files."""
    for place, model in enumerate(models):
        name, version, framework, needs, files = (*model, GRAPH)[:5]
        text = MODEL.format(name=name, version=version, framework=framework, needs=needs, files=files)
        (folder / f"{place}.yml").write_text(text)
    return Catalog([folder])


def test_the_first_registered_framework_that_is_installed_and_has_the_model_is_taken(tmp_path: Path) -> None:
    models = catalog(tmp_path, *(("Tiny", "1.0", name, "*") for name in ("Alpha", "Beta", "Gamma")))
    frameworks = registry(Delta=INSTALLED, Gamma=ABSENT, Beta=INSTALLED, Alpha=INSTALLED)
    assert select_model(models, frameworks, "tiny").framework.name == "Beta"


def test_the_framework_that_is_asked_for_is_taken(tmp_path: Path) -> None:
    models = catalog(tmp_path, *(("Tiny", "1.0", name, "*") for name in ("Alpha", "Beta")))
    frameworks = registry(Alpha=INSTALLED, Beta=INSTALLED)
    assert select_model(models, frameworks, "Tiny", framework=" beta ").framework.name == "Beta"


def test_a_version_or_constraint_is_kept_to(tmp_path: Path) -> None:
    models = catalog(tmp_path, *(("Tiny", version, "Alpha", "*") for version in ("1.9", "1.10", "2.0")))
    frameworks = registry(Alpha=INSTALLED)
    assert select_model(models, frameworks, "Tiny").version == "2.0"
    assert select_model(models, frameworks, "Tiny", "^1").version == "1.10"
    assert select_model(models, frameworks, "Tiny", "1.9", "Alpha").version == "1.9"


def test_a_framework_that_is_not_installed_is_refused_with_the_command_that_installs_it(
    tmp_path: Path,
) -> None:
    models = catalog(tmp_path, ("Tiny", "1.0", "Alpha", "*"), ("Tiny", "1.0", "Beta", "*"))
    with pytest.raises(FrameworkUnavailableError, match=r"Beta is not installed.*pip install Beta"):
        select_model(models, registry(Alpha=INSTALLED, Beta=ABSENT), "Tiny", framework="beta")


def test_where_none_is_installed_the_commands_for_those_that_have_the_model_are_told(tmp_path: Path) -> None:
    models = catalog(tmp_path, *(("Tiny", "1.0", name, "*") for name in ("Alpha", "Beta")))
    frameworks = registry(Alpha=ABSENT, Beta=ABSENT, Gamma=ABSENT)
    with pytest.raises(FrameworkUnavailableError, match=r"with: pip install Alpha or pip install Beta$"):
        select_model(models, frameworks, "tiny")


def test_a_framework_of_another_version_is_refused_with_the_one_that_is_needed(tmp_path: Path) -> None:
    models = catalog(tmp_path, ("Tiny", "1.0", "Alpha", ">=99"))
    message = re.escape(f"needs Alpha >=99; installed: Alpha {version(*INSTALLED)}")
    for framework in (None, "Alpha"):
        with pytest.raises(FrameworkUnavailableError, match=message):
            select_model(models, registry(Alpha=INSTALLED), "Tiny", framework=framework)


def test_unknown_names_are_refused(tmp_path: Path) -> None:
    models = catalog(tmp_path, ("Tiny", "1.0", "Alpha", "*"))
    frameworks = registry(Alpha=INSTALLED, Beta=INSTALLED)
    with pytest.raises(UnknownModelError, match='unknown model "Tony"; did you mean "Tiny"'):
        select_model(models, frameworks, "Tony")
    with pytest.raises(UnknownFrameworkError, match='unknown framework "Alfa"; did you mean "Alpha"'):
        select_model(models, frameworks, "Tiny", framework="Alfa")
    with pytest.raises(UnknownModelError, match="no manifest for Beta; it has one for: Alpha"):
        select_model(models, frameworks, "Tiny", framework="Beta")


def test_a_version_with_the_wanted_weights_comes_before_a_higher_one_without(tmp_path: Path) -> None:
    models = catalog(
        tmp_path,
        ("Tiny", "1.0", "MXNet", "*", PUBLISHED),
        ("Tiny", "1.5", "MXNet", "*", IN_CODE),
        ("Tiny", "1.2", "MXNet", "*", GRAPH),
    )
    frameworks = registry(MXNet=INSTALLED)
    assert select_model(models, frameworks, "Tiny").version == "1.2"
    assert select_model(models, frameworks, "Tiny", weights=Weights.RANDOM).version == "1.5"
    assert select_model(models, frameworks, "Tiny", "1.0", weights=Weights.RANDOM).version == "1.0"


def test_the_first_framework_that_can_have_the_weights_is_taken(tmp_path: Path) -> None:
    models = catalog(
        tmp_path,
        ("Tiny", "1.0", "PyTorch", "*", IN_CODE),
        ("Tiny", "1.0", "MXNet", "*", PUBLISHED),
        ("Tiny", "1.0", "ONNXRuntime", "*", GRAPH),
    )
    frameworks = registry(PyTorch=INSTALLED, ONNXRuntime=INSTALLED, MXNet=INSTALLED)
    assert select_model(models, frameworks, "Tiny").framework.name == "ONNXRuntime"
    assert select_model(models, frameworks, "Tiny", weights=Weights.RANDOM).framework.name == "PyTorch"
    without = registry(PyTorch=ABSENT, ONNXRuntime=INSTALLED, MXNet=INSTALLED)
    assert select_model(models, without, "Tiny", weights=Weights.RANDOM).framework.name == "MXNet"


def test_random_weights_rather_go_into_the_programs_architecture_than_into_a_packages(tmp_path: Path) -> None:
    models = catalog(
        tmp_path,
        ("Tiny", "1.0", "PyTorch", "*", IN_CODE),
        ("Tiny", "1.1", "PyTorch", "*", OF_A_PACKAGE),
        ("Other", "1.1", "PyTorch", "*", OF_A_PACKAGE),
    )
    frameworks = registry(PyTorch=INSTALLED)
    assert select_model(models, frameworks, "Tiny", weights=Weights.RANDOM).version == "1.0"
    assert select_model(models, frameworks, "Tiny").version == "1.1"
    assert select_model(models, frameworks, "Other", weights=Weights.RANDOM).version == "1.1"


def test_what_has_no_weights_is_refused_with_what_has(tmp_path: Path) -> None:
    models = catalog(
        tmp_path,
        ("My-Tiny", "1.0", "MXNet", "*", IN_CODE),
        ("Tiny", "1.0", "MXNet", "*", PUBLISHED),
        ("Tiny", "1.5", "MXNet", "*", IN_CODE),
        ("Tiny", "1.5", "PyTorch", "*", PUBLISHED),
        ("Tinier", "1.5", "PyTorch", "*", PUBLISHED),
        ("Alone", "1.5", "MXNet", "*", IN_CODE),
    )
    frameworks = registry(MXNet=INSTALLED)
    have = "; Tiny 1.5 has them for PyTorch; Tiny 1.0 has them for MXNet; --weights=random"
    with pytest.raises(ArtifactError, match=f"Tiny 1.5 for MXNet has no published weights{have}"):
        select_model(models, frameworks, "Tiny", "1.5")
    with pytest.raises(ArtifactError, match=f"My-Tiny 1.0 for MXNet has no published weights{have}"):
        select_model(models, frameworks, "my-tiny")
    with pytest.raises(ArtifactError, match=r"Alone 1.5 for MXNet has no published weights; --"):
        select_model(models, frameworks, "Alone")
    assert select_model(models, frameworks, "Alone", weights=Weights.RANDOM).name == "Alone"


def test_a_plug_in_says_itself_whether_its_architectures_have_weights(tmp_path: Path) -> None:
    models = catalog(tmp_path, ("Tiny", "1.0", "Alpha", "*", IN_CODE))
    assert select_model(models, registry(Alpha=INSTALLED), "Tiny").name == "Tiny"
