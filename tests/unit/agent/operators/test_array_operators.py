"""The operators of matrices, reductions, indices and shapes: their costs, and the sizes that they refuse."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from inferometer.agent.frameworks.pytorch.operators.runner import PyTorchOperators
from inferometer.agent.operators.operator import Category, Preset, cotangents, operators
from inferometer.evaluators.kinds.operators.request import draw_inputs
from inferometer.manifests.errors import ConfigurationError

ARRANGING = (Category.REARRANGE, Category.JOIN_SPLIT, Category.INDEXING)


def flops(name, shapes, parameters=None):
    operator = operators()[name]
    case = operator.own_case(shapes, parameters or {})
    inputs = [np.ones(spec.shape) for spec in operator.tensors(case)]
    outputs = operator.reference(inputs, case.parameters)
    return operator.flops(case, [np.shape(each) for each in outputs])


@pytest.mark.parametrize(
    ("name", "shapes", "parameters", "expected"),
    [
        ("dot", {"lhs": (3, 5), "rhs": (5, 7)}, {}, 2 * 3 * 5 * 7),
        ("dot", {"lhs": (5, 3), "rhs": (5, 7)}, {"transpose_lhs": True}, 2 * 3 * 5 * 7),
        ("dot", {"lhs": (3, 5), "rhs": (7, 5)}, {"transpose_rhs": True}, 2 * 3 * 5 * 7),
        ("batch_dot", {"lhs": (4, 3, 5), "rhs": (4, 5, 7)}, {}, 4 * 2 * 3 * 5 * 7),
        ("gemm", {"lhs": (3, 5), "rhs": (5, 7)}, {}, 2 * 3 * 5 * 7),
        ("trsm", {"triangle": (4, 4), "data": (4, 6)}, {}, 4 * 4 * 6),
        ("sum", {"data": (6, 8)}, {}, 48),
        ("norm", {"data": (6, 8)}, {"ord": 1}, 96),
        ("transpose", {"data": (6, 8)}, {}, 0),
    ],
)
def test_an_operator_counts_its_operations(name, shapes, parameters, expected):
    assert flops(name, shapes, parameters) == expected


@pytest.mark.parametrize(
    ("name", "shapes", "parameters"),
    [
        ("dot", {"lhs": (3, 5), "rhs": (4, 7)}, {}),
        ("dot", {"lhs": (2, 3, 5), "rhs": (2, 5, 7)}, {}),
        ("batch_dot", {"lhs": (2, 3, 5), "rhs": (3, 5, 7)}, {}),
        ("khatri_rao", {"lhs": (3, 5), "rhs": (3, 6)}, {}),
        ("inverse", {"data": (4, 5)}, {}),
        ("make_triangle", {"data": (7,)}, {}),
        ("trsm", {"triangle": (4, 4), "data": (5, 2)}, {}),
        ("sum", {"data": (4, 5)}, {"axis": 2}),
        ("sum", {"data": (4, 5)}, {"axis": (0, 2)}),
        ("norm", {"data": (4, 5)}, {"ord": 3}),
        ("topk", {"data": (4, 5)}, {"k": 6}),
        ("index_copy", {"data": (4, 5), "source": (6, 5)}, {}),
        ("gather_nd", {"data": (4, 5), "indices": (3, 2)}, {}),
        ("slice", {"data": (4, 5)}, {"begin": (0, 0), "end": (5, 5)}),
        ("slice_axis", {"data": (4, 5)}, {"begin": 2, "end": 2}),
        ("slice_like", {"data": (4, 5), "like": (5, 5)}, {}),
        ("transpose", {"data": (4, 5)}, {"axes": (0, 0)}),
        ("reshape", {"data": (4, 5)}, {"shape": (3, -1)}),
        ("reshape", {"data": (4, 5)}, {"shape": (2, 5)}),
        ("squeeze", {"data": (4, 5)}, {"axis": 0}),
        ("broadcast_to", {"data": (4, 5)}, {"shape": (8, 5)}),
        ("broadcast_like", {"data": (4, 5), "like": (8, 5)}, {}),
        ("pad", {"data": (1, 1, 2, 2)}, {"mode": "reflect", "pad_width": (0, 0, 0, 0, 2, 2, 0, 0)}),
        ("pad", {"data": (1, 1, 2, 2)}, {"mode": "mirror"}),
        ("depth_to_space", {"data": (1, 6, 2, 2)}, {}),
        ("concat", {"data0": (4, 5), "data1": (3, 5), "data2": (4, 5)}, {}),
        ("split", {"data": (4, 5)}, {}),
        ("split_v2", {"data": (4, 5)}, {"indices": (3, 2)}),
    ],
)
def test_sizes_that_do_not_fit_are_refused(name, shapes, parameters):
    with pytest.raises(ConfigurationError, match=f"operator {name}: "):
        operators()[name].own_case(shapes, parameters)


@pytest.mark.parametrize(
    "name", [name for name in PyTorchOperators.table() if operators()[name].category in ARRANGING]
)
def test_pytorch_copies_what_it_could_return_as_a_view(name):
    operator = operators()[name]
    for case in operator.cases(Preset.SMALL):
        drawn = draw_inputs(operator, case, np.dtype(np.float32), 0)
        inputs = [torch.from_numpy(array) for array in drawn.values()]
        answer = PyTorchOperators.table()[name].make(case)(*inputs)
        for output in [answer] if isinstance(answer, torch.Tensor) else answer:
            assert output.is_contiguous()
            assert output.untyped_storage().data_ptr() not in {
                each.untyped_storage().data_ptr() for each in inputs
            }


def test_distinct_indices_are_distinct_and_within_the_limit():
    operator = operators()["index_copy"]
    case = operator.own_case({"data": (50, 2), "source": (50, 2)})
    indices = draw_inputs(operator, case, np.dtype(np.float32), 3)["indices"]
    assert sorted(indices) == list(range(50))


def test_a_mask_has_both_values():
    operator = operators()["where"]
    mask = draw_inputs(operator, operator.own_case({"data": (8, 8)}), np.dtype(np.float16), 0)["mask"]
    assert mask.dtype == np.bool_
    assert 0 < mask.sum() < mask.size


def test_a_tensor_without_axes_has_the_cotangent_of_one_element():
    assert cotangents(()).shape == ()
    assert cotangents(()) == cotangents((1,))[0]
