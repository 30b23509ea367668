"""Methods without a docstring are those that a base class, or the class of the contract, documents."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

CONTRACTS = {
    "agent/frameworks/**": ("Predictor", "Trainer", "Profiler", "OperatorRunner", "LanguageModel"),
    "evaluators/kinds/*/kind.py": ("Kind",),
    "evaluators/kinds/{reports,*/plot,*/report}.py": ("Report", "Plot"),
    "evaluators/tasks/*.py": ("TaskMetric",),
}
"""The files in which the linter asks for no docstrings of methods, and the classes that document them."""
SOURCES = ("agent", "client", "evaluators", "manifests")


@pytest.fixture(scope="module")
def classes(root: Path) -> Mapping[str, list[ast.ClassDef]]:
    """All classes of the source by their names."""
    found: dict[str, list[ast.ClassDef]] = {}
    for path in (path for folder in SOURCES for path in sorted((root / folder).rglob("*.py"))):
        for each in classes_of(path):
            found.setdefault(each.name, []).append(each)
    return found


def classes_of(path: Path) -> Iterator[ast.ClassDef]:
    tree = ast.parse(path.read_text(encoding="utf-8"))
    return (each for each in ast.walk(tree) if isinstance(each, ast.ClassDef))


def methods_of(of: ast.ClassDef, *, documented: bool) -> set[str]:
    """The names of its public methods that have a docstring, or that have none."""
    methods = [each for each in of.body if isinstance(each, ast.FunctionDef | ast.AsyncFunctionDef)]
    return {
        each.name
        for each in methods
        if not each.name.startswith("_") and (ast.get_docstring(each) is not None) is documented
    }


def explained_in(name: str, classes: Mapping[str, list[ast.ClassDef]]) -> set[str]:
    """The methods that a class or one of its bases documents."""
    found = set[str]()
    for each in classes.get(name, ()):
        found |= methods_of(each, documented=True)
        for base in each.bases:
            named = base.value if isinstance(base, ast.Subscript) else base
            found |= explained_in(
                named.attr if isinstance(named, ast.Attribute) else ast.unparse(named), classes
            )
    return found


def is_of_others(of: ast.ClassDef) -> bool:
    """Whether it is a protocol, whose docstring tells what has these methods, or a class that MXNet calls."""
    bases = [ast.unparse(each) for each in of.bases]
    return bases == ["Protocol"] or any(each.startswith("mxnet.") for each in bases)


def files_of(pattern: str, root: Path) -> list[Path]:
    braces = re.search(r"{(.*)}", pattern)
    patterns = [pattern.replace(braces[0], each) for each in braces[1].split(",")] if braces else [pattern]
    ends = [f"{each[:-2]}**/*.py" if each.endswith("/**") else each for each in patterns]
    return [path for each in ends for path in root.glob(each)]


@pytest.mark.parametrize("pattern", CONTRACTS)
def test_a_method_without_a_docstring_is_explained_by_its_contract(
    pattern: str, root: Path, classes: Mapping[str, list[ast.ClassDef]]
) -> None:
    shared = {method for name in CONTRACTS[pattern] for method in explained_in(name, classes)}
    assert shared
    assert files_of(pattern, root)
    unexplained = [
        f"{path.relative_to(root)}: {each.name}.{method}"
        for path in files_of(pattern, root)
        for each in classes_of(path)
        if not each.name.startswith("_") and not is_of_others(each)
        for method in methods_of(each, documented=False) - explained_in(each.name, classes) - shared
    ]
    assert not unexplained


def test_the_linter_leaves_out_the_methods_of_these_files_only(root: Path) -> None:
    lines = (root / "pyproject.toml").read_text(encoding="utf-8").splitlines()
    left_out = [line.split('"')[1] for line in lines if '"D102"' in line]
    assert set(left_out) == set(CONTRACTS)
