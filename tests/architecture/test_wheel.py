"""The wheel holds the five packages with their data, and runs from where it is installed."""

from __future__ import annotations

import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

PACKAGES = ("agent", "client", "evaluators", "manifests", "protos")
WEIGHTS = {".pt", ".params", ".onnx"}
MOST_BYTES_OF_WEIGHTS = 1_000_000

_LOAD_EVERYTHING = """
import manifests
from pathlib import Path
from agent.artifacts import resolve_artifacts
from agent.file_locations import Availability, availability, labels_file
from agent.labels import with_labels
from evaluators.datasets.opening import open_dataset
from manifests.catalog import Catalog
catalog = Catalog()
assert not catalog.problems, catalog.problems
for model in catalog.models:
    resolve_artifacts(model, weights=not model.model.base_url)
    labels = with_labels(model).output.parameters.labels
    print(model.name, model.framework.name, len(labels))
for dataset in catalog.datasets:
    print(dataset.name, len(open_dataset(dataset)))
print(manifests.__file__)
"""


@pytest.fixture(scope="session")
def wheel(root: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel, built from the checkout without a network."""
    folder = tmp_path_factory.mktemp("wheel")
    command = [sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", str(folder), str(root)]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stdout + done.stderr
    (built,) = folder.glob("*.whl")
    return built


@pytest.fixture(scope="session")
def sizes(wheel: Path) -> dict[str, int]:
    """The files in the wheel with their sizes in bytes, without its own metadata."""
    with zipfile.ZipFile(wheel) as archive:
        return {
            file.filename: file.file_size for file in archive.infolist() if ".dist-info/" not in file.filename
        }


@pytest.fixture(scope="session")
def installed(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder into which the wheel alone is installed."""
    folder = tmp_path_factory.mktemp("installed")
    command = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--no-index"]
    done = subprocess.run(
        [*command, "--target", str(folder), str(wheel)], capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return folder


def _run_installed(installed: Path, *command: str) -> str:
    """Runs a command that finds the program in ``installed`` before anywhere else."""
    environment = {**os.environ, "PYTHONPATH": str(installed)}
    done = subprocess.run(
        command, cwd=installed.parent, env=environment, capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_the_wheel_holds_every_file_of_the_packages_and_no_other(root: Path, sizes: dict[str, int]) -> None:
    expected = {
        str(path.relative_to(root))
        for package in PACKAGES
        for path in (root / package).rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }

    assert set(sizes) == expected


@pytest.mark.parametrize("package", PACKAGES)
def test_every_package_says_that_it_is_typed(sizes: dict[str, int], package: str) -> None:
    assert f"{package}/py.typed" in sizes


@pytest.mark.parametrize("suffix", [".yml", ".zip", ".proto", ".pyi", *sorted(WEIGHTS)])
def test_data_are_shipped(sizes: dict[str, int], suffix: str) -> None:
    assert any(name.endswith(suffix) for name in sizes)


def test_the_shipped_weights_are_at_most_a_megabyte(sizes: dict[str, int]) -> None:
    weights = [size for name, size in sizes.items() if Path(name).suffix in WEIGHTS]

    assert len(weights) >= 3
    assert sum(weights) <= MOST_BYTES_OF_WEIGHTS


def test_the_installed_wheel_loads_its_models_and_datasets(installed: Path) -> None:
    *found, source = _run_installed(installed, sys.executable, "-c", _LOAD_EVERYTHING).splitlines()

    assert Path(source).is_relative_to(installed)
    assert {f"DigitsCNN {framework} 10" for framework in ("PyTorch", "MXNet", "ONNXRuntime")} <= set(found)
    assert "ResNet50 MXNet 1000" in found
    assert "digits_validation 450" in found


def test_the_installed_command_shows_its_help(installed: Path) -> None:
    assert _run_installed(installed, str(installed / "bin" / "agent"), "--help").startswith("Usage: agent")


def test_the_metadata_ask_for_the_python_that_the_linter_is_set_to(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        (name,) = (n for n in archive.namelist() if n.endswith(".dist-info/METADATA"))
        metadata = archive.read(name).decode()

    assert "\nName: inferscope\n" in metadata
    assert "\nRequires-Python: >=3.10\n" in metadata
    assert "\nLicense-Expression: Apache-2.0\n" in metadata
