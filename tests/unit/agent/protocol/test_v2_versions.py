"""Versions as the Open Inference Protocol spells them."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from packaging.version import Version

from inferometer.agent.protocol.v2_versions import v2_version


@pytest.mark.parametrize(
    ("version", "spelled"),
    [
        *(("1", "1"), ("1.0", "1"), ("10.0.0", "10"), ("v2.0", "2"), ("007", "7")),
        *((kept, kept) for kept in ("1.1", "0.0", "0", "1.0.1", "2.0rc1", "2.0.post1", "1!2.0", "3.0+cpu")),
        ("9" * 18, "9" * 18),
        ("9" * 19 + ".0", "9" * 19 + ".0"),
        ("9" * 5000, "9" * 5000),
    ],
)
def test_whole_versions_are_numbers_and_others_keep_their_text(version, spelled):
    assert v2_version(version) == spelled


_VERSIONS = st.lists(st.integers(0, 12), min_size=1, max_size=3).map(lambda parts: ".".join(map(str, parts)))


@given(_VERSIONS, _VERSIONS)
def test_only_equal_versions_have_the_same_spelling(one, other):
    if v2_version(one) == v2_version(other):
        assert Version(one) == Version(other)
