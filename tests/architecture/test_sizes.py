"""A file is one noun and a function does one thing: bounds that keep both so, and names that say what."""

from __future__ import annotations

import ast
import functools
from collections.abc import Iterator
from pathlib import Path

PACKAGES = ("agent", "client", "evaluators", "manifests", "protos")
FOLDERS = (*PACKAGES, "tests", "tools")
MOST_LINES_OF_A_FILE = 560
MOST_LINES_OF_A_TEST_FILE = 500  # one suite over one subject reads better whole
MOST_LINES_OF_A_FUNCTION = 80
USUAL_LINES_OF_A_FUNCTION = 40
NAMES_THAT_SAY_NOTHING = ("utils", "util", "common", "helpers", "helper", "manager", "handler", "misc")

# Files over the bound, each with its reason. There is none, and there should be none.
LONG_FILES: dict[str, str] = {}


def _files(root: Path, folders: tuple[str, ...]) -> Iterator[Path]:
    """The hand-written Python files and scripts."""
    for folder in folders:
        for path in sorted((root / folder).rglob("*")):
            if path.suffix in {".py", ".sh"} and "_pb2" not in path.name:
                yield path


@functools.cache
def _functions(path: Path) -> tuple[tuple[str, int], ...]:
    """The functions of a file, with their lines."""
    return tuple(
        (f"{path.name}:{node.lineno} {node.name}", (node.end_lineno or node.lineno) - node.lineno + 1)
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
    )


def test_the_sizes_are_measured_on_files_that_are_there(root: Path) -> None:
    for folder in FOLDERS:
        assert any(_files(root, (folder,))), folder
    assert dict(_functions(Path(__file__)))


def test_no_file_is_long(root: Path) -> None:
    lines = {
        str(path.relative_to(root)): len(path.read_text(encoding="utf-8").splitlines())
        for path in _files(root, FOLDERS)
    }

    bounds = {
        name: MOST_LINES_OF_A_TEST_FILE if name.startswith("tests/") else MOST_LINES_OF_A_FILE
        for name in lines
    }
    assert {name for name, count in lines.items() if count > bounds[name]} == set(LONG_FILES)


def test_no_function_is_long(root: Path) -> None:
    sizes = dict(
        function for path in _files(root, FOLDERS) if path.suffix == ".py" for function in _functions(path)
    )

    long = {name: lines for name, lines in sizes.items() if lines > MOST_LINES_OF_A_FUNCTION}
    assert not long


def test_most_functions_of_the_program_are_short(root: Path) -> None:
    sizes = [
        lines for path in _files(root, PACKAGES) if path.suffix == ".py" for _, lines in _functions(path)
    ]

    short = sum(lines <= USUAL_LINES_OF_A_FUNCTION for lines in sizes)
    assert short / len(sizes) >= 0.95, f"{len(sizes) - short} of {len(sizes)} functions are longer"


def test_every_module_has_a_name_that_says_what_it_owns(root: Path) -> None:
    empty = [
        str(path.relative_to(root))
        for path in _files(root, FOLDERS)
        if set(path.relative_to(root).with_suffix("").parts) & set(NAMES_THAT_SAY_NOTHING)
        or path.stem.rpartition("_")[2] in NAMES_THAT_SAY_NOTHING
    ]

    assert not empty


def test_every_module_says_at_its_top_what_it_owns(root: Path) -> None:
    silent = [
        str(path.relative_to(root))
        for path in _files(root, PACKAGES)
        if path.suffix == ".py" and not ast.get_docstring(ast.parse(path.read_text(encoding="utf-8")))
    ]

    assert not silent


def test_the_base_names_of_test_files_are_unique(root: Path) -> None:
    names = [path.name for path in _files(root, ("tests",)) if path.name.startswith("test_")]

    assert sorted(names) == sorted(set(names))
