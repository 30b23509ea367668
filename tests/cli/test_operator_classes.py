"""The classes of dl-operator-benchmark: names, inputs, results and printed lines, in both frameworks."""

from __future__ import annotations

import pickle
import re
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import torch

from inferometer.operators import pytorch
from inferometer.operators.mxnet import custom, gluon, nd

LINE = r"^(MX|PT)_\w+_Time - \d+\.\d{6} seconds$"
SQUARE = {"data": (8, 8)}
PAIR = {"lhs": (8, 8), "rhs": (8, 8)}
IN_PLACE = {"this": (8, 8), "other": (8, 8)}
IMAGES = {"data": (2, 3, 8, 8)}
SERIES = {"data": (2, 3, 16)}
LOSS = {"pred": (4, 6, 1), "label": (4, 6, 1)}
SEQUENCE = {"data": (5, 2, 8), "hidden_size": 4}
BOTH, FORWARD = "Forward_Backward", "Forward"

CLASSES: tuple[tuple[ModuleType, str, str, str, dict[str, Any]], ...] = (
    (nd, "Add", "Add", BOTH, PAIR),
    (nd, "Subtract", "Subtract", BOTH, PAIR),
    (nd, "Multiply", "Multiply", BOTH, PAIR),
    (nd, "Divide", "Divide", BOTH, PAIR),
    (nd, "Modulo", "Modulo", BOTH, PAIR),
    (nd, "Power", "Power", BOTH, {"base": (8, 8), "exp": (8, 8)}),
    (nd, "Negative", "Negative", BOTH, SQUARE),
    (nd, "IAdd", "Inplace_Add", FORWARD, IN_PLACE),
    (nd, "ISub", "Inplace_Subtract", FORWARD, IN_PLACE),
    (nd, "IMul", "Inplace_Multiply", FORWARD, IN_PLACE),
    (nd, "IDiv", "Inplace_Division", FORWARD, IN_PLACE),
    (nd, "IMod", "Inplace_Modulo", FORWARD, IN_PLACE),
    (nd, "Lesser", "Lesser", BOTH, PAIR),
    (nd, "LesserEqual", "Lesser_Equal", BOTH, PAIR),
    (nd, "Greater", "Greater", BOTH, PAIR),
    (nd, "GreaterEqual", "Greater_Equal", BOTH, PAIR),
    (nd, "Equal", "Equal", BOTH, PAIR),
    (nd, "NotEqual", "Not_Equal", BOTH, PAIR),
    (nd, "LogicalAnd", "Logical_And", BOTH, PAIR),
    (nd, "LogicalOr", "Logical_Or", BOTH, PAIR),
    (nd, "LogicalXor", "Logical_Xor", BOTH, PAIR),
    (nd, "LogicalNot", "Logical_Not", BOTH, SQUARE),
    (nd, "Log", "Log", BOTH, SQUARE),
    (nd, "Exp", "Exp", BOTH, SQUARE),
    (nd, "Sqrt", "Sqrt", BOTH, SQUARE),
    (nd, "Square", "Square", BOTH, SQUARE),
    (nd, "Zeros", "Zeros", FORWARD, {"shape": (8, 8)}),
    (nd, "Ones", "Ones", FORWARD, {"shape": (8, 8)}),
    (nd, "ZerosLike", "Zeros_Like", FORWARD, SQUARE),
    (nd, "OnesLike", "Ones_Like", FORWARD, SQUARE),
    (nd, "Full", "Full", FORWARD, {"shape": (8, 8)}),
    (nd, "Arange", "Arange", FORWARD, {}),
    (nd, "Dot", "Dot", BOTH, {"lhs": (8, 6), "rhs": (6, 4)}),
    (nd, "BatchDot", "Batch_Dot", BOTH, {"lhs": (2, 8, 6), "rhs": (2, 6, 4)}),
    (nd, "Sort", "Sort", FORWARD, {"data": (4, 20)}),
    (nd, "ArgSort", "ArgSort", FORWARD, {"data": (4, 20)}),
    (nd, "TopK", "TopK", FORWARD, {"data": (4, 20)}),
    (nd, "ArgMax", "ArgMax", FORWARD, {"data": (4, 20)}),
    (nd, "ArgMin", "ArgMin", FORWARD, {"data": (4, 20)}),
    (gluon, "Dense", "Gluon_Imperative_Dense", BOTH, {"data": (4, 6), "units": 3}),
    (gluon, "Flatten", "Gluon_Imperative_Flatten", BOTH, {"data": (2, 3, 4)}),
    (gluon, "Lambda", "Gluon_Imperative_Lambda_Batchify", BOTH, {"data": (2, 3, 4)}),
    (gluon, "LeakyRelu", "Gluon_Imperative_LeakyRelu", BOTH, IMAGES),
    (gluon, "PRelu", "Gluon_Imperative_PRelu", BOTH, IMAGES),
    (gluon, "Sigmoid", "Gluon_Imperative_Sigmoid", BOTH, IMAGES),
    (gluon, "Softmax", "Softmax", BOTH, IMAGES),
    (gluon, "LogSoftmax", "Log_Softmax", BOTH, IMAGES),
    (gluon, "Tanh", "Gluon_Imperative_Tanh", BOTH, IMAGES),
    (gluon, "Elu", "Gluon_Imperative_Elu", BOTH, IMAGES),
    (gluon, "Selu", "Gluon_Imperative_Selu", BOTH, IMAGES),
    (gluon, "Swish", "Gluon_Imperative_Swish", BOTH, IMAGES),
    (gluon, "Conv2D", "Gluon_Imperative_Conv2D", BOTH, IMAGES),
    (gluon, "Conv2DTranspose", "Gluon_Imperative_Conv2DTranspose", BOTH, IMAGES),
    (gluon, "Conv1D", "Gluon_Imperative_Conv1D", BOTH, SERIES),
    (gluon, "Conv1DTranspose", "Gluon_Imperative_Conv1DTranspose", BOTH, SERIES),
    (gluon, "MaxPool1D", "Gluon_Imperative_MaxPool1D", BOTH, SERIES),
    (gluon, "MaxPool2D", "Gluon_Imperative_MaxPool2D", BOTH, IMAGES),
    (gluon, "AvgPool1D", "Gluon_Imperative_AvgPool1D", BOTH, SERIES),
    (gluon, "AvgPool2D", "Gluon_Imperative_AvgPool2D", BOTH, IMAGES),
    (gluon, "GlobalMaxPool1D", "Gluon_Imperative_GlobalMaxPool1D", BOTH, SERIES),
    (gluon, "GlobalMaxPool2D", "Gluon_Imperative_GlobalMaxPool2D", BOTH, IMAGES),
    (gluon, "GlobalAvgPool1D", "Gluon_Imperative_GlobalAvgPool1D", BOTH, SERIES),
    (gluon, "GlobalAvgPool2D", "Gluon_Imperative_GlobalAvgPool2D", BOTH, IMAGES),
    (gluon, "L1Loss", "Gluon_Imperative_L1Loss", FORWARD, LOSS),
    (gluon, "L2Loss", "Gluon_Imperative_L2Loss", FORWARD, LOSS),
    (gluon, "SigmoidBinaryCrossEntropyLoss", "Gluon_Imperative_SigmoidBinaryCrossEntropyLoss", FORWARD, LOSS),
    (gluon, "SoftmaxCrossEntropyLoss", "Gluon_Imperative_SoftmaxCrossEntropyLoss", FORWARD, LOSS),
    (gluon, "Dropout", "Gluon_Imperative_Dropout", BOTH, IMAGES),
    (gluon, "BatchNorm", "Gluon_Imperative_BatchNorm", BOTH, IMAGES),
    (gluon, "RNN", "Gluon_Imperative_RNN", BOTH, SEQUENCE),
    (gluon, "LSTM", "Gluon_Imperative_LSTM", BOTH, SEQUENCE),
    (gluon, "GRU", "Gluon_Imperative_GRU", BOTH, SEQUENCE),
    (custom, "CustomOpElementwiseAdd", "CustomOp_Elementwise_Add", BOTH, {"data": (10, 1)}),
)
"""Each class of the original with the name of its result, what it runs, and small inputs."""


def test_there_are_all_classes_of_the_original() -> None:
    assert len(CLASSES) == 73
    names = {name for _, name, *_ in CLASSES}
    assert names <= set(pytorch.__all__)
    assert {name for module in (nd, gluon, custom) for name in module.__all__ if name[0].isupper()} == names


ORIGINAL_FUNCTIONS = [
    "run_all_arithmetic_operations_benchmarks",
    "run_all_comparison_operations_benchmarks",
    "run_all_exponential_and_log_operations_benchmarks",
    "run_all_gemm_operations_benchmarks",
    "run_all_gluon_nn_activation_operations_benchmarks",
    "run_all_gluon_nn_basic_operations_benchmarks",
    "run_all_gluon_nn_convolution_operations_benchmarks",
    "run_all_gluon_nn_loss_operations_benchmarks",
    "run_all_gluon_nn_pooling_operations_benchmarks",
    "run_all_gluon_normalization_operations_benchmarks",
    "run_all_gluon_recurrent_operations_benchmarks",
    "run_all_logical_comparison_operations_benchmarks",
    "run_all_powers_operations_benchmarks",
    "run_all_sort_and_search_operations_benchmarks",
    "run_all_tensor_creation_operations_benchmarks",
    "run_customop_operations_benchmarks",
]
ORIGINAL_OPTIONS = ("--ctx", "--dtype", "--output-format", "--output-file")
"""Of the original's program in its last version; ``benchmark_driver.py``, its first name, had none."""


def test_each_class_function_and_option_of_the_original_has_its_line_on_the_page() -> None:
    page = (Path(__file__).parents[2] / "docs" / "operators-classes.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| `[\w.]+\.(\w+)` \| `\w+` \| .+ \| `(\w+)` \|$", page, re.MULTILINE)

    assert sorted(name for name, _ in rows) == sorted(name for _, name, *_ in CLASSES)
    assert sorted({function for _, function in rows}) == ORIGINAL_FUNCTIONS
    for option in ORIGINAL_OPTIONS:
        assert re.search(rf"^\| `opperf.py {option}\b.*agent op run --?\w", page, re.MULTILINE), option
    assert re.search(r"^\| `benchmark_driver.py`, which has no options \|", page, re.MULTILINE)


@pytest.mark.parametrize(
    ("module", "name", "result", "passes", "small"), CLASSES, ids=[name for _, name, *_ in CLASSES]
)
def test_a_class_runs_in_mxnet_and_prints_the_original_line(module, name, result, passes, small, capsys):
    benchmark = getattr(module, name)(warmup=1, runs=2, inputs=small)

    benchmark.run_benchmark()
    benchmark.print_benchmark_results()

    assert list(benchmark.get_benchmark_results()) == [f"MX_{result}_{passes}_Time"]
    assert re.fullmatch(LINE, capsys.readouterr().out.rstrip("\n"))


WITHOUT_GRADIENT = re.compile("Lesser|Greater|Equal|Logical")


@pytest.mark.parametrize(
    ("module", "name", "result", "passes", "small"), CLASSES, ids=[name for _, name, *_ in CLASSES]
)
def test_the_same_class_runs_in_pytorch(module, name, result, passes, small, capsys):
    benchmark = getattr(pytorch, name)(warmup=0, runs=1, inputs=small)

    benchmark.run_benchmark()
    benchmark.print_benchmark_results()

    ran = FORWARD if WITHOUT_GRADIENT.search(result) else passes
    short = result.removeprefix("Gluon_Imperative_")
    assert list(benchmark.get_benchmark_results()) == [f"PT_{short}_{ran}_Time"]
    assert re.fullmatch(LINE, capsys.readouterr().out.rstrip("\n"))
    assert benchmark.inputs.keys() == getattr(module, name)().inputs.keys()


def test_exactly_the_runs_that_are_asked_for_follow_exactly_the_warm_up(monkeypatch):
    ran = []
    gradients = torch.autograd.grad

    def counted(*arguments: Any, **options: Any) -> Any:
        ran.append(None)
        return gradients(*arguments, **options)

    monkeypatch.setattr(torch.autograd, "grad", counted)
    benchmark = pytorch.Add(warmup=3, runs=5, inputs=PAIR)

    benchmark.run_benchmark()

    assert len(ran) == 8
    assert len(benchmark.times_ns) == 5
    [seconds] = benchmark.get_benchmark_results().values()
    assert seconds == pytest.approx(benchmark.times_ns.mean() / 1e9)


def test_the_inputs_are_the_defaults_with_what_was_changed():
    changed = nd.Add(inputs={"dtype": "float64"}).inputs
    unchanged = nd.Add().inputs

    assert list(changed) == ["lhs", "rhs", "initializer", "run_backward", "dtype"]
    assert (changed["lhs"], changed["run_backward"], changed["dtype"]) == ((1024, 1024), True, "float64")
    assert repr(changed["initializer"]).startswith("<function normal at ")
    assert unchanged["dtype"] == "float32"
    assert (nd.Add().warmup, nd.Add().runs) == (10, 50)
    assert (gluon.Conv2D().warmup, gluon.Conv2D().runs) == (5, 25)


@pytest.mark.parametrize(
    ("inputs", "said"),
    [
        (
            {"dtyp": "float64"},
            'Add: unknown input "dtyp"; the inputs are lhs, rhs, initializer, run_backward',
        ),
        ({"dtype": "float7"}, 'unknown dtype "float7"'),
        ({"lhs": "large"}, "give a shape such as"),
        ({"lhs": (0, 3), "rhs": (0, 3)}, "sizes must be 1 or more"),
    ],
)
def test_a_wrong_input_is_a_value_error(inputs, said):
    with pytest.raises(ValueError, match=re.escape(said)):
        nd.Add(inputs=inputs)


def test_an_input_that_an_operator_fixes_cannot_be_changed():
    with pytest.raises(ValueError, match="layout is 'NCHW' and cannot be 'NHWC'"):
        gluon.nn.Conv2D(inputs={"layout": "NHWC"})
    with pytest.raises(ValueError, match=r"label has the shape \(3, 1\)"):
        gluon.loss.L1Loss(inputs={"pred": (4, 1), "label": (3, 1)})


@pytest.mark.parametrize("module", [gluon, pytorch])
def test_only_a_pooling_has_strides_of_its_window_where_none_are_given(module):
    assert module.MaxPool2D(inputs={"pool_size": (4, 4), "strides": None}).inputs["strides"] is None
    with pytest.raises(ValueError, match="Conv2D: operator conv2d: the sizes do not fit"):
        module.Conv2D(inputs={"strides": None})


def test_a_name_is_made_once_and_an_unknown_one_is_none_of_the_module():
    assert gluon.Dense is gluon.nn.Dense
    assert gluon.Dense is not pytorch.Dense
    assert pickle.loads(pickle.dumps(pytorch.Dense)) is pytorch.Dense
    assert gluon.nn.Dense.__doc__ == "A dense layer."
    with pytest.raises(AttributeError, match="has no attribute 'Dense'"):
        _ = nd.Dense


def test_values_come_from_an_array_or_an_initializer():
    filled = []

    def counting(shape, dtype):
        filled.append((shape, dtype))
        return np.ones(shape, dtype)

    given = {"lhs": np.zeros((3, 4)), "rhs": (3, 4), "initializer": counting, "dtype": "float64"}
    pytorch.Add(warmup=0, runs=1, inputs=given).run_benchmark()
    pytorch.Add(warmup=0, runs=1, inputs={**PAIR, "initializer": torch.randn}).run_benchmark()

    assert filled == [((3, 4), "float64")]
    with pytest.raises(ValueError, match=r"initializer .* failed for the shape"):
        pytorch.Add(inputs={**PAIR, "initializer": lambda shape: None}).run_benchmark()


@pytest.mark.parametrize("ctx", ["cpu", "cpu(0)", torch.device("cpu"), None])
def test_a_device_is_a_text_or_that_of_a_framework(ctx):
    pytorch.Add(ctx, 0, 1, PAIR).run_benchmark()


def test_a_wrong_device_or_number_of_runs_is_refused():
    with pytest.raises(ValueError, match='unknown ctx "tpu"'):
        nd.Add(ctx="tpu")
    with pytest.raises(ValueError, match="runs 1 or more"):
        nd.Add(runs=0)
    with pytest.raises(ValueError, match="PyTorch has no gradient"):
        _ran(pytorch.Equal(inputs={**PAIR, "run_backward": True}))


def _ran(benchmark: Any) -> Any:
    try:
        benchmark.run_benchmark()
    except Exception as error:
        raise ValueError(str(error)) from error
    return benchmark


def test_without_results_it_says_so(capsys):
    nd.Add().print_benchmark_results()

    assert capsys.readouterr().out == "Add: no results; call run_benchmark first\n"
    assert nd.Add().get_benchmark_results() == {}


@pytest.mark.parametrize(("of", "prefix"), [(nd, "MX"), (pytorch, "PT")])
def test_a_group_runs_without_arguments_and_prints_a_line_for_each(of, prefix, capsys):
    found = of.run_all_arithmetic_operations_benchmarks(warmup=0, runs=1)

    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == len(found) == 12
    assert all(re.fullmatch(LINE, line) and line.startswith(prefix) for line in lines)
    assert [line.partition(" - ")[0] for line in lines] == [name for each in found for name in each]


def test_the_others_of_a_group_go_on_where_one_fails(capsys, caplog):
    found = pytorch.run_all_gemm_operations_benchmarks("cpu", {"dtype": "bool"}, warmup=0, runs=1)

    assert found == [{}, {}]
    assert capsys.readouterr().out == ""
    assert [record.message.partition(":")[0] for record in caplog.records] == ["Dot", "BatchDot"]
