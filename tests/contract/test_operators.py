"""Each operator of the table in each framework: its outputs and its gradients against the reference."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import pytest
from numpy.typing import NDArray

from inferometer.agent.frameworks.onnxruntime.operators.runner import Graph, model_of, node
from inferometer.agent.inference.registry import BUILTIN
from inferometer.agent.operators.operator import (
    Case,
    NotSupportedHereError,
    Operator,
    OperatorRunner,
    Preset,
    RunnerOptions,
    operators,
)
from inferometer.evaluators.kinds.operators.checks import gradient_difference, output_difference
from inferometer.evaluators.kinds.operators.request import draw_inputs

Array: TypeAlias = NDArray[Any]
FRAMEWORKS = [entry.name for entry in BUILTIN if entry.operators]
SEED = 0
WRONG_GRADIENTS = {
    # scale · (alpha + output) for negative data, in place of scale · alpha + output
    ("selu", "MXNet")
}


@cache
def runner(framework: str, dtype: str = "float32") -> OperatorRunner:
    entry = next(each for each in BUILTIN if each.name == framework)
    return entry.load_operators()(RunnerOptions(threads=1, dtype=dtype))  # type: ignore[operator]


@pytest.mark.parametrize("framework", FRAMEWORKS)
@pytest.mark.parametrize("name", operators())
def test_an_operator_computes_what_its_reference_does(name, framework):
    operator = operators()[name]
    for form in runner(framework).forms(name):
        if form == "compile":
            continue  # which takes seconds for each; tests of fused operators compile
        for case in operator.cases(Preset.SMALL):
            inputs = draw_inputs(operator, case, np.dtype(np.float32), SEED)
            try:
                call = runner(framework).prepare(operator, case, inputs, form=form)
                call.forward()
            except NotSupportedHereError:
                continue
            found = output_difference(operator, case, inputs, call.outputs(), "float32")
            assert found.is_right, (form, case, found)


def test_a_long_image_is_not_so_long_that_rounded_places_miss_its_pixels():
    operator = operators()["spatial_transformer"]
    [case] = operator.cases(Preset.SKEWED)
    inputs = draw_inputs(operator, case, np.dtype(np.float32), 7)
    call = runner("ONNXRuntime").prepare(operator, case, inputs, form="graph")
    call.forward()
    assert output_difference(operator, case, inputs, call.outputs(), "float32").is_right


@pytest.mark.parametrize("framework", FRAMEWORKS)
@pytest.mark.parametrize("name", [name for name, each in operators().items() if each.has_gradient])
def test_the_gradients_of_an_operator_are_those_of_its_reference(name, framework):
    operator = operators()[name]
    for form in runner(framework).forms(name):
        if form == "compile":
            continue
        case = operator.cases(Preset.SMALL)[0]
        inputs = draw_inputs(operator, case, np.dtype(np.float32), SEED)
        try:
            call = runner(framework).prepare(operator, case, inputs, gradient=True, form=form)
            call.forward_for_gradient()
            call.backward()
        except NotSupportedHereError:
            continue
        found = gradient_difference(operator, case, inputs, call.gradients(), "float32")
        is_right = (name, framework) not in WRONG_GRADIENTS
        assert found is None or found.is_right is is_right, (form, case, found)


@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_every_operator_of_the_table_runs_or_has_a_reason(framework):
    lacking = [name for name in operators() if not runner(framework).forms(name)]
    assert all(runner(framework).missing(name) for name in lacking)


@pytest.mark.parametrize("name", operators())
def test_an_operator_has_inputs_of_every_size(name):
    operator = operators()[name]
    for preset in (Preset.SMALL, Preset.NORMAL, Preset.LARGE, Preset.SKEWED):
        cases = operator.cases(preset)
        assert cases, preset
        for case in cases:
            specs = operator.tensors(case)
            assert set(operator.given) <= {spec.name for spec in specs}
            assert all(size > 0 for spec in specs for size in spec.shape)


def test_the_table_uses_every_operator_of_opperf():
    facts = Path(__file__).parents[1] / "data" / "opperf_operators.txt"
    names = {name for line in facts.read_text().splitlines() if line[0] != "#" for name in line.split()}

    assert len(names) == 250
    assert names & set(runner("MXNet").uncovered()) == set()


@pytest.mark.parametrize(
    ("name", "framework", "dtype"),
    [
        ("grid_generator", "MXNet", "float16"),
        ("softmax_activation", "MXNet", "float16"),
        ("amp_multicast", "MXNet", "float64"),
        ("grid_sample", "PyTorch", "float16"),  # which would write outside of its arrays
    ],
)
def test_an_operator_without_a_kernel_for_a_type_is_not_supported(name, framework, dtype):
    operator = operators()[name]
    case = operator.cases(Preset.SKEWED)[0]
    inputs = draw_inputs(operator, case, np.dtype(dtype), SEED)
    with pytest.raises(NotSupportedHereError, match=r"no kernel|no images"):
        runner(framework, dtype).prepare(operator, case, inputs).forward()


STRONG = {"lr": 0.3, "wd": 0.2, "momentum": 0.7, "beta1": 0.7, "beta2": 0.6, "alpha": 0.7, "t": 3}
STRONG |= {"lamda1": 0.2, "beta": 0.5, "epsilon": 0.3}
"""Parameters whose effects all exceed the tolerance."""


def after_a_run(
    operator: Operator, case: Case, inputs: Mapping[str, Array], *, decay_new: bool
) -> dict[str, Array]:
    """Returns the weights and states after a run; the reference of SGD does not return the states."""
    outputs = operator.reference(list(inputs.values()), case.parameters)  # type: ignore[misc]
    kept = [name for name in inputs if not name.startswith(("grad", "r1", "r2", "lrs", "wds"))]
    kept.sort(key=lambda name: (not name.startswith("weight"), "32" in name))
    found = {**inputs, **dict(zip(kept, outputs, strict=False))}
    for number, name in enumerate(name for name in kept[len(outputs) :] if name.startswith("state")):
        end, decay = name.removeprefix("state"), inputs["wds"][number] if "wds" in inputs else case["wd"]
        weights = found if decay_new else inputs
        decayed = decay * weights.get(f"weight32{end}", weights[f"weight{end}"])
        found[name] = case["momentum"] * inputs[name] + inputs[f"grad{end}"] + decayed
    return found


@pytest.mark.parametrize("framework", FRAMEWORKS)
@pytest.mark.parametrize("name", [name for name, each in operators().items() if each.in_place == "weight"])
def test_an_update_uses_its_parameters_and_its_states(name, framework):
    operator = operators()[name]
    case = operator.own_case({"weight": (8, 9)}, {key: STRONG[key] for key in operator.parameters})
    inputs = draw_inputs(operator, case, np.dtype(np.float32), SEED)
    wide = {key: array.astype(np.float64) for key, array in inputs.items()}
    if runner(framework).forms(name):
        call = runner(framework).prepare(operator, case, inputs)
        for _ in range(3):
            call.forward()
            found = output_difference(operator, case, wide, call.outputs(), "float32")
            assert found.is_right, found
            # MXNet's state is computed after the weight that it decays has been replaced
            decay_new = framework == "MXNet" and "nag" in name
            wide = after_a_run(operator, case, wide, decay_new=decay_new)


@pytest.mark.parametrize("framework", ["PyTorch", "MXNet"])
@pytest.mark.parametrize("name", ["all_finite", "multi_all_finite"])
@pytest.mark.parametrize("value", [np.inf, np.nan])
def test_one_element_that_is_not_finite_is_found(value, name, framework):
    operator = operators()[name]
    case = operator.cases(Preset.SMALL)[0]
    inputs = draw_inputs(operator, case, np.dtype(np.float32), SEED)
    list(inputs.values())[-1].flat[-1] = value
    if runner(framework).forms(name):
        call = runner(framework).prepare(operator, case, inputs)
        call.forward()
        assert not call.outputs()[0].any()


@pytest.mark.parametrize("value", [1.5, [1.5], True, "1"])
def test_a_constant_of_onnx_is_not_cut_to_an_integer(value):
    with pytest.raises(TypeError, match=r"constant numbers is .*; give an array"):
        model_of(Graph([node("Add", "data", "numbers")], constants={"numbers": value}), {"data": np.ones(2)})
