"""The tree of errors matches its drawing, and every class has an exit code."""

from __future__ import annotations

import inspect
import re

import pytest

from inferometer.client.cli.output import EXIT_CODES, INTERRUPTED, exit_code
from inferometer.manifests import errors
from inferometer.manifests.errors import InferometerError

CLASSES = {
    name: value
    for name, value in inspect.getmembers(errors, inspect.isclass)
    if issubclass(value, InferometerError)
}


def _drawn_bases() -> dict[str, str]:
    """The base of each class as the tree in the module's docstring draws it."""
    bases: dict[str, str] = {}
    path = ["InferometerError"]
    for line in (errors.__doc__ or "").splitlines():
        if not (match := re.match(r"^([│ ]*)[├└]── (\w+)", line)):
            continue
        depth = len(match[1]) // 4
        assert depth < len(path), f"{match[2]} hangs on nothing"
        del path[depth + 1 :]
        assert match[2] not in bases, f"{match[2]} is drawn twice"
        bases[match[2]] = path[depth]
        path.append(match[2])
    return bases


def test_the_tree_is_drawn_as_it_is() -> None:
    real = {
        name: kind.__bases__[0].__name__ for name, kind in CLASSES.items() if kind is not InferometerError
    }

    assert _drawn_bases() == real


def test_every_error_is_an_exception_with_one_base() -> None:
    assert all(len(kind.__bases__) == 1 for kind in CLASSES.values())
    assert InferometerError.__bases__ == (Exception,)


@pytest.mark.parametrize("kind", CLASSES.values(), ids=CLASSES)
def test_every_error_says_what_it_is(kind: type[InferometerError]) -> None:
    assert "__doc__" in vars(kind)
    assert inspect.getdoc(kind)


@pytest.mark.parametrize(
    "kind",
    [kind for kind in CLASSES.values() if kind is not InferometerError],
    ids=lambda kind: kind.__name__,
)
def test_every_error_has_an_exit_code_of_its_own_kind(kind: type[InferometerError]) -> None:
    listed = [EXIT_CODES[base] for base in kind.__mro__ if base in EXIT_CODES]

    assert listed, f"{kind.__name__} and its bases are missing from inferometer.client.cli.output"
    assert exit_code(kind("message")) == listed[0]


def test_exit_codes_are_neither_success_nor_those_of_the_shell() -> None:
    assert all(0 < code < 126 or code == INTERRUPTED for code in EXIT_CODES.values())


def test_wrong_usage_has_the_code_that_click_gives_it() -> None:
    assert EXIT_CODES[errors.ConfigurationError] == 2
    assert all(
        exit_code(kind("x")) == 2 for kind in CLASSES.values() if issubclass(kind, errors.NotFoundError)
    )


def test_no_exit_code_is_given_to_a_class_outside_the_tree() -> None:
    assert set(EXIT_CODES) <= set(CLASSES.values())


def test_an_unknown_error_has_the_code_of_a_failure() -> None:
    assert exit_code(InferometerError("message")) == 1
