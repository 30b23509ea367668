"""The expressions of plans: equal to Python's where they are allowed, and refused in one line elsewhere."""

from __future__ import annotations

import os
import re
import warnings
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from inferometer.evaluators.plans.cells import cells_of
from inferometer.evaluators.plans.expressions import evaluated, has_expression, why_not_evaluated
from inferometer.evaluators.plans.plan import plan_of
from inferometer.manifests.errors import ConfigurationError

EQUAL = [
    *("10 * 50", "10 - 7 // 2 + 9 % 4", "-3 / 4", "1 < 2 <= 2", "1 < 2 > 5", "not 0 or 1 and 'a'"),
    *("'gpu' if 2 > 0 else 'cpu'", "'a' in ('a', 'b')", "'a' not in ['b']", "True is True", "1 is not True"),
    *("len(re.sub('[:,]', ' ', '0,1:2').split())", "'0,1'.replace(',', '.')", "'A/b'.lower().split('/')[0]"),
    *("'file:///x'[7:] if 'file:///x'.startswith('file://') else ''", "'%s:/w %d' % ('x', 3)", "'abc'[::-1]"),
    *("'m/{}.xml'.format('a')", "'{1}{0}'.format('a', 'b')", "[1, 'a'][1]", "' :a: '.strip(' :')"),
    *("os.path.basename('/a/b.c')", "os.path.splitext('/a/b.c')[0]", "os.path.dirname('/a/b')", "2 * 1.5"),
    *("'m.onnx'.endswith(('.onnx', '.pt'))", "max(1, 2.5) + min(3, 4) + int('7') + float('1e3')", "str(1.5)"),
    *("0 > 1 > 1 / 0", "()", "('a', 1)", "''", "None", r"'\$PATH'.strip(':')", "0 and 1 / 0", "1 or 1 / 0"),
    *("1 if 2 else 1 / 0", "1 / 0 if 0 else 2", "1 is True", r"re.sub('[ab]', r'\\g<0>.', 'abc')"),
]


@pytest.mark.parametrize("text", EQUAL)
def test_an_expression_has_the_value_of_python(text: str) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        value = eval(text, {"re": re, "os": os})
    assert evaluated(f"$({text})$") == (value if not isinstance(value, list | tuple) else str(value))
    assert evaluated(f"a$({text})$b$('c')$") == f"a{value}bc"
    assert why_not_evaluated(f"$({text})$") == ""


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("__import__('os').system('ls')", "__import__('os').system is not among the functions"),
        ("open('/etc/passwd')", "open is not among the functions"),
        ("uuid.uuid4().__str__()", "uuid.uuid4().__str__ is not among the functions"),
        ("eval('1')", "eval is not among"),
        ("''.__class__", "\"''.__class__\" is Python that a plan's expressions do not support"),
        ("'a'.lower", "is Python that"),
        ("[x for x in 'a']", "is Python that"),
        ("lambda: 1", "is Python that"),
        ("f'{1}'", "is Python that"),
        ("len(*['a'])", "is Python that"),
        ("(a := 1)", "is Python that"),
        ("str(object='a')", "str is not among the functions"),
        ("sys", "is Python that"),
        ("1j", "is Python that"),
        ("b'a'", "is Python that"),
        ("...", "is Python that"),
        ("9 ** 9", "Pow is not among the operators of a plan's expressions"),
        ("1 << 9", "LShift is not among the operators"),
        ("{1: 2}['a']", "is Python that"),
        ("1 if", "is not an expression"),
        ("1; 2", "is not an expression"),
        ("", "is not an expression"),
        ("\0", "is not an expression"),
        ("(" * 5000 + "1" + ")" * 4999, "is longer than 10000"),
        ("(" * 2000 + "1" + ")" * 2000, "is not an expression"),
        ("-" * 9000 + "1", "not"),
        ("+".join("1" * 300), "has more than 200 parts"),
    ],
)
def test_what_plans_do_not_evaluate_is_refused_before_it_is(text: str, message: str) -> None:
    reason = why_not_evaluated(f"$({text})$")
    assert message in reason or len(text) > 8000
    with pytest.raises(ValueError, match=re.escape(reason)):
        evaluated(f"$({text})$")
    assert len(reason.splitlines()) == 1
    assert len(reason) < 300


@pytest.mark.parametrize(
    "text",
    [
        *("1 / 0", "'a' < 1", "'a'[5]", "(1).lower()", "(1).replace('a', 'b')", "int('a')", "'a' + 1"),
        *("'a' * 10", "9 * ['a']", "(1,) * 9", "int('9' * 9999)", "*".join(["9" * 90] * 12), "'a'.split('')"),
        *("'%999999999d' % 1", "'{:>99999999}'.format(1)", "'{0.__class__}'.format(1)", "'%(a)s' % 1"),
        *("re.sub('(a+)+$', '', 'a')", r"re.sub('a', '\\1', 'a')", "re.sub('a', 1, 'a')", "len()", "min(1)"),
        "re.sub('[b-a]', '', 'a')",
        *(f"'{'a' * 4000}'.replace('', '{'b' * 4000}')", f"'{'{0}' * 1000}'.format('{'a' * 5000}')"),
        *(
            f"'{'%s' * 90}' % ('{'a' * 5000}',)",
            "'" + "a" * 6000 + "'.upper() + '" + "a" * 3000 + "' + str(10) * 2",
        ),
        *("'a'[::0]", "len(1)"),
    ],
)
def test_what_has_no_value_or_a_large_one_is_refused_in_one_line(text: str) -> None:
    assert why_not_evaluated(f"$({text})$") == ""
    with pytest.raises(ValueError, match='" cannot be evaluated: ') as refusal:
        evaluated(f"$({text})$")
    assert len(str(refusal.value).splitlines()) == 1


@pytest.mark.parametrize(
    "text", ["'%99d' % 1", "'%.99f' % 1", "'%c' % 1", "'{:>99}'.format(1)", "'{0.a}'.format(1)"]
)
def test_a_text_to_fill_in_has_no_widths_and_no_attributes(text: str) -> None:
    with pytest.raises(ValueError, match="a format string can contain only the fields"):
        evaluated(f"$({text})$")


WORDS = st.sampled_from(
    [
        *("1", "'a'", "2.5", "()", "[", "]", "(", ")", "+", "*", "**", "%", "/", "<", "==", " in ", " is "),
        *(" not ", " and ", " if ", " else ", ",", ".lower()", ".format", "len", "str", "re.sub", "True"),
        *(":", "'%s{}'", "'{!r}'", "x", "\n", "#", ".split()", "99999", "-"),
    ]
)


@settings(max_examples=300, deadline=None)
@given(st.lists(WORDS, max_size=14).map("".join))
def test_any_text_has_a_value_or_a_reason(text: str) -> None:
    value, reason = None, ""
    try:
        value = evaluated(f"$({text})$")
    except ValueError as error:
        reason = str(error)
    assert value is None or isinstance(value, bool | int | float | str)
    assert reason or why_not_evaluated(f"$({text})$") == ""
    assert len(reason.splitlines()) <= 1


@pytest.mark.timeout(10)
@pytest.mark.parametrize("text", ["$(" * 200_000, "$(1)$" + "$(" * 200_000, "$(" + "1" * 500_000 + ")$"])
def test_the_time_to_find_expressions_does_not_grow_with_the_square(text: str) -> None:
    assert has_expression(text) is (")$" in text)
    assert why_not_evaluated(text) or evaluated(text) == text.replace("$(1)$", "1")


@pytest.mark.timeout(10)
def test_a_nested_comparison_is_evaluated_once() -> None:
    text = "1"
    for _ in range(30):
        text = f"(0 < {text} < 2)"
    assert evaluated(f"$({text})$") is True


def cells(**content: Any) -> list[dict[str, Any]]:
    plan = plan_of({"name": "plan", "command": "bench training", **content}, "plan")
    return [dict(each.parameters) for each in cells_of(plan, {"HOME": "/home"})]


def test_expressions_are_evaluated_after_references_in_each_cell() -> None:
    parameters = {
        "own.name": "$('${own.${model}}'.upper())$",
        "own.vgg": "big",
        "own.many": {"val": "$(${batch_size} * 2)$", "type": "int"},
        "own.on": True,
        "own.text": "${own.on} $('yes' if ${own.on} is True else 'no')$ $(len('${HOME}'))$ $5 $(ls)",
        "own.quoted": "$('${own.on}')$",
        "words": ["$(${batch_size} + 1)$", "b"],
        "model": "vgg",
    }
    found = cells(parameters=parameters, variables={"batch_size": [8, 16]})
    assert [(each["own.many"], each["words"]) for each in found] == [(16, [9, "b"]), (32, [17, "b"])]
    assert found[0]["own.quoted"] == "True"
    assert (found[0]["own.name"], found[0]["own.text"]) == ("BIG", "true yes 5 $5 $(ls)")


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ({"parameters": {"a": "$(1 / ${b})$", "b": 0}}, 'parameter a: "1 / 0" cannot be evaluated: division'),
        ({"parameters": {"a": "$(open('${b}'))$", "b": "x"}}, "parameter a: open is not among the functions"),
        (
            {"parameters": {"a": "$('x')$"}, "extensions": [{"condition": {"a": "x"}}]},
            "the condition on a cannot be decided: ",
        ),
    ],
)
def test_an_expression_that_fails_names_its_parameter(content: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigurationError) as refusal:
        cells(**content)
    assert str(refusal.value).startswith(message)
