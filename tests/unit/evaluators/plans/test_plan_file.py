"""The file of a plan: what it may have, and what is said of what it may not."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from inferometer.evaluators.plans.cells import cells_of
from inferometer.evaluators.plans.plan import Rerun, plan_of, read_plan
from inferometer.manifests.errors import ConfigurationError

WHOLE = """
name: batch-sizes
description: how batches scale
command: predict dataset
arguments: [more]
parameters:
  model_name: ResNet50
  exp.most: {val: 16, type: int, desc: [the largest, batch], val_domain: [8, 16]}
variables:
  batch_size: [1, "${exp.most}"]
  framework_name: MXNet
var_order: [framework_name]
include: [{batch_size: 2}]
exclude: [{batch_size: 4}]
constraints: ["${batch_size} < 32"]
extensions: [{condition: {batch_size: 1}, parameters: {threads: 1}, cases: [{seed: 1}, {seed: 2}]}]
repeat: 3
seed: 7
timeout_s: 60
rerun: onfail
batch_option: batch_size
"""


def written(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "plan.yaml"
    path.write_text(text, encoding="utf-8")
    return path


def test_a_whole_file_is_read(tmp_path: Path) -> None:
    plan = read_plan(written(tmp_path, WHOLE))
    assert (plan.name, plan.repeat, plan.timeout_s, plan.rerun) == ("batch-sizes", 3, 60, Rerun.ON_FAILURE)
    assert plan.variables == {"batch_size": [1, "${exp.most}"], "framework_name": ["MXNet"]}


def test_yes_and_numbers_with_underscores_are_no_surprise(tmp_path: Path) -> None:
    plan = read_plan(written(tmp_path, "name: p\ncommand: x\nparameters: {a: 'yes', b: 1.0, c: true}"))
    assert cells_of(plan)[0].argv == ("x", "--a=yes", "--b=1.0", "--c=true")


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ({"comand": "y"}, "comand: Extra inputs are not permitted"),
        ({"name": "a/b"}, "name: String should match pattern '^[A-Za-z0-9][A-Za-z0-9._-]{0,63}$'"),
        ({"repeat": 0}, "repeat: Input should be greater than or equal to 1"),
        ({"parameters": {"x": {"vall": 1}}}, "parameters.x.val: Field required"),
        (
            {"parameters": {"x": {"val": 1, "type": "integer"}}},
            "parameters.x.type: Input should be 'str', 'int', 'float' or 'bool'",
        ),
        (
            {"variables": {"x": {"val": 1}}},
            "variables.x.0: takes a text, a number, true, false, null, or a list of them",
        ),
        (
            {"exclude": [{"x": {"least": 1}}]},
            "exclude.0.x: takes a text, a number, true, false, null, or a list of them",
        ),
        ({"variables": {"x": []}}, "variables.x: List should have at least 1 item after validation, not 0"),
        ({"exclude": [{}]}, "exclude.0: Dictionary should have at least 1 item after validation, not 0"),
        ({"extensions": [{"when": {}}]}, "extensions.0.when: Extra inputs are not permitted"),
    ],
)
def test_a_wrong_field_is_named(content: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigurationError) as refusal:
        plan_of({"name": "p", "command": "x", **content}, "p.yaml")
    assert str(refusal.value) == f"p.yaml: {message}"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("- a", "is not a mapping with name, command, parameters and variables"),
        ("name: [", "cannot be read as YAML: "),
        ("name: a\nname: b\ncommand: x", "cannot be read as YAML: "),
    ],
)
def test_a_file_that_is_no_plan_is_refused(tmp_path: Path, text: str, message: str) -> None:
    path = written(tmp_path, text)
    with pytest.raises(ConfigurationError) as refusal:
        read_plan(path)
    assert str(refusal.value).startswith(f"{path}: {message}")


def test_a_file_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="there is no such file"):
        read_plan(tmp_path / "absent.yaml")
