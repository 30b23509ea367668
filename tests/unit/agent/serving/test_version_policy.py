"""Version policies: as text, and what they serve."""

from __future__ import annotations

import pytest

from inferometer.agent.serving.served_models import VersionPolicies, VersionPolicy
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


def test_model_has_its_own_policy_or_that_of_all():
    policies = VersionPolicies.parse(["latest:1", "ResNet50=specific:1,3", "a=b=all"])
    assert str(policies.of("resnet50")) == "specific:1,3"
    assert str(policies.of("a=b")) == "all"
    assert str(policies.of("Other")) == "latest:1"
    assert str(VersionPolicies.parse(["M=latest:2"]).of("Other")) == "all"


@pytest.mark.parametrize(
    ("texts", "said"),
    [
        (["latest:1", "all"], "all models have two policies"),
        (["M=latest:1", "m=all"], "model m has two policies"),
        (["=all"], 'found "=all" without a model; give NAME=POLICY'),
        (["M="], 'found ""; allowed'),
        (["M=1"], 'found "1"; allowed'),
    ],
)
def test_policies_that_make_no_sense_are_refused(texts, said):
    with pytest.raises(ConfigurationError, match=f"version_policy: {said}"):
        VersionPolicies.parse(texts)
