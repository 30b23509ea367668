"""Conditions by DLBS's rules, and constraints."""

from __future__ import annotations

from typing import Any

import pytest

from inferometer.evaluators.plans.cells import fits, holds
from inferometer.manifests.errors import ConfigurationError

VALUES: dict[str, Any] = {
    "model": "resnet50",
    "batch": 16,
    "empty": "",
    "docker": True,
    "nothing": None,
    "rate": 0.5,
}


@pytest.mark.parametrize(
    ("condition", "fitted"),
    [
        ({}, True),
        ({"model": "resnet50"}, True),
        ({"model": "resnet"}, True),  # a text is the beginning of the value
        ({"model": "net50"}, False),
        ({"model": "resnet$"}, False),
        ({"model": "resnet(18|50)$"}, True),
        ({"model": ["resnet", "vgg"]}, False),  # a list has whole values
        ({"model": ["vgg", "resnet50"]}, True),
        ({"batch": 16}, True),
        ({"batch": [8, 32]}, False),
        ({"batch": "1"}, True),
        ({"batch": "16$"}, True),
        ({"docker": True}, True),
        ({"docker": 1}, False),  # true is not 1
        ({"empty": ""}, True),
        ({"model": ""}, False),  # an empty text fits an empty text alone
        ({"nothing": None}, True),
        ({"model": "res", "batch": [16, 32]}, True),  # all have to fit
        ({"model": "res", "batch": 32}, False),
    ],
)
def test_conditions(condition: dict[str, Any], fitted: bool) -> None:
    assert (fits(VALUES, condition, strict=False) is not None) is fitted
    assert (fits(VALUES, condition, strict=True) is not None) is fitted


def test_what_a_cell_lacks_fits_unless_the_condition_is_strict() -> None:
    condition: dict[str, Any] = {"absent": "x", "batch": 16}
    assert fits(VALUES, condition, strict=False) == {"batch_0": 16}
    assert fits(VALUES, condition, strict=True) is None


def test_what_fitted_is_named_whole_and_by_group() -> None:
    found = fits(VALUES, {"model": r"(res|vgg)net(\d+)(x)?", "batch": [16]}, strict=False)
    assert found == {"model_0": "resnet50", "model_1": "res", "model_2": "50", "model_3": None, "batch_0": 16}


def test_a_text_that_is_no_regular_expression_is_refused() -> None:
    with pytest.raises(
        ConfigurationError, match=r"^the condition on model is not a regular expression: .*position 3"
    ):
        fits(VALUES, {"model": "res(net"}, strict=False)


@pytest.mark.parametrize(
    ("comparison", "held"),
    [
        ("${batch} <= 16", True),
        ("${batch}<16", False),
        ("${batch} * 4 * ${batch} == 1024", True),
        ("${batch} * ${rate} >= 8", True),
        ("8.0 == ${batch} * ${rate}", True),
        ("${model} == resnet50", True),
        ("${model} != resnet50", False),
        ("${model}_${batch} == resnet50_16", True),
        ("${docker} == true", True),
        ("${docker} != false", True),
        ("${empty} != gpu", True),
        ("${batch} != resnet50", True),
    ],
)
def test_constraints(comparison: str, held: bool) -> None:
    assert holds(comparison, VALUES) is held


@pytest.mark.parametrize(
    ("comparison", "message"),
    [
        (
            "${batch}",
            'the constraint "${batch}" is no comparison, such as ${batch_size} * ${replicas} <= 256',
        ),
        (
            "${batc} < 4",
            'the constraint "${batc} < 4": unknown reference "batc"; did you mean "batch" or "rate"?',
        ),
        (
            "${model} < 4",
            'the constraint "${model} < 4": "resnet50" < "4" requires numbers; '
            "texts can only be compared with == and !=",
        ),
        (
            "${model} < ${model}",
            'the constraint "${model} < ${model}": "resnet50" < "resnet50" requires numbers; '
            "texts can only be compared with == and !=",
        ),
        ("${model} * 2 == 4", 'the constraint "${model} * 2 == 4": "resnet50" is not a number'),
    ],
)
def test_a_constraint_that_cannot_be_decided_is_refused(comparison: str, message: str) -> None:
    with pytest.raises(ConfigurationError) as refusal:
        holds(comparison, VALUES)
    assert str(refusal.value) == message
