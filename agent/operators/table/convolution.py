"""Convolutions, also transposed ones, over one to three spatial axes: cross-correlations, channels first.

It defines the windows that convolutions and poolings slide over an image, and selects the data below each
window element.

A convolution requires a product and a sum for each output, kernel element and input channel of the group; a
transposed convolution requires them for each input, kernel element and output channel of the group. The bias
is not counted. The gradients with respect to the data and to the weights each require the same number.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import product
from math import prod
from typing import Any

import numpy as np
from numpy.typing import NDArray

from inferometer.agent.operators.operator import (
    Arrays,
    Case,
    Category,
    Operator,
    Parameters,
    Presets,
    Shape,
    TensorSpec,
    by_preset,
    sized,
)


@dataclass(frozen=True, slots=True)
class Window:
    """A window over the spatial axes; each attribute has one number per axis.

    ``stride`` is the step along the axis, ``pad`` the padding before and after it, and ``dilate`` the
    distance between the window's elements.
    """

    kernel: Shape
    stride: Shape
    pad: Shape
    dilate: Shape

    @classmethod
    def of(cls, parameters: Parameters, rank: int) -> Window:
        """Returns the window from an operator's parameters; a single number applies to all axes.

        By default, it has no padding, and a stride and a dilation of 1.

        Raises:
            ValueError: A parameter has the wrong number of axes.
        """
        return cls(*(_axes(parameters, name, rank) for name in ("kernel", "stride", "pad", "dilate")))

    @property
    def size(self) -> int:
        """The number of elements in the window."""
        return prod(self.kernel)

    @property
    def pads(self) -> Shape:
        """The padding before each axis, then the padding after each axis, as in ONNX."""
        return self.pad + self.pad

    def positions(self, sizes: Shape) -> Shape:
        """Returns the number of the window's positions along each axis of an image.

        Raises:
            ValueError: The image has a different number of axes, or is smaller than the window.
        """
        if len(sizes) != len(self.kernel):
            raise ValueError(
                f"data has {len(sizes)} spatial axes, but the operator slides over {len(self.kernel)}"
            )
        found = tuple(
            (size + 2 * pad - dilate * (kernel - 1) - 1) // stride + 1
            for size, kernel, stride, pad, dilate in zip(
                sizes, self.kernel, self.stride, self.pad, self.dilate, strict=True
            )
        )
        if min(found) < 1:
            raise ValueError(f"the kernel {self.kernel} is larger than the padded data of {sizes}")
        return found

    def padded(self, data: NDArray[Any], value: float = 0.0) -> NDArray[Any]:
        """Returns data of shape (…, spatial axes) with the padding added."""
        around = [(0, 0)] * (data.ndim - len(self.pad)) + [(pad, pad) for pad in self.pad]
        return np.pad(data, around, constant_values=value) if any(self.pad) else data

    def parts(self, padded: NDArray[Any], positions: Shape) -> Iterator[NDArray[Any]]:
        """Yields, for each window element in C order, a view of the data below it at all positions."""
        for offset in product(*(range(size) for size in self.kernel)):
            starts = [o * dilate for o, dilate in zip(offset, self.dilate, strict=True)]
            over: list[Any] = [
                ...,
                *(
                    slice(start, start + stride * (count - 1) + 1, stride)
                    for start, stride, count in zip(starts, self.stride, positions, strict=True)
                ),
            ]
            yield padded[tuple(over)]


def _axes(parameters: Parameters, name: str, rank: int) -> Shape:
    least = 0 if name == "pad" else 1
    value = parameters.get(name, least)
    axes = value if isinstance(value, tuple) else (int(value),) * rank
    if len(axes) != rank:
        raise ValueError(f"{name} has {len(axes)} axes, but the operator has {rank}")
    if min(axes) < least:
        raise ValueError(f"{name} is {axes}; each number must be {least} or more")
    return axes


def window_of(case: Case) -> Window:
    """Returns the window of a case."""
    return Window.of(case.parameters, len(case.shapes["data"]) - 2)


def pair_of(case: Case, name: str) -> tuple[int, int]:
    """Returns a parameter for height and width; a single number applies to both."""
    return pair(case.parameters, name)


def pair(parameters: Parameters, name: str) -> tuple[int, int]:
    """Returns the named parameter for height and width; see ``pair_of``."""
    value = parameters[name]
    height, width = value if isinstance(value, tuple) else (value, value)
    if min(height, width) < 1:
        raise ValueError(f"{name} is {value}; each number must be 1 or more")
    return height, width


def groups_of(case: Case) -> int:
    """Returns the number of groups; a depth-wise convolution has one per channel."""
    return int(case["groups"]) if "groups" in case.parameters else case.shapes["data"][1]


def channels_of(case: Case) -> int:
    """Returns the number of output channels; a depth-wise convolution has as many as input channels."""
    return int(case["channels"]) if "channels" in case.parameters else case.shapes["data"][1]


def output_pad_of(case: Case) -> Shape:
    """Returns the size that a transposed convolution adds at the end of each spatial output axis."""
    return _added(case.parameters, window_of(case))


def _tensors(rank: int, transposed: bool, case: Case) -> tuple[TensorSpec, ...]:
    data = case.shapes["data"]
    if len(data) != rank + 2:
        raise ValueError(f"data has {len(data)} axes; it must have samples, channels and {rank} spatial ones")
    window, groups, channels = window_of(case), groups_of(case), channels_of(case)
    if groups < 1 or data[1] % groups or channels % groups:
        raise ValueError(f"{groups} groups do not divide both {data[1]} and {channels} channels")
    if transposed:
        weight = (data[1], channels // groups, *window.kernel)
        if min(_grown(window, data[2:], case.parameters)) < 1:
            raise ValueError(f"the padding {window.pad} removes the whole output")
    else:
        weight = (channels, data[1] // groups, *window.kernel)
        window.positions(data[2:])
    scale = (data[1] // groups * window.size) ** -0.5
    bias = (TensorSpec("bias", (channels,)),) if case["bias"] else ()
    return (TensorSpec("data", data), TensorSpec("weight", weight, scale=scale), *bias)


def _convolved(rank: int, arrays: Arrays, parameters: Parameters) -> Arrays:
    """Returns a matrix product for each sample: the weights times the data at all kernel offsets."""
    data, weight = arrays[:2]
    window = Window.of(parameters, rank)
    return (_biased(_products(window.padded(data), weight, window), arrays[2:]),)


def _transposed(rank: int, arrays: Arrays, parameters: Parameters) -> Arrays:
    """Returns a convolution with the mirrored kernel of the data, spread by the stride with zeros in between.

    See Dumoulin and Visin, "A guide to convolution arithmetic for deep learning" (2016), chapter 4.
    """
    data, weight = arrays[:2]
    window = Window.of(parameters, rank)
    sizes, groups = data.shape[2:], int(parameters["groups"])
    grown, added = _grown(window, sizes, parameters), _added(parameters, window)
    reach = tuple(d * (k - 1) for k, d in zip(window.kernel, window.dilate, strict=True))
    steps = tuple((size - 1) * stride + 1 for size, stride in zip(sizes, window.stride, strict=True))
    spread = np.zeros(
        (*data.shape[:2], *(n + 2 * r + a for n, r, a in zip(steps, reach, added, strict=True)))
    )
    among: list[Any] = [
        ...,
        *(slice(r, r + n, s) for r, n, s in zip(reach, steps, window.stride, strict=True)),
    ]
    spread[tuple(among)] = data
    mirrored = np.flip(weight, tuple(range(2, weight.ndim)))
    by_group = mirrored.reshape(groups, -1, *mirrored.shape[1:]).swapaxes(1, 2)
    ones, zeros = (1,) * rank, (0,) * rank
    whole = _products(
        spread, by_group.reshape(-1, *by_group.shape[2:]), Window(window.kernel, ones, zeros, window.dilate)
    )
    inner: list[Any] = [..., *(slice(pad, pad + size) for pad, size in zip(window.pad, grown, strict=True))]
    return (_biased(whole[tuple(inner)], arrays[2:]),)


def _products(padded: NDArray[Any], weight: NDArray[Any], window: Window) -> NDArray[Any]:
    positions = Window(window.kernel, window.stride, (0,) * len(window.pad), window.dilate).positions(
        padded.shape[2:]
    )
    groups = padded.shape[1] // weight.shape[1]
    matrix = weight.reshape(groups, weight.shape[0] // groups, -1)
    output = np.empty((len(padded), *matrix.shape[:2], prod(positions)))
    columns = np.empty((padded.shape[1], window.size, *positions))
    for sample, result in zip(padded, output, strict=True):
        for index, part in enumerate(window.parts(sample, positions)):
            columns[:, index] = part
        np.matmul(matrix, columns.reshape(groups, matrix.shape[2], -1), out=result)
    return output.reshape(len(padded), -1, *positions)


def _biased(output: NDArray[Any], bias: Arrays) -> NDArray[Any]:
    for each in bias:
        output += each.reshape(-1, *(1 for _ in output.shape[2:]))
    return output


def _grown(window: Window, sizes: Shape, parameters: Parameters) -> Shape:
    return tuple(
        (size - 1) * stride - 2 * pad + dilate * (kernel - 1) + 1 + extra
        for size, kernel, stride, pad, dilate, extra in zip(
            sizes,
            window.kernel,
            window.stride,
            window.pad,
            window.dilate,
            _added(parameters, window),
            strict=True,
        )
    )


def _added(parameters: Parameters, window: Window) -> Shape:
    more = parameters["output_pad"]
    added = more if isinstance(more, tuple) else (int(more),) * len(window.kernel)
    if len(added) != len(window.stride) or any(
        not 0 <= extra < stride for extra, stride in zip(added, window.stride, strict=True)
    ):
        raise ValueError(f"output_pad is {added}; each number must be less than the stride {window.stride}")
    return added


def _flops(case: Case, outputs: Sequence[Shape]) -> int:
    channels = case.shapes["data"][1] // groups_of(case)
    return 2 * prod(outputs[0]) * window_of(case).size * channels


def _transposed_flops(case: Case, outputs: Sequence[Shape]) -> int:
    data = case.shapes["data"]
    return 2 * prod(data) * window_of(case).size * channels_of(case) // groups_of(case)


def _operator(name: str, rank: int, summary: str, presets: Presets, **changed: Any) -> Operator:
    transposed = name.endswith("transpose")
    slides = {"kernel": (3,) * rank, "stride": (1,) * rank, "pad": (0,) * rank, "dilate": (1,) * rank}
    layout: dict[str, Any] = {} if name.startswith("depthwise") else {"channels": 64, "groups": 1}
    reference: Callable[..., Arrays] = _transposed if transposed else _convolved
    return Operator(
        name=name,
        category=Category.CONVOLUTION,
        summary=summary,
        tensors=partial(_tensors, rank, transposed),
        presets=presets,
        parameters={
            **layout,
            **slides,
            **({"output_pad": (0,) * rank} if transposed else {}),
            "bias": True,
            **changed,
        },
        reference=partial(reference, rank),
        flops=_transposed_flops if transposed else _flops,
        backward_flops=2.0,
    )


_ONE = (sized(32, 3, 256), sized(32, 64, 1024, pad=(1,)), sized(32, 3, 10000), sized(1, 256, 10, pad=(1,)))
_TALL = sized(32, 3, 10000, 10)


def _correlated(case: Case) -> tuple[TensorSpec, ...]:
    if min(_shifted(case.shapes["data1"], case.parameters)) < 1 or case["kernel_size"] % 2 == 0:
        raise ValueError("kernel_size must be odd, and the displaced kernel fit into the padded images")
    return TensorSpec("data1", case.shapes["data1"]), TensorSpec("data2", case.shapes["data1"])


def _shifted(shape: Shape, given: Parameters) -> list[int]:
    border = given["max_displacement"] + given["kernel_size"] // 2 - given["pad_size"]
    return [(size - 2 * border - 1) // given["stride1"] + 1 for size in shape[2:]]


def _correlation(arrays: Arrays, given: Parameters) -> Arrays:
    """Returns the means of products of patches (Dosovitskiy et al., "FlowNet", 2015)."""
    reach, stride, kernel = given["max_displacement"], given["stride1"], range(given["kernel_size"])
    around = ((0, 0), (0, 0), *((given["pad_size"],) * 2,) * 2)
    one, two = (np.pad(array, around) for array in arrays)
    sizes = [stride * size for size in _shifted(arrays[0].shape, given)]

    def patches(array: NDArray[Any], *places: int) -> NDArray[Any]:
        down, across = (slice(at, at + size, stride) for at, size in zip(places, sizes, strict=True))
        return array[:, :, down, across]

    places = [(reach + y, reach + x) for y, x in product(kernel, kernel)]
    steps = range(-(reach // given["stride2"]), reach // given["stride2"] + 1)
    found = [
        sum(patches(one, y, x) * patches(two, y + down, x + across) for y, x in places).mean(1)
        for down, across in product([given["stride2"] * step for step in steps], repeat=2)
    ]
    return (np.stack(found, 1) / len(kernel) ** 2,)


OPERATORS = (
    _operator(
        "conv1d",
        1,
        "convolution over one axis",
        by_preset(
            [
                sized(2, 4, 20, channels=6, stride=(2,), pad=(1,), groups=2),
                sized(2, 3, 20, channels=4, dilate=(2,), bias=False),
            ],
            *_ONE,
        ),
    ),
    _operator(
        "conv2d",
        2,
        "convolution over two axes",
        by_preset(
            [
                sized(2, 4, 9, 8, channels=6, stride=(2, 1), pad=(1, 0), groups=2),
                sized(2, 3, 8, 8, channels=4, dilate=(1, 2), bias=False),
            ],
            sized(32, 3, 256, 256),
            [
                sized(32, 32, 256, 256, channels=32, pad=(1, 1), bias=False),  # Compute Canada's example
                sized(32, 256, 56, 56, channels=256, kernel=(1, 1), bias=False),
            ],
            _TALL,
            sized(1, 512, 7, 7, channels=512, pad=(1, 1), bias=False),
        ),
    ),
    _operator(
        "conv3d",
        3,
        "convolution over three axes",
        by_preset(
            [
                sized(2, 2, 5, 6, 4, channels=4, pad=(1, 0, 1)),
                sized(1, 4, 6, 5, 5, channels=4, stride=(2, 1, 1), groups=2, bias=False),
            ],
            sized(2, 3, 16, 112, 112),
            sized(8, 64, 8, 28, 28, pad=(1, 1, 1)),
            sized(2, 3, 1000, 10, 10),
        ),
    ),
    _operator(
        "depthwise_conv2d",
        2,
        "depth-wise convolution over two axes",
        by_preset(
            [sized(2, 4, 9, 8), sized(2, 3, 8, 8, stride=(2, 2), bias=False)],
            sized(32, 32, 112, 112),
            sized(32, 144, 112, 112),
            sized(8, 32, 10000, 10),
            sized(1, 1024, 7, 7),
        ),
        pad=(1, 1),
    ),
    _operator(
        "conv1d_transpose",
        1,
        "transposed convolution over one axis",
        by_preset(
            [
                sized(2, 4, 10, channels=6, stride=(2,), pad=(1,), output_pad=(1,), groups=2),
                sized(2, 3, 10, channels=4, bias=False),
            ],
            *_ONE,
        ),
    ),
    _operator(
        "conv2d_transpose",
        2,
        "transposed convolution over two axes",
        by_preset(
            [
                sized(2, 4, 6, 5, channels=6, stride=(2, 1), pad=(1, 0), output_pad=(1, 0), groups=2),
                sized(2, 3, 6, 6, channels=4, bias=False),
            ],
            sized(32, 3, 256, 256),
            sized(16, 64, 64, 64, kernel=(4, 4), stride=(2, 2), pad=(1, 1)),
            _TALL,
        ),
    ),
    _operator(
        "conv3d_transpose",
        3,
        "transposed convolution over three axes",
        by_preset(
            [
                sized(2, 2, 4, 5, 4, channels=4, stride=(2, 1, 2), pad=(1, 1, 0)),
                sized(1, 4, 4, 5, 4, channels=4, groups=2, bias=False),
            ],
            sized(2, 3, 8, 56, 56),
            sized(4, 32, 8, 28, 28, channels=32, stride=(2, 2, 2), pad=(1, 1, 1)),
            sized(2, 3, 1000, 10, 10),
        ),
    ),
    Operator(
        name="correlation",
        category=Category.CONVOLUTION,
        summary="the products of patches of two images, displaced against each other",
        given=("data1",),
        tensors=_correlated,
        presets=by_preset(
            ({"data1": (2, 3, 8, 9)}, {}),
            ({"data1": (8, 16, 64, 64)}, {}),
            ({"data1": (8, 64, 64, 64)}, {"kernel_size": 1, "pad_size": 2}),
            ({"data1": (2, 3, 1000, 10)}, {"stride1": 2, "stride2": 2}),
        ),
        parameters={"kernel_size": 3, "max_displacement": 2, "stride1": 1, "stride2": 1, "pad_size": 3},
        reference=_correlation,
        flops=lambda case, outputs: (
            2 * prod(outputs[0]) * case.shapes["data1"][1] * int(case["kernel_size"]) ** 2
        ),
        backward_flops=2.0,
    ),
)
