"""The wheel holds ``inferometer`` alone, and runs beside a user's own ``agent.py`` and ``client.py``."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

PACKAGES = ("agent", "client", "evaluators", "manifests", "protos")
WEIGHTS = {".pt", ".params", ".onnx"}
MOST_BYTES_OF_WEIGHTS = 4_000_000

_LOAD_EVERYTHING = """
from inferometer import manifests
from pathlib import Path
from inferometer.agent.artifacts.files import resolve_artifacts, with_labels
from inferometer.agent.artifacts.locations import Availability, availability, labels_file
from inferometer.evaluators.datasets.opening import open_dataset
from inferometer.manifests.catalog import Catalog
catalog = Catalog()
assert not catalog.problems, catalog.problems
for model in catalog.models:
    resolve_artifacts(model, weights=not model.model.base_url)
    labels = with_labels(model).output.parameters.labels
    print(model.name, model.framework.name, len(labels))
for dataset in catalog.datasets:
    print(dataset.name, dataset.obtain or len(open_dataset(dataset)))
print(manifests.__file__)
"""

_IMPORT_EVERYTHING = """
import importlib, pkgutil
import inferometer
for module in pkgutil.walk_packages(inferometer.__path__, "inferometer."):
    if not module.name.startswith(("inferometer.agent.frameworks.", "inferometer.agent.architectures.")):
        importlib.import_module(module.name)
print(inferometer.__file__)
"""


def _build(root: Path, folder: Path, *arguments: str) -> Path:
    """Builds the checkout without a network, and returns the wheel."""
    command = [
        sys.executable,
        "-m",
        "build",
        *arguments,
        "--no-isolation",
        "--outdir",
        str(folder),
        str(root),
    ]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stdout + done.stderr
    (built,) = folder.glob("*.whl")
    return built


@pytest.fixture(scope="session")
def wheel(root: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel, built from the source distribution, which is built from the checkout."""
    return _build(root, tmp_path_factory.mktemp("wheel"))


@pytest.fixture(scope="session")
def wheel_of_checkout(root: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel, built from the checkout itself."""
    return _build(root, tmp_path_factory.mktemp("checkout"), "--wheel")


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


@pytest.fixture
def hostile(tmp_path: Path) -> Path:
    """A user's folder with modules named like the program's folders; each raises when it is imported."""
    for name in ("agent.py", "client.py", "evaluators/__init__.py", "manifests/__init__.py", "protos.py"):
        module = tmp_path / name
        module.parent.mkdir(exist_ok=True)
        module.write_text(f"raise AssertionError('the {name} of the user is imported')\n")
    return tmp_path


def _run_installed(installed: Path, *command: str, folder: Path | None = None) -> str:
    """Runs a command that finds the program in ``installed``.

    Args:
        installed: Where the wheel is installed; found before the environment's own packages.
        command: The command.
        folder: Where it runs, and what is searched for modules before all else; None for an empty one.
    """
    kept = {name: value for name, value in os.environ.items() if not name.startswith("AGENT_")}
    search = os.pathsep.join(map(str, [*filter(None, [folder]), installed]))
    own = {"PYTHONPATH": search, "AGENT_DATA_DIR": str((folder or installed) / "data")}
    done = subprocess.run(
        command, cwd=folder or installed.parent, env=kept | own, capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_the_wheel_holds_every_file_of_the_packages_and_no_other(root: Path, sizes: dict[str, int]) -> None:
    expected = {
        f"inferometer/{path.relative_to(folder)}"
        for folder in (root, root / "inferometer")
        for package in (PACKAGES if folder == root else ("operators",))
        for path in (folder / package).rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    } | {"inferometer/__init__.py", "inferometer/py.typed"}

    assert set(sizes) == expected


@pytest.mark.parametrize("package", PACKAGES)
def test_every_package_says_that_it_is_typed(sizes: dict[str, int], package: str) -> None:
    assert f"inferometer/{package}/py.typed" in sizes


@pytest.mark.parametrize("suffix", [".yml", ".zip", ".proto", ".pyi", *sorted(WEIGHTS)])
def test_data_are_shipped(sizes: dict[str, int], suffix: str) -> None:
    assert any(name.endswith(suffix) for name in sizes)


def test_the_shipped_weights_are_at_most_four_megabytes(sizes: dict[str, int]) -> None:
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


def test_the_wheel_of_the_checkout_is_that_of_the_source_distribution(
    wheel: Path, wheel_of_checkout: Path
) -> None:
    def contents(path: Path) -> dict[str, int]:
        with zipfile.ZipFile(path) as archive:
            return {file.filename: file.CRC for file in archive.infolist()}

    assert contents(wheel) == contents(wheel_of_checkout)


def test_it_evaluates_beside_a_users_modules_of_the_same_names(installed: Path, hostile: Path) -> None:
    command = [
        str(installed / "bin" / "agent"),
        "predict",
        "dataset",
        "--num_file_parts=-1",
        "--model_name=DigitsCNN",
    ]
    printed = _run_installed(installed, *command, "--framework_name=ONNXRuntime", folder=hostile)

    assert re.search(r"^top-1 +0\.9933 \[0\.9806, 0\.9977\]  \(447 of 450 inputs\)", printed, re.MULTILINE), (
        printed
    )


def test_every_module_is_imported_beside_a_users_modules_of_the_same_names(
    installed: Path, hostile: Path
) -> None:
    source = _run_installed(installed, sys.executable, "-c", _IMPORT_EVERYTHING, folder=hostile).strip()

    assert Path(source).is_relative_to(installed)


def test_the_metadata_ask_for_the_python_that_the_linter_is_set_to(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        (name,) = (n for n in archive.namelist() if n.endswith(".dist-info/METADATA"))
        metadata = archive.read(name).decode()

    assert "\nName: inferometer\n" in metadata
    assert "\nRequires-Python: >=3.10\n" in metadata
    assert "\nLicense-Expression: Apache-2.0\n" in metadata
