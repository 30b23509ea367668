"""Version constraints: semver notation for versions of Python packages."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from inferometer.manifests.versions import Constraint, InvalidConstraintError, exactly

numbers = st.integers(0, 40)
releases = st.tuples(numbers, numbers, numbers)


def text(release: tuple[int, ...]) -> str:
    return ".".join(map(str, release))


@pytest.mark.parametrize(
    ("constraint", "allowed", "refused"),
    [
        # a partial version is all that begin with it, as in Masterminds' semver
        ("1.2", ["1.2", "1.2.0", "1.2.99", "1.2.3.4"], ["1.1.9", "1.3.0", "1.20.0", "2.2.0"]),
        ("1", ["1.0", "1.99.3"], ["0.9", "2.0", "10.0"]),
        ("v1.2", ["1.2.7"], ["1.3"]),
        ("1.4.0", ["1.4.0", "1.4"], ["1.4.1", "1.3.9", "1.4.0.1"]),
        ("=1.4.0", ["1.4.0"], ["1.4.1"]),
        ("==1.4.0", ["1.4.0"], ["1.4.1"]),
        ("!=1.3", ["1.2.9", "1.4.0"], ["1.3.0", "1.3.7"]),
        ("!=1.3.1", ["1.3.0", "1.3.2"], ["1.3.1"]),
        (">=1.1.0", ["1.1.0", "1.1.1", "1.10.0", "2.13.0+cpu", "2.0.0a0+git"], ["1.0.9", "1.1.0rc1"]),
        ("=>1.1", ["1.1.0", "3.0"], ["1.0.9"]),
        (">1.2", ["1.3.0", "2.0"], ["1.2.0", "1.2.9"]),
        (">1.2.3", ["1.2.4"], ["1.2.3", "1.2.2"]),
        (">1", ["2.0.0"], ["1.9.9"]),
        ("<=1.4", ["1.4.0", "1.4.9", "0.1"], ["1.5.0", "2.0.0"]),
        ("<=2.x", ["2.0.0", "2.99.1"], ["3.0.0"]),
        ("<=1.4.2", ["1.4.2"], ["1.4.3"]),
        ("<1.4", ["1.3.99"], ["1.4.0"]),
        ("<2", ["1.99"], ["2.0.0", "2.0.0a0+git", "2.0.0rc1"]),
        ("^1.2.3", ["1.2.3", "1.9.0"], ["1.2.2", "2.0.0", "2.0.0rc1"]),
        ("^1.2", ["1.2.0", "1.9.0"], ["1.1.9", "2.0.0"]),
        ("^1", ["1.0.0", "1.9.0"], ["0.9.9", "2.0.0"]),
        ("^0.2.3", ["0.2.3", "0.2.9"], ["0.2.2", "0.3.0"]),
        ("^0.0.3", ["0.0.3"], ["0.0.2", "0.0.4"]),
        ("^0.0", ["0.0.0", "0.0.9"], ["0.1.0"]),
        ("^0", ["0.0.0", "0.9.9"], ["1.0.0"]),
        ("~1.2", ["1.2.0", "1.2.9"], ["1.1.9", "1.3.0"]),
        ("~1.2.3", ["1.2.3", "1.2.9"], ["1.2.2", "1.3.0"]),
        ("~1", ["1.0.0", "1.9.0"], ["2.0.0"]),
        ("~>1.2.3", ["1.2.9"], ["1.3.0"]),
        ("1.x", ["1.0.0", "1.9.1.post0"], ["2.0.0", "0.9"]),
        ("1.2.X", ["1.2.9"], ["1.3.0"]),
        ("1.2.*", ["1.2.9"], ["1.3.0"]),
        ("1.2.3.*", ["1.2.3", "1.2.3.4"], ["1.2.4"]),
        (">=1.x", ["1.0.0", "2.0.0"], ["0.9.9"]),
        ("1.2 - 1.4.5", ["1.2.0", "1.4.5"], ["1.1.9", "1.4.6"]),
        ("1.2 - 1.4", ["1.2.0", "1.4.9"], ["1.1.9", "1.5.0"]),
        (">=1.1, <2", ["1.1.0", "1.9"], ["1.0", "2.0"]),
        (">=1.1 <2", ["1.1.0", "1.9"], ["1.0", "2.0"]),
        (">= 1.1 , < 2", ["1.1.0", "1.9"], ["1.0", "2.0"]),
        (">=1, <2 || ^3", ["1.5", "3.5"], ["0.9", "2.5", "4.0"]),
        ("1.2||1.4", ["1.2.1", "1.4.1"], ["1.3.0"]),
        ("  1.2  ", ["1.2.1"], ["1.3.0"]),
    ],
)
def test_a_constraint_allows_and_refuses(constraint: str, allowed: list[str], refused: list[str]) -> None:
    parsed = Constraint(constraint)
    assert [version for version in allowed if not parsed.allows(version)] == []
    assert [version for version in refused if parsed.allows(version)] == []


@pytest.mark.parametrize("anything", ["", "*", "x", "X", "latest", ">=*", "^x", "*, *", "1.2 || *"])
def test_wildcards_allow_every_version(anything: str) -> None:
    for version in ("0.0.1", "2.13.0+cpu", "1.9.1.post0", "2.0.0a0+git"):
        assert Constraint(anything).allows(version)


def test_only_a_wildcard_allows_what_is_no_version() -> None:
    assert Constraint("*").allows("nightly build")
    assert not Constraint(">=0").allows("nightly build")


@pytest.mark.parametrize("constraint", ["2.13.0", "2.13.0+cpu", ">=2.13.0+cu126, <3", "^2.13.0+cpu"])
def test_the_local_part_of_a_version_counts_on_neither_side(constraint: str) -> None:
    assert Constraint(constraint).allows("2.13.0+cpu")
    assert Constraint(constraint).allows("2.13.0")
    assert not Constraint(constraint).allows("2.12.0+cpu")


def test_a_prerelease_counts_like_any_version_where_semver_would_leave_it_out() -> None:
    assert Constraint(">=1.1").allows("2.0.0a0+git")
    assert Constraint("2.0").allows("2.0.0rc1")
    assert not Constraint(">=2.0").allows("2.0.0rc1")


@pytest.mark.parametrize(
    ("constraint", "fits"),
    [
        ("1.9.1", False),
        ("==1.9.1", False),
        ("1.9", True),
        ("~1.9.1", True),
        ("^1.9.1", True),
        (">=1.9.1", True),
    ],
)
def test_a_post_release_is_a_version_after_the_one_that_it_follows(constraint: str, fits: bool) -> None:
    assert Constraint(constraint).allows("1.9.1.post0") is fits


@pytest.mark.parametrize(
    "garbage",
    [
        "abc",
        "1.2.3.beta.gamma",
        ">>1",
        "1..2",
        ">=",
        "1.x.3",
        "~=1",
        "1 | 2",
        "<*",
        ">x",
        "!=*",
        "1.2 ||",
        "|| 1.2",
        "||",
        ">=1,",
        ">=1.0<2",
        "1.2 -",
        "9" * 5000,
        "^" + "9" * 4300,
        "1.2; rm",
        "१.२",
    ],
)
def test_garbage_is_refused_in_one_line(garbage: str) -> None:
    with pytest.raises(InvalidConstraintError) as caught:
        Constraint(garbage)
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 200


@pytest.mark.timeout(60)
def test_a_long_text_is_no_constraint() -> None:
    with pytest.raises(InvalidConstraintError, match=r"^a version constraint has at most 1000 characters$"):
        Constraint("1" + " " * 1_000_000 + "1")  # whose time to be read would grow with the square
    assert Constraint(" " * 2000 + "1.0").allows("1.0")


def test_a_version_too_long_for_a_number_is_not_allowed() -> None:
    assert not Constraint(">=1").allows("9" * 5000)


def test_a_constraint_reads_as_it_was_written() -> None:
    assert str(Constraint(" >=1.1, <2 ")) == ">=1.1, <2"
    assert str(Constraint("")) == "*"


@given(st.one_of(st.text(), st.text(alphabet="0123456789.xX*v<>=!~^|, -+abrcposetdv!")), st.text())
def test_any_text_is_a_constraint_or_an_invalid_constraint_error(written: str, version: str) -> None:
    try:
        answer = str(Constraint(written).allows(version))
    except InvalidConstraintError as error:
        answer = str(error)
    assert len(answer.splitlines()) == 1


@given(releases, releases)
def test_caret_is_from_the_version_to_the_next_of_its_first_number_that_is_not_zero(
    base: tuple[int, int, int], version: tuple[int, int, int]
) -> None:
    first = next((place for place, number in enumerate(base) if number), 2)
    same = version[: first + 1] == base[: first + 1]
    assert Constraint(f"^{text(base)}").allows(text(version)) is (same and version >= base)


@given(releases, releases)
def test_tilde_is_from_the_version_to_the_next_minor_one(
    base: tuple[int, int, int], version: tuple[int, int, int]
) -> None:
    assert Constraint(f"~{text(base)}").allows(text(version)) is (version[:2] == base[:2] and version >= base)


@given(releases, releases)
def test_comparisons_are_those_of_the_numbers(
    base: tuple[int, int, int], version: tuple[int, int, int]
) -> None:
    found = {
        operator: Constraint(f"{operator}{text(base)}").allows(text(version))
        for operator in ("<", "<=", "=", "!=", ">=", ">")
    }
    assert found == {
        "<": version < base,
        "<=": version <= base,
        "=": version == base,
        "!=": version != base,
        ">=": version >= base,
        ">": version > base,
    }


@given(st.tuples(numbers, numbers), releases)
def test_comparisons_with_a_partial_version_are_with_all_that_begin_with_it(
    base: tuple[int, int], version: tuple[int, int, int]
) -> None:
    found = {
        operator: Constraint(f"{operator}{text(base)}").allows(text(version))
        for operator in ("<", "<=", "=", "!=", ">=", ">")
    }
    assert found == {
        "<": version[:2] < base,
        "<=": version[:2] <= base,
        "=": version[:2] == base,
        "!=": version[:2] != base,
        ">=": version[:2] >= base,
        ">": version[:2] > base,
    }


@pytest.mark.parametrize("version", ["1", "1.0", "1.2", "1.2.3", "1.2.3.4", "1.0rc1", "2.0.post1", "1!1.0"])
def test_a_version_can_be_asked_for_exactly(version: str) -> None:
    constraint = Constraint(exactly(version))

    assert constraint.allows(version)
    assert not any(constraint.allows(f"{version}{more}") for more in (".5", ".0.0.1", "5"))
