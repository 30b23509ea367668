"""The choice of the model: by name and version, and by the frameworks that are installed."""

from __future__ import annotations

from pathlib import Path

import pytest

from agent.registry import FrameworkEntry, Registry
from agent.selection import select_model
from manifests.catalog import Catalog
from manifests.errors import FrameworkUnavailableError, UnknownFrameworkError, UnknownModelError

INSTALLED, ABSENT = ("numpy",), ("a-distribution-that-is-not-there",)
MODEL = """\
name: {name}
version: {version}
framework: {{name: {framework}, version: "{needs}"}}
inputs:
  - {{type: image, parameters: {{dimensions: [3, 8, 8]}}}}
output: {{type: classification}}
model: {{graph_path: graph}}
"""


def registry(**distributions: tuple[str, ...]) -> Registry:
    return Registry(
        FrameworkEntry(name, "module:Class", found, f"pip install {name}")
        for name, found in distributions.items()
    )


def catalog(folder: Path, *models: tuple[str, str, str, str]) -> Catalog:
    """A catalogue with models of (name, version, framework, constraint)."""
    for place, (name, version, framework, needs) in enumerate(models):
        text = MODEL.format(name=name, version=version, framework=framework, needs=needs)
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
    for framework in (None, "Alpha"):
        with pytest.raises(FrameworkUnavailableError, match="needs Alpha >=99; installed: Alpha 1"):
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
