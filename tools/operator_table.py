"""Generator of the tables in docs/operators.md, of operators, and in docs/operators-classes.md, of classes.

The first shows how each framework runs each operator, or why it does not. It imports all frameworks.

python -m tools.operator_table            write the tables
python -m tools.operator_table --check    fail if a page is out of date
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

from inferometer.agent.inference.registry import Registry
from inferometer.agent.operators.operator import Category, Operator, operators
from inferometer.client.api.operators.table import BENCHMARKS
from inferometer.evaluators.kinds.operators.request import Coverage, coverage_of, frameworks_with_operators

PAGE = Path(__file__).resolve().parents[1] / "docs" / "operators.md"
CLASSES_PAGE = PAGE.with_name("operators-classes.md")
MEND = "run: make docs"
_BEGIN = "<!-- The table is generated from the operators; do not edit. To regenerate it, run: make docs -->\n"
_END = "<!-- end of the table -->\n"


def page() -> str:
    """Returns the page with an up-to-date table of operators."""
    return _filled(PAGE, _table())


def classes_page() -> str:
    """Returns the page with an up-to-date table of classes."""
    return _filled(CLASSES_PAGE, _classes())


def _filled(path: Path, lines: Iterator[str]) -> str:
    before, _, rest = path.read_text(encoding="utf-8").partition(_BEGIN)
    _, end, after = rest.partition(_END)
    if not end:
        raise ValueError(f"{path.name} has no place for the table")
    return f"{before}{_BEGIN}\n{''.join(lines)}\n{_END}{after}"


def _classes() -> Iterator[str]:
    yield "| class | operator | what is measured | function that runs its group |\n|---|---|---|---|\n"
    for place, definitions in BENCHMARKS.items():
        module, _, function = place.rpartition(".")
        for each in definitions:
            name = f"{module.removeprefix('mxnet.')}.{each.name}"
            yield f"| `{name}` | `{each.operator}` | {each.summary} | `{function}` |\n"


def _table() -> Iterator[str]:
    every = list(operators().values())
    found = [coverage_of(entry, every) for entry in frameworks_with_operators(Registry())]
    absent = [coverage.framework for coverage in found if coverage.version is None]
    if absent:
        raise ValueError(f"the table covers all frameworks, but {', '.join(absent)} is not installed")
    yield _counts(every, found)
    for category in Category:
        of_one = [each for each in every if each.category is category]
        if of_one:
            yield f"\n### {category.value.replace('_', ' ').capitalize()}\n\n"
            yield f"| operator | {' | '.join(coverage.framework for coverage in found)} |\n"
            yield f"|---|{'---|' * len(found)}\n"
            yield from (_row(each, found) for each in of_one)


def _counts(every: Sequence[Operator], found: Sequence[Coverage]) -> str:
    covered = (f"{sum(map(bool, each.forms.values()))} in {each.framework}" for each in found)
    return f"{len(every)} operators: {', '.join(covered)}.\n"


def _row(operator: Operator, found: Sequence[Coverage]) -> str:
    cells = [f"`{operator.name}`", *(_cell(coverage, operator.name) for coverage in found)]
    return f"| {' | '.join(cells)} |\n"


def _cell(coverage: Coverage, name: str) -> str:
    forms = coverage.forms[name]
    text = ", ".join(forms) if forms else f"– {coverage.reasons[name]}"
    return " ".join(text.split()).replace("|", "\\|")


def main() -> None:
    """Writes or checks the pages."""
    parser = argparse.ArgumentParser(description="Write the tables of operators and of classes in docs.")
    parser.add_argument("--check", action="store_true", help="change nothing; fail if a page is out of date")
    checks = parser.parse_args().check
    for path, fresh in ((PAGE, page()), (CLASSES_PAGE, classes_page())):
        if not checks:
            path.write_text(fresh, encoding="utf-8")
        elif path.read_text(encoding="utf-8") != fresh:
            sys.exit(f"{path.name} is out of date; {MEND}")


if __name__ == "__main__":
    main()
