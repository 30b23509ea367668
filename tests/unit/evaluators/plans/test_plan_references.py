"""References between parameters."""

from __future__ import annotations

from typing import Any

import pytest

from inferometer.evaluators.plans.cells import is_constant, resolved, shown
from inferometer.manifests.errors import ConfigurationError


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("${number}", 16),
        ("${truth}", True),
        ("b${number}", "b16"),
        ("${number}x${half}", "16x0.5"),
        ("is ${truth}", "is true"),
        ("${list}", [1, "two"]),
        ("of ${list}", "of 1 two"),
        (["${list}", 3], [1, "two", 3]),
        ("${nothing}", None),
        ("a${nothing}", "a"),
        ("${indirect}", 16),
        ("${${which}}", 16),
        ("${${prefix}.${suffix}}", "deep"),
        ("$number $(1+1) {number}", "$number $(1+1) {number}"),
    ],
)
def test_a_reference_alone_keeps_the_type_and_one_in_a_text_is_written(text: Any, value: Any) -> None:
    values = {
        "number": 16,
        "truth": True,
        "half": 0.5,
        "list": [1, "two"],
        "nothing": None,
        "text": text,
        "indirect": "${${which}}",
        "which": "number",
        "prefix": "a.b",
        "suffix": "c",
        "a.b.c": "deep",
    }
    found = resolved(values, {})["text"]
    assert found == value
    assert type(found) is type(value)


def test_a_parameter_comes_before_an_environment_variable() -> None:
    environment = {"HOME": "/home/a", "model": "other"}
    values = {"model": "mine", "data_dir": "${HOME}/${model}"}
    assert resolved(values, environment)["data_dir"] == "/home/a/mine"


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"a": "${a}"}, "parameter a: its references lead back to itself: a → a"),
        (
            {"a": "x${b}", "b": "${c}", "c": ["${a}"]},
            "parameter a: its references lead back to itself: a → b → c → a",
        ),
        ({"a": "${${b}}", "b": "a"}, "parameter a: its references lead back to itself: a → a"),
        (
            {"batch_size": 1, "b": "${batch_siz}"},
            'parameter b: unknown reference "batch_siz"; did you mean "batch_size"?',
        ),
        ({"a": "${}"}, 'parameter a: unknown reference ""; known: a'),
        ({"a": "${b", "b": 1}, 'parameter a: a reference in "${b" is not closed; write ${NAME}'),
        ({"a": "${${b}", "b": 1}, 'parameter a: a reference in "${${b}" is not closed; write ${NAME}'),
    ],
)
def test_a_reference_that_cannot_be_replaced_is_one_clear_line(values: Any, message: str) -> None:
    with pytest.raises(ConfigurationError) as refusal:
        resolved(values, {})
    assert str(refusal.value) == message


def test_values_that_double_at_each_step_are_refused_instead_of_filling_the_memory() -> None:
    for pattern in ("${%s}${%s}", ["${%s}", "${%s}"]):
        values: dict[str, Any] = {"v0": "xy"}
        for number in range(1, 60):
            name = f"v{number - 1}"
            values[f"v{number}"] = (
                [each % name for each in pattern] if isinstance(pattern, list) else pattern % (name, name)
            )
        with pytest.raises(ConfigurationError, match="is longer than 100000 characters"):
            resolved(values, {})


def test_a_chain_that_is_too_deep_is_refused() -> None:
    chain = {f"v{number}": f"${{v{number + 1}}}" for number in range(5000)}
    with pytest.raises(
        ConfigurationError, match=r"^parameter v0: its references are deeper than 100 levels$"
    ):
        resolved(chain, {})


def test_constants_and_how_values_are_written() -> None:
    assert [is_constant(each) for each in (["a", 1], "$(a)", "$(a)$", None)] == [True, True, False, True]
    assert [is_constant(each) for each in ("a ${b}", [1, "${b}"])] == [False] * 2
    written: dict[str, Any] = {"true": True, "false": False, "": None, "1": 1, "0.5": 0.5, "1 b": [1, "b"]}
    assert [shown(value) for value in written.values()] == list(written)
