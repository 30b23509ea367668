"""The YAML of manifests: parsed identically with and without libyaml."""

from __future__ import annotations

from typing import Any

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from inferometer.manifests.files import manifest_files
from inferometer.manifests.loader import InvalidYamlError, parse_yaml

pytestmark = pytest.mark.skipif(not yaml.__with_libyaml__, reason="PyYAML was built without libyaml")

PIECES = [
    *("name: Net\n", "version: 1.10\n", "version: 2\n", "inputs:\n", "  - type: image\n", "mean: [1, 2.5]\n"),
    *(
        "a: {b: 1, c}\n",
        "text: >-\n  two\n  lines\n",
        "text: |\n  as\n  it is\n",
        "? ",
        "- ",
        ": ",
        ", ",
        "#",
    ),
    *(" #", "!", "!!int ", "%", "%YAML 1.2\n", "---\n", "...\n", "'", '"', "\\", "\\x41", "[", "]", "{", "}"),
    *("&a ", "*a", "<<: ", "|2", ">+", "\t", "\r", "\x00", "\x7f", "\x85", "\u2028", "\ufeff", "é", "\ud800"),
    *(
        "~",
        "null",
        "yes",
        "0x1F",
        "1_0",
        "1e3",
        ".inf",
        "2020-01-01",
        "\n",
        "\n  ",
        " ",
        "`",
        "@",
        "=",
        "http://a/?b",
    ),
]


def read(text: str, *, libyaml: bool) -> tuple[str, str]:
    """What a text stands for, or why it is refused; ``repr``, as a number that is none is not itself."""
    try:
        return "read", repr(parse_yaml(text, libyaml=libyaml))
    except InvalidYamlError as error:
        return "refused", str(error)


@settings(max_examples=600, deadline=None)
@given(st.one_of(st.lists(st.sampled_from(PIECES), max_size=16).map("".join), st.text(max_size=30)))
def test_any_text_is_read_the_same_with_libyaml(text: str) -> None:
    answer, content = read(text, libyaml=False)
    assert read(text, libyaml=True) == (answer, content)
    assert answer == "read" or len(content.splitlines()) == 1


@pytest.mark.parametrize(
    "text",
    [
        "a: !\n",
        "a: 1\t\nb: 2\n",
        "[1?2]",
        "a: |#c\n",
        "a: b\n\ufeff\n",
        "a: [1, 2",
        "{a: 1, a: 2}",
        "a: &b 1\nc: *b\n",
    ],
)
def test_what_the_two_parsers_take_for_something_else_is_read_as_pyyaml_does(text: str) -> None:
    assert read(text, libyaml=True) == read(text, libyaml=False)


@pytest.mark.parametrize(
    ("text", "content"),
    [
        ("a: &x [1, 2]\nb: *x\n", {"a": [1, 2], "b": [1, 2]}),
        ("a: &x {k: 1, n: 2}\nb: {<<: *x, k: 3}\n", {"a": {"k": 1, "n": 2}, "b": {"k": 3, "n": 2}}),
        ("x: {y: &a {<<: &b {k: 0}, k: 1}}\nz: {<<: *a}\n", {"x": {"y": {"k": 1}}, "z": {"k": 1}}),
        ("a: &v 1.10\nversion: *v\n", {"a": 1.1, "version": "1.10"}),
    ],
)
def test_an_alias_stands_for_its_value(text: str, content: Any) -> None:
    assert [parse_yaml(text, libyaml=each) for each in (True, False)] == [content, content]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a: &a [*a]", "found the alias *a within its own value in"),
        ("a: &a {b: {c: *a}}", "found the alias *a within its own value in"),
        ("a: &a [x]\nb: [" + "*a," * 50_001 + "]", "aliases expand to more than 100,000 values"),
        ("a: &a " + "x" * 6400 + "\nb: [" + "*a," * 1000 + "]", "aliases expand to more than 100,000 values"),
        (
            "a0: &a0 {<<: {k: x}}\n"
            + "".join(f"a{n}: &a{n} {{<<: [{f'*a{n - 1},' * 10}]}}\n" for n in range(1, 20)),
            "aliases expand to more than 100,000 values",
        ),
    ],
    ids=["in a list", "in a mapping", "many", "long", "merged"],
)
def test_aliases_are_bounded(text: str, message: str) -> None:
    reasons = {read(text, libyaml=each) for each in (True, False)}
    [(answer, reason)] = reasons
    assert answer == "refused"
    assert message in reason


@pytest.mark.parametrize("opening", ["[", "{a: ", "- ", "? "])
def test_a_text_that_is_nested_too_deep_is_refused(opening: str) -> None:
    with pytest.raises(InvalidYamlError, match=r"^is nested too deep$"):
        parse_yaml(opening * 100_000)


@pytest.mark.timeout(60)
@pytest.mark.parametrize("unit", [">", "|", "a>"])
def test_the_time_to_read_a_text_does_not_grow_with_its_square(unit: str) -> None:
    with pytest.raises(InvalidYamlError):
        parse_yaml("a: >" + unit * 500_000)  # with the square, some ten minutes


def test_libyaml_reads_the_manifests_of_the_program(monkeypatch: pytest.MonkeyPatch) -> None:
    texts = [path.read_text(encoding="utf-8") for path in manifest_files([])]
    in_python = [parse_yaml(text, libyaml=False) for text in texts]

    def refused(*_: Any, **__: Any) -> None:
        raise AssertionError("parsed in Python")

    monkeypatch.setattr(yaml.scanner.Scanner, "fetch_more_tokens", refused)
    assert [parse_yaml(text) for text in texts] == in_python
