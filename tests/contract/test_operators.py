"""Each operator of the table in each framework: its outputs and its gradients against the reference."""

from __future__ import annotations

from functools import cache
from pathlib import Path

import numpy as np
import pytest

from inferometer.agent.frameworks.onnxruntime.operators.runner import Graph, model_of, node
from inferometer.agent.inference.registry import BUILTIN
from inferometer.agent.operators.operator import (
    NotSupportedHereError,
    OperatorRunner,
    Preset,
    RunnerOptions,
    operators,
)
from inferometer.evaluators.kinds.operators.cases import draw_inputs
from inferometer.evaluators.kinds.operators.checks import gradient_difference, output_difference

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


UPDATES = (
    "sgd_mom_update",
    "multi_sgd_mom_update",
    "nag_mom_update",
    "adam_update",
    "adamw_update",
    "rmsprop_update",
)


@pytest.mark.parametrize("name", UPDATES)
def test_updates_agree_after_several_runs(name):
    """The states after the first run are not among the outputs of all updates."""
    operator = operators()[name]
    case = operator.cases(Preset.SMALL)[0]
    inputs = draw_inputs(operator, case, np.dtype(np.float32), 0)
    weights = []
    for framework in ("PyTorch", "MXNet"):
        call = runner(framework).prepare(operator, case, inputs)
        for _ in range(5):
            call.forward()
        weights.append(call.outputs()[0])
    assert np.allclose(*weights, rtol=1e-5, atol=1e-6)
    assert not np.allclose(weights[0], inputs["weight"])


@pytest.mark.parametrize("value", [1.5, [1.5], True, "1"])
def test_a_constant_of_onnx_is_not_cut_to_an_integer(value):
    with pytest.raises(TypeError, match=r"constant numbers is .*; give an array"):
        model_of(Graph([node("Add", "data", "numbers")], constants={"numbers": value}), {"data": np.ones(2)})
