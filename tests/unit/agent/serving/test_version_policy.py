"""Version policies: as text, and what they serve."""

from __future__ import annotations

import pytest

from inferometer.agent.serving.version_policy import VersionPolicy
from inferometer.manifests.errors import ConfigurationError

VERSIONS = ("3", "2.0", "1.1", "1.0")


@pytest.mark.parametrize(
    ("text", "served"),
    [
        ("all", VERSIONS),
        ("latest:1", ("3",)),
        ("latest:3", ("3", "2.0", "1.1")),
        ("latest:9", VERSIONS),
        ("specific:2", ("2.0",)),
        ("specific:1.0,3.0.0, 7", ("3", "1.0")),
        ("specific:9", ()),
    ],
)
def test_policy_serves_the_versions_that_it_names_the_highest_first(text, served):
    policy = VersionPolicy.parse(text)
    assert policy.served(VERSIONS) == served
    assert VersionPolicy.parse(str(policy)) == policy


@pytest.mark.parametrize(
    "text",
    [
        *("", "ALL", "all:", "all:1", "latest", "latest:", "latest:0", "latest:-1", "latest:1.0", "latest:x"),
        *("specific", "specific:", "specific:1,", "specific:1,x", "none", "1", "latest:" + "9" * 5000),
    ],
)
def test_text_that_is_no_policy_is_refused_in_one_line(text):
    with pytest.raises(ConfigurationError, match="allowed: all, latest:N with N from 1 on, or ") as error:
        VersionPolicy.parse(text)
    assert "\n" not in str(error.value)
    assert len(str(error.value)) < 300
