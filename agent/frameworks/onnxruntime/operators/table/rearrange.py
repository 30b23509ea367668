"""What moves, joins and splits elements in ONNX."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import onnx

from inferometer.agent.frameworks.onnxruntime.operators.graphs import Form, Graph, node
from inferometer.agent.operators.operator import Case

_ENDS = np.iinfo(np.int64)
_JOINED = ("data0", "data1", "data2")


def _with_tensor(kind: str, values: Callable[[Case], Sequence[int]]) -> Form:
    """An operator that takes numbers, such as axes, as its second input."""
    return Form(
        kind,
        lambda case, _: Graph(
            [node(kind, "data", "numbers")], constants={"numbers": np.array(values(case), np.int64)}
        ),
    )


def _with_shape(kind: str) -> Form:
    """An operator that takes the shape of the input ``like``."""
    nodes = [node("Shape", "like", output="shape"), node(kind, "data", "shape")]
    return Form(f"Shape {kind}", lambda _case, _dtype: Graph(nodes))


def _swap(case: Case, _: np.dtype[Any]) -> Graph:
    order = list(range(len(case.shapes["data"])))
    first, second = case["dim1"], case["dim2"]
    order[first], order[second] = order[second], order[first]
    return Graph([node("Transpose", "data", perm=order)])


def _flip(case: Case, _: np.dtype[Any]) -> Graph:
    numbers = {"begin": [-1], "end": [_ENDS.min], "axes": [case["axis"]], "steps": [-1]}
    return Graph(
        [node("Slice", "data", *numbers)],
        constants={name: np.array(value, np.int64) for name, value in numbers.items()},
    )


def _repeat(case: Case, _: np.dtype[Any]) -> Graph:
    """A new axis after the one that is repeated is expanded, and the two are joined."""
    shape, times = list(case.shapes["data"]), case["repeats"]
    axis = case["axis"] % len(shape)
    expanded = [*shape[: axis + 1], times, *shape[axis + 1 :]]
    whole = [*shape[:axis], shape[axis] * times, *shape[axis + 1 :]]
    numbers = {"axes": [axis + 1], "expanded": expanded, "whole": whole}
    return Graph(
        [
            node("Unsqueeze", "data", "axes", output="apart"),
            node("Expand", "apart", "expanded", output="repeated"),
            node("Reshape", "repeated", "whole"),
        ],
        constants={name: np.array(value, np.int64) for name, value in numbers.items()},
    )


def _pad(case: Case, dtype: np.dtype[Any]) -> Graph:
    width = case["pad_width"]
    return Graph(
        [node("Pad", "data", "pads", "value", mode=case["mode"])],
        constants={
            "pads": np.array([*width[::2], *width[1::2]], np.int64),
            "value": np.array(case["value"], dtype),
        },
    )


def _broadcast_shape(case: Case) -> list[int]:
    shape = list(case.shapes["data"])
    shape[case["axis"]] = case["size"]
    return shape


def _split(case: Case, sizes: Sequence[int]) -> Graph:
    outputs = [f"output{number}" for number in range(len(sizes))]
    made = onnx.helper.make_node("Split", ["data", "sizes"], outputs, axis=case["axis"])
    return Graph([made], outputs, {"sizes": np.array(sizes, np.int64)})


def _split_evenly(case: Case, _: np.dtype[Any]) -> Graph:
    parts = case["num_outputs"]
    return _split(case, [case.shapes["data"][case["axis"]] // parts] * parts)


def _split_at(case: Case, _: np.dtype[Any]) -> Graph:
    return _split(case, np.diff((0, *case["indices"], case.shapes["data"][case["axis"]])).tolist())


def _stack(case: Case, _: np.dtype[Any]) -> Graph:
    """ONNX stacks what is in a sequence, and no tensors."""
    apart = [node("Unsqueeze", name, "axes", output=f"{name}_apart") for name in _JOINED]
    joined = node("Concat", *(f"{name}_apart" for name in _JOINED), axis=case["axis"])
    return Graph([*apart, joined], constants={"axes": np.array([case["axis"]], np.int64)})


GRAPHS: Mapping[str, Form] = {
    "transpose": Form("Transpose", lambda case, _: Graph([node("Transpose", "data", perm=case["axes"])])),
    "swapaxes": Form("Transpose", _swap),
    "reshape": _with_tensor("Reshape", lambda case: case["shape"]),
    "reshape_like": _with_shape("Reshape"),
    "expand_dims": _with_tensor("Unsqueeze", lambda case: [case["axis"]]),
    "squeeze": _with_tensor("Squeeze", lambda case: [case["axis"]]),
    "flip": Form("Slice", _flip),
    "tile": _with_tensor("Tile", lambda case: case["reps"]),
    "repeat": Form("Unsqueeze Expand Reshape", _repeat),
    "pad": Form("Pad", _pad),
    "broadcast_to": _with_tensor("Expand", lambda case: case["shape"]),
    "broadcast_axis": _with_tensor("Expand", _broadcast_shape),
    "broadcast_like": _with_shape("Expand"),
    "depth_to_space": Form(
        "DepthToSpace",
        lambda case, _: Graph(
            [node("DepthToSpace", "data", blocksize=case["block_size"], mode="DCR")],
        ),
    ),
    "space_to_depth": Form(
        "SpaceToDepth",
        lambda case, _: Graph([node("SpaceToDepth", "data", blocksize=case["block_size"])]),
    ),
    # with the shape in the graph, ONNX Runtime makes constants of them
    "shape_array": Form("Shape", lambda *_: Graph([node("Shape", "data")], any_shape=True)),
    "size_array": Form("Size", lambda *_: Graph([node("Size", "data")], any_shape=True)),
    "concat": Form("Concat", lambda case, _: Graph([node("Concat", *_JOINED, axis=case["axis"])])),
    "stack": Form("Unsqueeze Concat", _stack),
    "split": Form("Split", _split_evenly),
    "split_v2": Form("Split", _split_at),
}
MISSING: Mapping[str, str] = {}
