"""Versions as the Open Inference Protocol spells them."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from packaging.version import Version

from inferometer.agent.open_inference.codec import v2_version


@pytest.mark.parametrize(
    ("version", "spelled"),
    [
        *(("1", "1"), ("1.0", "1"), ("10.0.0", "10"), ("v2.0", "2"), ("007", "7")),
        *(
            ("1.5", "1001005000"),
            ("1.5.0", "1001005000"),
            ("2.0.1", "1002000001"),
            ("v10.20.300", "1010020300"),
        ),
        *(("0", "1000000000"), ("0.0", "1000000000"), ("0.1", "1000001000"), ("999.999.999", "1999999999")),
        *(
            (kept, kept)
            for kept in ("1.0.0.1", "2.0rc1", "2.0.post1", "1!2.0", "3.0+cpu", "1.1000", "1000.1")
        ),
        *(("999999999", "999999999"), ("1001005000", "1001005000.0"), ("1001005000.0", "1001005000.0")),
        ("9" * 5000, "9" * 5000 + ".0"),
    ],
)
def test_versions_are_whole_numbers_where_they_can_be(version, spelled):
    assert v2_version(version) == spelled


_NUMBERS = st.one_of(st.integers(0, 12), st.sampled_from([999, 1000, 999_999_999, 1_001_005_000]))
_VERSIONS = st.lists(_NUMBERS, min_size=1, max_size=4).map(lambda parts: ".".join(map(str, parts)))


@given(_VERSIONS, _VERSIONS)
def test_only_equal_versions_have_the_same_spelling(one, other):
    if v2_version(one) == v2_version(other):
        assert Version(one) == Version(other)
