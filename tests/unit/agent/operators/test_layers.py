"""The sizes, the costs and the refusals of the operators that slide windows, normalize and recur."""

from __future__ import annotations

import numpy as np
import pytest

from inferometer.agent.operators.operator import Preset, operators
from inferometer.evaluators.kinds.operators.request import draw_inputs
from inferometer.manifests.errors import ConfigurationError


def computed(name, shapes, inputs=None, **parameters):
    operator = operators()[name]
    case = operator.own_case(shapes, parameters)
    drawn = draw_inputs(operator, case, np.dtype(np.float64), 0) if inputs is None else inputs
    return operator.reference(list(drawn.values()), case.parameters)[0], operator, case


def test_a_convolution_multiplies_the_window_by_the_weights():
    data = np.arange(9.0).reshape(1, 1, 3, 3)
    weight = np.array([[[[1.0, 0.0], [0.0, 10.0]]]])
    found, _, _ = computed(
        "conv2d", {"data": data.shape}, {"d": data, "w": weight}, channels=1, kernel=2, bias=False
    )
    assert found.tolist() == [[[[40.0, 51.0], [73.0, 84.0]]]]


def test_a_transposed_convolution_is_the_gradient_of_a_convolution():
    window = {"stride": (2, 1), "pad": (1, 0), "dilate": (1, 2), "groups": 2}
    random = np.random.default_rng(0)
    data, weight = random.standard_normal((2, 4, 7, 8)), random.standard_normal((6, 2, 3, 3))
    forward, _, _ = computed(
        "conv2d", {"data": data.shape}, {"d": data, "w": weight}, channels=6, bias=False, **window
    )
    other = random.standard_normal(forward.shape)
    backward, _, _ = computed(
        "conv2d_transpose",
        {"data": other.shape},
        {"d": other, "w": weight},
        channels=4,
        bias=False,
        output_pad=(0, 0),
        **window,
    )
    assert backward.shape == data.shape
    assert np.sum(forward * other) == pytest.approx(np.sum(backward * data))


def test_the_large_convolution_has_the_operations_of_its_products():
    operator = operators()["conv2d"]
    case = operator.cases(Preset.LARGE)[0]
    assert operator.flops(case, [(32, 32, 256, 256)]) == 38_654_705_664
    assert operator.backward_flops == 2.0


def test_a_depthwise_convolution_has_a_group_for_each_channel():
    found, operator, case = computed("depthwise_conv2d", {"data": (1, 8, 5, 5)})
    assert [spec.shape for spec in operator.tensors(case)] == [(1, 8, 5, 5), (8, 1, 3, 3), (8,)]
    assert operator.flops(case, [found.shape]) == 2 * found.size * 9


def test_one_number_stands_for_all_axes_of_a_window():
    operator = operators()["max_pool2d"]
    by_one, by_two = (
        operator.own_case({"data": (1, 2, 9, 9)}, {"kernel": kernel, "stride": 3}) for kernel in (3, (3, 3))
    )
    arrays = list(draw_inputs(operator, by_one, np.dtype(np.float32), 0).values())
    found = [operator.reference(arrays, case.parameters)[0] for case in (by_one, by_two)]
    assert found[0].shape == (1, 2, 3, 3)
    assert (found[0] == found[1]).all()


def test_boxes_lie_within_the_images_that_they_name():
    operator = operators()["roi_pool"]
    case = operator.own_case({"data": (3, 2, 20, 30), "rois": (50, 5)})
    rois = draw_inputs(operator, case, np.dtype(np.float32), 0)["rois"]
    assert set(rois[:, 0]) == {0.0, 1.0, 2.0}
    assert (rois[:, 1:3] <= rois[:, 3:5]).all()
    assert rois[:, 1:].min() >= 0
    assert rois[:, 1:].max() <= 20 / case["spatial_scale"]


@pytest.mark.parametrize(
    ("name", "shapes", "parameters", "message"),
    [
        ("conv2d", {"data": (1, 3, 2, 9)}, {}, "kernel"),
        ("conv2d", {"data": (1, 3, 9)}, {}, "3 axes"),
        ("conv2d", {"data": (1, 3, 9, 9)}, {"kernel": (3,)}, "1 axes"),
        ("conv2d", {"data": (1, 3, 9, 9)}, {"stride": 0}, "1 or more"),
        ("conv2d", {"data": (1, 3, 9, 9)}, {"groups": 2}, "2 groups"),
        ("conv2d_transpose", {"data": (1, 3, 9, 9)}, {"output_pad": 1}, "less than the stride"),
        ("conv1d_transpose", {"data": (1, 3, 2)}, {"pad": 3}, "removes the whole output"),
        ("avg_pool2d", {"data": (1, 3, 9, 9)}, {"pad": 2}, "half of the kernel"),
        ("adaptive_avg_pool2d", {"data": (1, 3, 9, 9)}, {"output": (0, 2)}, "1 or more"),
        ("roi_align", {"rois": (4, 4)}, {}, "two corners"),
        ("batch_norm", {"data": (3,)}, {}, "channels"),
        ("group_norm", {"data": (1, 4, 9)}, {"groups": 3}, "3 groups"),
        ("lrn", {}, {"size": 4}, "odd"),
        ("lstm", {"data": (25, 256)}, {}, "steps"),
        ("gru", {}, {"hidden": 0}, "1 or more"),
        ("gru", {}, {"hiden": 5}, 'did you mean "hidden"'),
    ],
)
def test_sizes_that_do_not_fit_are_refused(name, shapes, parameters, message):
    with pytest.raises(ConfigurationError, match=message):
        operators()[name].own_case(shapes, parameters)
