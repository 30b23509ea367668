"""What may import what: the contracts of pyproject.toml, and what really is loaded."""

from __future__ import annotations

import subprocess
from collections.abc import Callable, Iterable
from pathlib import Path

import pytest

FRAMEWORKS = ("torch", "mxnet", "onnxruntime")
HEAVY = (*FRAMEWORKS, "grpc", "google.protobuf", "pymongo", "neosqlite", "pydantic", "numpy", "matplotlib")

_IMPORT_ALL = """
import importlib, pkgutil
for package in {packages!r}:
    for module in pkgutil.walk_packages(importlib.import_module(package).__path__, package + "."):
        if not module.name.startswith({left_out!r}):
            importlib.import_module(module.name)
"""
_HELP = """
import contextlib, io
from client.main import run
with contextlib.redirect_stdout(io.StringIO()) as text:
    assert run({args!r}) == 0
assert text.getvalue().startswith("Usage: agent"), text.getvalue()
"""

LoadedBy = Callable[[str, Iterable[str]], list[str]]


def test_the_import_contracts_hold(root: Path, bin_directory: Path) -> None:
    done = subprocess.run(
        [bin_directory / "lint-imports", "--no-cache"], cwd=root, capture_output=True, text=True, timeout=120
    )

    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("args", [["--help"], ["predict", "--help"], ["info", "--help"]], ids=" ".join)
def test_help_loads_nothing_heavy(loaded_by: LoadedBy, args: list[str]) -> None:
    assert loaded_by(_HELP.format(args=args), HEAVY) == []


def test_only_a_predictor_loads_its_framework(loaded_by: LoadedBy) -> None:
    code = _IMPORT_ALL.format(
        packages=("agent", "client", "evaluators", "manifests", "protos"),
        left_out=("agent.frameworks.", "agent.models."),
    )

    assert loaded_by(code, (*FRAMEWORKS, "numpy")) == ["numpy"]


@pytest.mark.parametrize(
    ("package", "left_out"),
    [
        ("manifests", ()),
        ("evaluators", ()),
        ("agent", ("agent.frameworks.", "agent.models.", "agent.server.")),
    ],
)
def test_only_the_server_and_the_remote_client_load_grpc(
    loaded_by: LoadedBy, package: str, left_out: tuple[str, ...]
) -> None:
    code = _IMPORT_ALL.format(packages=(package,), left_out=left_out)

    assert loaded_by(code, ("grpc", "google.protobuf", package)) == [package]


def test_manifests_load_no_database_and_no_command_line(loaded_by: LoadedBy) -> None:
    code = _IMPORT_ALL.format(packages=("manifests",), left_out=())

    assert loaded_by(code, ("pymongo", "neosqlite", "click", "rich", "pydantic")) == ["pydantic"]


def test_looking_up_frameworks_and_models_loads_no_framework(loaded_by: LoadedBy) -> None:
    code = """
from agent.registry import Registry
from manifests.catalog import Catalog
assert Registry.discover().versions
assert Catalog().models
"""

    assert loaded_by(code, FRAMEWORKS) == []


def test_looking_for_files_loads_nothing_that_downloads(loaded_by: LoadedBy) -> None:
    code = """
from pathlib import Path
from agent.file_locations import availability
from manifests.catalog import Catalog
assert [availability(model, Path("cache")) for model in Catalog().models]
"""

    assert loaded_by(code, ("urllib3", "filelock", "requests", "numpy", *FRAMEWORKS)) == []


@pytest.mark.parametrize(
    ("arguments", "expected"), [([], []), (["--plot", "{folder}/latency.png"], ["matplotlib"])]
)
def test_only_a_picture_loads_matplotlib_and_no_display(
    loaded_by: LoadedBy, tmp_path: Path, arguments: list[str], expected: list[str]
) -> None:
    given = [argument.format(folder=tmp_path) for argument in arguments]
    code = f"""
import os
os.environ.update(AGENT_DATA_DIR={str(tmp_path)!r}, XDG_CONFIG_HOME={str(tmp_path)!r})
from client.main import run
assert run(["info", "evaluation", "latency", *{given!r}]) == 0
"""

    assert loaded_by(code, ("matplotlib", "matplotlib.pyplot", "tkinter")) == expected
