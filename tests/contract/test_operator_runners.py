"""What the runners of operators owe beside right results: element types, in-place runs, no folded graphs."""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import cache, partial

import numpy as np
import onnx
import pytest
import torch

from inferometer.agent.frameworks.onnxruntime.operators.runner import ONNXRuntimeOperators, model_of
from inferometer.agent.frameworks.onnxruntime.sessions import open_session
from inferometer.agent.frameworks.pytorch.operators.runner import PyTorchOperators
from inferometer.agent.hardware.environment import CPU
from inferometer.agent.inference.registry import BUILTIN
from inferometer.agent.operators.operator import (
    Case,
    Category,
    NotSupportedHereError,
    OperatorRunner,
    Preset,
    RunnerOptions,
    operators,
)
from inferometer.evaluators.kinds.operators.request import draw_inputs
from tests.optional_mxnet import mxnet

FRAMEWORKS = [entry.name for entry in BUILTIN if entry.operators]


@cache
def runner(framework: str, dtype: str) -> OperatorRunner:
    entry = next(each for each in BUILTIN if each.name == framework)
    return entry.load_operators()(RunnerOptions(threads=1, dtype=dtype))  # type: ignore[operator]


def prepared(framework: str, name: str, dtype: str = "float32", **more):
    operator = operators()[name]
    case = operator.cases(Preset.SMALL)[0]
    inputs = draw_inputs(operator, case, np.dtype(dtype), 0)
    return inputs, runner(framework, dtype).prepare(operator, case, inputs, **more)


@pytest.mark.parametrize("framework", FRAMEWORKS)
@pytest.mark.parametrize("dtype", ["float16", "float64", "int8"])
def test_what_is_created_without_inputs_has_the_element_type(framework, dtype):
    for form in runner(framework, dtype).forms("full"):
        if form != "compile":
            _, call = prepared(framework, "full", dtype, form=form)
            call.forward()

            assert [each.dtype for each in call.outputs()] == [dtype]


@pytest.mark.parametrize(
    ("framework", "name", "dtype"),
    [
        ("PyTorch", "random_gamma", "float16"),
        ("ONNXRuntime", "arange", "float16"),
        ("ONNXRuntime", "tan", "float64"),
    ],
)
def test_an_element_type_without_a_kernel_is_not_supported(framework, name, dtype):
    with pytest.raises(NotSupportedHereError, match="no kernel"):
        prepared(framework, name, dtype)[1].forward()


def test_float32_on_a_gpu_is_not_tf32(monkeypatch):
    """Without a GPU, only that both frameworks are told so can be seen."""
    monkeypatch.setattr(torch.backends.cudnn, "allow_tf32", True)
    PyTorchOperators(RunnerOptions(threads=1, dtype="float32"))
    assert torch.backends.cudnn.allow_tf32  # whoever only lists operators leaves the process as it is
    monkeypatch.setattr(f"{PyTorchOperators.__module__}.find_device", lambda *_: torch.device("cuda", 0))
    PyTorchOperators(RunnerOptions(threads=1, dtype="float32"))
    assert not torch.backends.cudnn.allow_tf32

    opened = []

    def opens(*arguments, cuda, **options):
        opened.append(cuda)
        return open_session(*arguments, cuda=cuda, **options)

    monkeypatch.setattr(f"{ONNXRuntimeOperators.__module__}.open_session", opens)
    prepared("ONNXRuntime", "conv2d")
    assert opened == [{"use_tf32": "0"}]


@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_integers_have_no_gradients(framework):
    with pytest.raises(NotSupportedHereError, match="gradients"):
        prepared(framework, "add", "int32", gradient=True)


@pytest.mark.parametrize("framework", ["PyTorch", "MXNet"])
def test_an_operator_in_place_goes_on_from_its_last_result(framework):
    inputs, call = prepared(framework, "iadd")
    before = inputs["lhs"].copy()
    call.forward()
    call.forward()

    assert np.array_equal(call.outputs()[0], before + 2 * inputs["rhs"])
    assert np.array_equal(inputs["lhs"], before)


@pytest.mark.parametrize("framework", FRAMEWORKS)
@pytest.mark.parametrize(
    "name", [name for name, each in operators().items() if each.category is Category.RANDOM and each.check]
)
def test_each_run_draws_other_numbers(framework, name):
    if not runner(framework, "float32").forms(name):
        pytest.skip(runner(framework, "float32").missing(name))
    _, call = prepared(framework, name)
    call.forward()
    (first,) = call.outputs()
    call.forward()

    assert not np.array_equal(call.outputs()[0], first)


@pytest.mark.parametrize("form", ["nd", "sym"])
def test_mxnet_has_computed_when_a_run_returns(form):
    operator, size = operators()["dot"], (512, 512)
    parameters = operator.cases(Preset.SMALL)[0].parameters
    case = Case({"lhs": size, "rhs": size}, parameters, "own")
    inputs = draw_inputs(operator, case, np.dtype(np.float32), 0)
    call = runner("MXNet", "float32").prepare(operator, case, inputs, gradient=True, form=form)

    def spent_s(run: Callable[[], None]) -> float:
        begun_s = time.perf_counter()
        run()
        return time.perf_counter() - begun_s

    runs = (call.forward, call.forward_for_gradient, call.backward)
    times = [[(spent_s(run), spent_s(mxnet.nd.waitall)) for run in runs] for _ in range(9)]
    ran_s, waited_s = np.min(times, axis=0).T  # other processes lengthen the rest
    assert (waited_s < ran_s / 10).all(), "what a run queues takes its time after the run"


@pytest.mark.filterwarnings(
    "ignore:.*torch.jit.script_method:DeprecationWarning"
)  # of PyTorch's own compiler
def test_more_operators_are_compiled_than_pytorch_compiles_of_one_function(monkeypatch):
    torch = pytest.importorskip("torch")
    monkeypatch.setattr(torch, "compile", partial(torch.compile, backend="eager"))  # its C++ takes seconds

    with torch._dynamo.config.patch(cache_size_limit=1):  # monkeypatch would hide it afterwards
        for name in ("negative", "square"):
            inputs, call = prepared("PyTorch", name, form="compile")
            call.forward()

            assert np.array_equal(
                call.outputs()[0], {"negative": np.negative, "square": np.square}[name](inputs["data"])
            )


@pytest.mark.parametrize("name", ONNXRuntimeOperators.table())
def test_onnx_runtime_folds_no_graph_into_a_constant(name, tmp_path):
    operator = operators()[name]
    case = operator.cases(Preset.SMALL)[0]
    form = ONNXRuntimeOperators.table()[name]
    graph = form.make(case, np.dtype(np.float32))
    drawn = draw_inputs(operator, case, np.dtype(np.float32), 0)
    inputs = {**(form.arrange(drawn) if form.arrange else drawn), **graph.fed}
    open_session(model_of(graph, inputs), CPU, 1, optimized=tmp_path / "optimized.onnx")

    assert onnx.load(tmp_path / "optimized.onnx").graph.node
