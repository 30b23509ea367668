"""What moves, joins and splits elements in PyTorch.

Where PyTorch would return a view, the function that copies stands: ``torch.permute_copy`` for
``torch.permute``. Their outputs are contiguous.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from itertools import pairwise
from typing import Any

import torch

from inferometer.agent.frameworks.pytorch.operators.functions import Form, Function
from inferometer.agent.operators.operator import Case

_MODES = {"constant": "constant", "edge": "replicate", "reflect": "reflect"}


def _pad(case: Case) -> Function:
    """PyTorch's widths begin with the last axis; those of the first two axes are 0."""
    top, bottom, left, right = case["pad_width"][4:]
    mode = _MODES[case["mode"]]
    value = {"value": case["value"]} if mode == "constant" else {}
    return partial(torch.nn.functional.pad, pad=(left, right, top, bottom), mode=mode, **value)


def _blocks_apart(case: Case) -> Function:
    """PyTorch's pixel_shuffle has the block's axes last in the channels, so that this is no case of it."""
    n, c, h, w = case.shapes["data"]
    size = case["block_size"]
    apart = (n, size, size, c // size**2, h, w)
    whole = (n, c // size**2, h * size, w * size)
    return lambda data: torch.permute_copy(data.view(apart), (0, 3, 4, 1, 5, 2)).view(whole)


def _blocks_joined(case: Case) -> Function:
    n, c, h, w = case.shapes["data"]
    size = case["block_size"]
    apart = (n, c, h // size, size, w // size, size)
    whole = (n, c * size**2, h // size, w // size)
    return lambda data: torch.permute_copy(data.view(apart), (0, 3, 5, 1, 2, 4)).view(whole)


def _expanded(case: Case) -> Function:
    shape = list(case.shapes["data"])
    shape[case["axis"]] = case["size"]
    return lambda data: torch.expand_copy(data, shape)


def _split(case: Case) -> Function:
    size = case.shapes["data"][case["axis"]] // case["num_outputs"]
    return partial(torch.split_copy, split_size=size, dim=case["axis"])


def _split_at(case: Case) -> Function:
    bounds = (0, *case["indices"], case.shapes["data"][case["axis"]])
    sizes = [high - low for low, high in pairwise(bounds)]
    return partial(torch.split_with_sizes_copy, split_sizes=sizes, dim=case["axis"])


def _listed(function: Callable[..., Any], case: Case) -> Function:
    return lambda *data: function(data, dim=case["axis"])


FUNCTIONS: Mapping[str, Form] = {
    "transpose": Form(
        "torch.permute_copy",
        lambda case: partial(torch.permute_copy, dims=case["axes"]),
        ("permute_copy", "permute", "t", "t_copy"),
    ),
    "swapaxes": Form(
        "torch.transpose_copy",
        lambda case: partial(torch.transpose_copy, dim0=case["dim1"], dim1=case["dim2"]),
        ("transpose_copy", "transpose", "swapaxes", "swapdims"),
    ),
    "reshape": Form(
        "torch.view_copy",
        lambda case: partial(torch.view_copy, size=case["shape"]),
        ("view_copy", "view", "reshape"),
    ),
    "reshape_like": Form(
        "torch.view_copy",
        lambda _: lambda data, like: torch.view_copy(data, like.shape),
        ("view_copy", "view_as", "reshape_as"),
    ),
    "expand_dims": Form(
        "torch.unsqueeze_copy",
        lambda case: partial(torch.unsqueeze_copy, dim=case["axis"]),
        ("unsqueeze_copy", "unsqueeze"),
    ),
    "squeeze": Form(
        "torch.squeeze_copy",
        lambda case: partial(torch.squeeze_copy, dim=case["axis"]),
        ("squeeze_copy", "squeeze"),
    ),
    "flip": Form("torch.flip", lambda case: partial(torch.flip, dims=(case["axis"],)), ("flip", "fliplr")),
    "tile": Form("torch.tile", lambda case: partial(torch.tile, dims=case["reps"]), ("tile", "repeat")),
    "repeat": Form(
        "torch.repeat_interleave",
        lambda case: partial(torch.repeat_interleave, repeats=case["repeats"], dim=case["axis"]),
    ),
    "pad": Form(
        "torch.nn.functional.pad",
        _pad,
        ("pad", "constant_pad_nd", "reflection_pad2d", "replication_pad2d"),
    ),
    "broadcast_to": Form(
        "torch.expand_copy",
        lambda case: partial(torch.expand_copy, size=case["shape"]),
        ("expand_copy", "expand", "broadcast_to"),
    ),
    "broadcast_axis": Form("torch.expand_copy", _expanded),
    "broadcast_like": Form(
        "torch.expand_copy",
        lambda _: lambda data, like: torch.expand_copy(data, like.shape),
        ("expand_copy", "expand_as"),
    ),
    "depth_to_space": Form("torch.permute_copy", _blocks_apart),
    "space_to_depth": Form("torch.permute_copy", _blocks_joined),
    "concat": Form(
        "torch.cat", lambda case: _listed(torch.cat, case), ("cat", "concat", "concatenate", "hstack")
    ),
    "stack": Form("torch.stack", lambda case: _listed(torch.stack, case)),
    "split": Form("torch.split_copy", _split, ("split_copy", "split", "chunk")),
    "split_v2": Form(
        "torch.split_with_sizes_copy",
        _split_at,
        ("split_with_sizes_copy", "split_with_sizes", "tensor_split"),
    ),
}
_NUMBERS = "PyTorch has shapes as Python's integers, and makes no tensors of them outside of a trace"
MISSING: Mapping[str, str] = {"shape_array": _NUMBERS, "size_array": _NUMBERS}
