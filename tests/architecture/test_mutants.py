"""What `make mutants` breaks is there, and so are the tests that must find it."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

from tools.mutants import MUTANTS, Mutant, broken_text


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.name)
def test_each_fault_is_one_and_no_error_of_syntax(root: Path, mutant: Mutant) -> None:
    text = broken_text(mutant, root)

    assert ast.dump(ast.parse(text)) != ast.dump(ast.parse((root / mutant.path).read_text(encoding="utf-8")))


def test_a_line_that_has_moved_is_named(root: Path) -> None:
    moved = Mutant("p99 is p50", "evaluators/statistics.py", "percentile(", "", ())

    with pytest.raises(ValueError, match=r"^p99 is p50: evaluators/statistics.py has this \d times"):
        broken_text(moved, root)
