"""Import rules: the contracts of pyproject.toml, and the modules that are really loaded."""

from __future__ import annotations

import ast
import re
import subprocess
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

import pytest

PACKAGES = ("agent", "client", "evaluators", "manifests", "protos")
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
from inferometer.client.cli.main import run
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


def test_the_linter_refuses_the_bare_names(root: Path, bin_directory: Path) -> None:
    lines = [f"import {name}\nfrom {name} import part\nfrom {name}.part import other\n" for name in PACKAGES]
    command = [bin_directory / "ruff", "check", "--select=TID251", "--output-format=concise", "-"]
    done = subprocess.run(
        [*command, "--stdin-filename", "client/example.py"],
        cwd=root,
        input="".join(lines),
        capture_output=True,
        text=True,
        timeout=60,
    )

    refused = re.findall(r"TID251 `(\w+)", done.stdout)
    assert refused == [name for name in PACKAGES for _ in range(3)]


def test_no_module_is_imported_by_a_bare_name(root: Path) -> None:
    bare = [
        f"{path.relative_to(root)}:{line}: {name}"
        for folder in (*PACKAGES, "inferometer", "tests", "tools")
        for path in sorted((root / folder).rglob("*.py"))
        for line, name in _imported(path)
        if name.partition(".")[0] in PACKAGES
    ]

    assert not bare


def _imported(path: Path) -> Iterator[tuple[int, str]]:
    """What a module imports, and the modules that it names in texts such as ``"module:Class"``."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield node.lineno, node.module or "."
        elif isinstance(node, ast.Constant) and re.fullmatch(r"\w+(\.\w+)+:\w+", str(node.value)):
            yield node.lineno, str(node.value)


def test_the_public_package_loads_nothing_until_a_name_is_used(loaded_by: LoadedBy) -> None:
    folders = [f"inferometer.{folder}" for folder in PACKAGES]
    code = "import inferometer; assert {'Predictor', 'Dataset', 'Report'} <= set(dir(inferometer))"

    assert loaded_by(code, (*HEAVY, "click", "rich", *folders)) == []


def test_a_public_name_loads_no_framework_no_grpc_and_no_database(loaded_by: LoadedBy) -> None:
    code = "import inferometer; assert [getattr(inferometer, name) for name in inferometer.__all__]"

    assert loaded_by(code, HEAVY) == ["pydantic", "numpy"]


@pytest.mark.parametrize("args", [["--help"], ["predict", "--help"], ["info", "--help"]], ids=" ".join)
def test_help_loads_nothing_heavy(loaded_by: LoadedBy, args: list[str]) -> None:
    assert loaded_by(_HELP.format(args=args), HEAVY) == []


def test_only_a_predictor_loads_its_framework(loaded_by: LoadedBy) -> None:
    code = _IMPORT_ALL.format(
        packages=("inferometer",),
        left_out=("inferometer.agent.frameworks.", "inferometer.agent.architectures."),
    )

    assert loaded_by(code, (*FRAMEWORKS, "numpy")) == ["numpy"]


@pytest.mark.parametrize(
    ("package", "left_out"),
    [
        ("inferometer.manifests", ()),
        ("inferometer.evaluators", ()),
        ("inferometer.client.api", ()),
        ("inferometer.client.evaluating", ()),
        (
            "inferometer.agent",
            (
                "inferometer.agent.frameworks.",
                "inferometer.agent.architectures.",
                "inferometer.agent.server.",
                "inferometer.agent.protocol.",
                "inferometer.agent.open_inference.",
            ),
        ),
    ],
)
def test_only_the_server_and_the_remote_client_load_grpc(
    loaded_by: LoadedBy, package: str, left_out: tuple[str, ...]
) -> None:
    code = _IMPORT_ALL.format(packages=(package,), left_out=left_out)

    assert loaded_by(code, ("grpc", "google.protobuf", package)) == [package]


def test_manifests_load_no_database_and_no_command_line(loaded_by: LoadedBy) -> None:
    code = _IMPORT_ALL.format(packages=("inferometer.manifests",), left_out=())

    assert loaded_by(code, ("pymongo", "neosqlite", "click", "rich", "pydantic")) == ["pydantic"]


def test_looking_up_frameworks_and_models_loads_no_framework(loaded_by: LoadedBy) -> None:
    code = """
from inferometer.agent.inference.registry import Registry
from inferometer.manifests.catalog import Catalog
assert Registry.discover().versions
assert Catalog().models
"""

    assert loaded_by(code, FRAMEWORKS) == []


def test_the_process_of_a_planned_run_loads_nothing_that_measures(loaded_by: LoadedBy) -> None:
    code = "import inferometer.evaluators.plans.running.run_process"

    assert loaded_by(code, ("inferometer.agent.training", "urllib3", "numpy", *FRAMEWORKS)) == []


def test_looking_for_files_loads_nothing_that_downloads(loaded_by: LoadedBy) -> None:
    code = """
from pathlib import Path
from inferometer.agent.artifacts.locations import availability
from inferometer.manifests.catalog import Catalog
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
from inferometer.client.cli.main import run
assert run(["info", "evaluation", "latency", *{given!r}]) == 0
"""

    assert loaded_by(code, ("matplotlib", "matplotlib.pyplot", "tkinter")) == expected
