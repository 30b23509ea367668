"""Fused operators: what a framework joins is seen in its own graph, trace or code, and equals the parts."""

from __future__ import annotations

import shutil
from functools import cache

import numpy as np
import pytest

from inferometer.agent.inference.registry import BUILTIN
from inferometer.agent.operators.operator import (
    PARTS,
    Category,
    NotSupportedHereError,
    OperatorCall,
    OperatorRunner,
    Preset,
    RunnerOptions,
    chosen_operators,
    operators,
)
from inferometer.evaluators.kinds.operators.checks import gradient_difference, output_difference
from inferometer.evaluators.kinds.operators.request import draw_inputs

FRAMEWORKS = [entry.name for entry in BUILTIN if entry.operators]
FUSED = [each.name for each in chosen_operators((), (Category.FUSED.value,))]
# what must be in the words of each framework for what it joined; "compile" has tests of its own
JOINED = {
    ("MXNet", "conv2d_relu", "sym"): "Convolution, Activation",
    ("MXNet", "conv2d_batch_norm", "sym"): "Convolution, BatchNorm",
    ("MXNet", "conv2d_batch_norm_relu", "sym"): "Convolution, BatchNorm, Activation",
    ("MXNet", "dense_relu", "sym"): "FullyConnected, Activation",
    ("MXNet", "dense_gelu", "sym"): "FullyConnected, LeakyReLU",
    ("ONNXRuntime", "conv2d_relu", "graph"): "FusedConv(Relu)",
    ("ONNXRuntime", "conv2d_batch_norm", "graph"): "Conv",
    ("ONNXRuntime", "conv2d_batch_norm_relu", "graph"): "Relu",
    ("ONNXRuntime", "dense_relu", "graph"): "FusedGemm(Relu)",
    ("ONNXRuntime", "dense_gelu", "graph"): "BiasGelu",
    ("ONNXRuntime", "layer_norm_residual", "graph"): "SkipLayerNormalization",
    ("ONNXRuntime", "scaled_dot_product_attention", "graph"): "Attention",
    ("PyTorch", "scaled_dot_product_attention", "eager"): "_scaled_dot_product_flash_attention_for_cpu",
}
SEPARATE = {
    ("MXNet", "add_relu"),
    ("MXNet", "layer_norm_residual"),
    ("MXNet", "scaled_dot_product_attention"),
    ("ONNXRuntime", "add_relu"),
}


@cache
def runner(framework: str) -> OperatorRunner:
    entry = next(each for each in BUILTIN if each.name == framework)
    return entry.load_operators()(RunnerOptions(threads=1))  # type: ignore[operator]


def right_call(framework: str, name: str, form: str, dtype: str = "float32") -> OperatorCall:
    """A call after one run, whose output is that of the reference."""
    operator = operators()[name]
    case = operator.cases(Preset.SMALL)[0]
    inputs = draw_inputs(operator, case, np.dtype(dtype), 0)
    call = runner(framework).prepare(operator, case, inputs, form=form)
    call.forward()
    found = output_difference(operator, case, inputs, call.outputs(), dtype)
    assert found.is_right, found
    return call


@pytest.mark.parametrize(("framework", "name", "form"), JOINED)
def test_what_a_framework_joins_is_seen_and_right(framework, name, form):
    assert runner(framework).forms(name)[0] == form
    call = right_call(framework, name, form)
    assert JOINED[framework, name, form] in call.fused
    for part in ("BatchNormalization", "MatMul, Mul", "Gemm, Gelu"):
        assert part not in call.fused


@pytest.mark.parametrize("name", FUSED)
@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_the_parts_run_one_after_the_other(framework, name):
    assert PARTS in runner(framework).forms(name)
    call = right_call(framework, name, PARTS)
    assert call.fused == ""
    assert len(call.api.split()) >= len(set(operators()[name].parts))


@pytest.mark.parametrize(("framework", "name"), sorted(SEPARATE))
def test_a_framework_that_joins_nothing_says_so(framework, name):
    operator = operators()[name]
    case = operator.cases(Preset.SMALL)[0]
    inputs = draw_inputs(operator, case, np.dtype(np.float32), 0)
    with pytest.raises(NotSupportedHereError, match=r"fuses none|leaves the parts"):
        runner(framework).prepare(operator, case, inputs)


def test_mxnet_joins_nothing_for_a_gradient_or_in_float64():
    operator = operators()["conv2d_relu"]
    case = operator.cases(Preset.SMALL)[0]
    for dtype, gradient, reason in (("float32", True, "no gradient"), ("float64", False, "float32 only")):
        inputs = draw_inputs(operator, case, np.dtype(dtype), 0)
        with pytest.raises(NotSupportedHereError, match=reason):
            runner("MXNet").prepare(operator, case, inputs, gradient=gradient)


def test_pytorch_has_no_eager_function_of_a_convolution_with_its_activation():
    operator = operators()["conv2d_relu"]
    case = operator.cases(Preset.SMALL)[0]
    inputs = draw_inputs(operator, case, np.dtype(np.float32), 0)
    with pytest.raises(NotSupportedHereError, match="no function that fuses"):
        runner("PyTorch").prepare(operator, case, inputs, form="eager")


compiles = pytest.mark.skipif(shutil.which("g++") is None, reason="torch.compile requires a C++ compiler")


@pytest.fixture
def inductor_folder(tmp_path, monkeypatch):
    """Inductor writes its code there, and not to a folder that other runs share."""
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path))


@compiles
@pytest.mark.usefixtures("inductor_folder")
def test_inductor_folds_a_normalisation_and_joins_the_activation():
    call = right_call("PyTorch", "conv2d_batch_norm_relu", "compile")
    assert "_convolution_pointwise(relu)" in call.fused
    assert "batch_norm is in the weight" in call.fused
    call.forward()  # which does not compile again without the options of the first run
    assert call.outputs()[0].min() == 0


@compiles
@pytest.mark.usefixtures("inductor_folder")
def test_inductor_joins_the_parts_of_a_gradient_only_where_its_code_says_so():
    operator = operators()["add_relu"]
    case = operator.cases(Preset.SMALL)[0]
    inputs = draw_inputs(operator, case, np.dtype(np.float32), 0)
    call = runner("PyTorch").prepare(operator, case, inputs, gradient=True)
    assert "add_relu" in call.fused
    call.forward_for_gradient()
    call.backward()
    found = gradient_difference(operator, case, inputs, call.gradients(), "float32")
    assert found is not None
    assert found.is_right
    operator = operators()["dense_relu"]
    case = operator.cases(Preset.SMALL)[0]
    inputs = draw_inputs(operator, case, np.dtype(np.float32), 0)
    with pytest.raises(NotSupportedHereError, match="one after the other: addmm"):
        runner("PyTorch").prepare(operator, case, inputs, gradient=True)


def test_without_a_compiler_the_compiled_form_has_a_reason(monkeypatch):
    monkeypatch.setenv("PATH", "")
    operator = operators()["add_relu"]
    case = operator.cases(Preset.SMALL)[0]
    inputs = draw_inputs(operator, case, np.dtype(np.float32), 0)
    with pytest.raises(NotSupportedHereError, match="requires a C\\+\\+ compiler"):
        runner("PyTorch").prepare(operator, case, inputs)
