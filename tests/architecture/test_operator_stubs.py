"""Type checkers and editors see the benchmark classes that there are."""

from __future__ import annotations

from tools.operator_stubs import FOLDER, MEND, stubs


def test_the_stubs_of_the_benchmark_classes_are_what_the_table_gives() -> None:
    committed = {path: path.read_text(encoding="utf-8") for path in FOLDER.rglob("*.pyi")}

    assert len(committed) == 8
    assert committed == stubs(), f"the stubs of inferometer/operators are out of date; {MEND}"
