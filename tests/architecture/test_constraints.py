"""constraints.txt pins what `make` installs, within the ranges of pyproject.toml."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from build.util import project_wheel_metadata
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version

DISTRIBUTION = "inferometer"


def pins_for(root: Path, python: str) -> dict[str, Requirement]:
    """The pins for a version of Python, by canonical name."""
    lines = (root / "constraints.txt").read_text(encoding="utf-8").splitlines()
    requirements = [Requirement(line) for line in lines if line and not line.startswith("#")]
    chosen = [r for r in requirements if r.marker is None or r.marker.evaluate({"python_version": python})]
    assert len({canonicalize_name(r.name) for r in chosen}) == len(chosen), "a name is pinned twice"
    return {canonicalize_name(requirement.name): requirement for requirement in chosen}


@pytest.fixture(scope="module")
def pins(root: Path) -> dict[str, Requirement]:
    """The pins by canonical name, NumPy's with MXNet."""
    return pins_for(root, "3.11")


@pytest.fixture(scope="module")
def declared(root: Path) -> list[Requirement]:
    """The dependencies that pyproject.toml declares, core and of all extras."""
    content = project_wheel_metadata(root, isolated=False)
    requirements = [Requirement(line) for line in content.get_all("Requires-Dist") or ()]
    assert len(requirements) > 20
    return [r for r in requirements if canonicalize_name(r.name) != DISTRIBUTION]


def _pinned(requirement: Requirement) -> Version:
    (specifier,) = requirement.specifier
    return Version(specifier.version)


@pytest.mark.parametrize("python", ["3.10", "3.11", "3.12", "3.13"])
def test_every_line_pins_one_version(root: Path, python: str) -> None:
    for requirement in pins_for(root, python).values():
        assert [specifier.operator for specifier in requirement.specifier] == ["=="], requirement
        assert not _pinned(requirement).local, f"{requirement}: a local version is on no public index"


@pytest.mark.parametrize(
    ("name", "version"), [("torch", "2.13.0"), ("mxnet", "1.9.1"), ("numpy", "1.26"), ("protobuf", "6")]
)
def test_the_versions_that_the_project_stands_on(
    pins: dict[str, Requirement], name: str, version: str
) -> None:
    wanted = Version(version).release

    assert _pinned(pins[name]).release[: len(wanted)] == wanted


def test_every_dependency_is_pinned_within_its_range(
    pins: dict[str, Requirement], declared: list[Requirement]
) -> None:
    for requirement in declared:
        pin = pins.get(canonicalize_name(requirement.name))
        assert pin is not None, f"{requirement.name} has no pin"
        assert requirement.specifier.contains(_pinned(pin)), f"{requirement} does not allow {pin}"


def test_a_pin_that_is_for_newer_pythons_only_says_so_in_one_way(pins: dict[str, Requirement]) -> None:
    markers = {str(requirement.marker) for requirement in pins.values() if requirement.marker}

    assert markers <= {'python_version >= "3.11"', 'python_version < "3.13"'}


def test_numpy_is_the_one_that_mxnet_needs_where_there_is_mxnet(root: Path) -> None:
    versions = {python: _pinned(pins_for(root, python)["numpy"]).major for python in ("3.12", "3.13")}

    assert versions == {"3.12": 1, "3.13": 2}


def test_the_extra_all_has_what_mxnet_has_where_there_is_mxnet(declared: list[Requirement]) -> None:
    def wanted(extra: str, python: str) -> set[str]:
        found = {"extra": extra, "python_version": python}
        return {r.name for r in declared if r.marker is not None and r.marker.evaluate(found)}

    for python in ("3.10", "3.11", "3.12"):
        assert wanted("mxnet", python) <= wanted("all", python)
    assert not {"mxnet", "numpy"} & wanted("all", "3.13")


@pytest.mark.parametrize("stub", ["predict_pb2_grpc.py", "predict_pb2.py"])
def test_what_the_stubs_were_made_with_is_the_least_that_is_asked_for(
    root: Path, declared: list[Requirement], stub: str
) -> None:
    text = (root / "protos" / "inferometer" / "v1" / stub).read_text(encoding="utf-8")
    if stub.endswith("_grpc.py"):
        name, made_with = "grpcio", re.search(r"GRPC_GENERATED_VERSION = '([\d.]+)'", text)
    else:
        name, made_with = "protobuf", re.search(r"# Protobuf Python Version: ([\d.]+)", text)
    assert made_with
    (ranged,) = (requirement for requirement in declared if requirement.name == name)
    (least,) = (Version(s.version) for s in ranged.specifier if s.operator == ">=")

    # older ones refuse to import the stubs
    assert least >= Version(made_with[1])
