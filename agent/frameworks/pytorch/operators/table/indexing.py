"""Indexing in PyTorch. Where PyTorch would return a view, the function that copies stands."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial

import torch

from inferometer.agent.frameworks.pytorch.operators.functions import Form, Function
from inferometer.agent.operators.operator import Case

_INDEXED = "torch.Tensor.__getitem__"


def _scatter(case: Case) -> Function:
    rows = case["rows"]

    def scatter(data: torch.Tensor, indices: torch.Tensor) -> torch.Tensor:
        return data.new_zeros((rows, *data.shape[1:])).index_copy(0, indices[0], data)

    return scatter


def _slice(case: Case) -> Function:
    ranges = tuple(slice(low, high) for low, high in zip(case["begin"], case["end"], strict=True))
    return lambda data: data[ranges].clone(memory_format=torch.contiguous_format)


def _slice_like(data: torch.Tensor, like: torch.Tensor) -> torch.Tensor:
    ranges = tuple(slice(size) for size in like.shape)
    return data[ranges].clone(memory_format=torch.contiguous_format)


def _slice_axis(case: Case) -> Function:
    length = case["end"] - case["begin"]
    return partial(torch.narrow_copy, dim=case["axis"], start=case["begin"], length=length)


def _unravel_index(case: Case) -> Function:
    return lambda indices: torch.stack(torch.unravel_index(indices, case["shape"]))


FUNCTIONS: Mapping[str, Form] = {
    "take": Form(
        "torch.index_select",
        lambda _: lambda data, indices: torch.index_select(data, 0, indices),
    ),
    "pick": Form("torch.gather", lambda _: lambda data, indices: torch.gather(data, -1, indices)),
    "gather": Form(
        "torch.gather",
        lambda _: lambda data, indices: torch.gather(data, -1, indices),
        ("gather", "take_along_dim"),
    ),
    "gather_nd": Form(_INDEXED, lambda _: lambda data, indices: data[tuple(indices.unbind())], ("index",)),
    "scatter_nd": Form("torch.Tensor.new_zeros, torch.index_copy", _scatter, ("index_copy",)),
    "index_copy": Form(
        "torch.index_copy",
        lambda _: lambda data, indices, source: torch.index_copy(data, 0, indices, source),
    ),
    "one_hot": Form(
        "torch.nn.functional.one_hot",
        lambda case: partial(torch.nn.functional.one_hot, num_classes=case["depth"]),
    ),
    "where": Form("torch.where", lambda _: torch.where, ("where",)),
    "boolean_mask": Form(_INDEXED, lambda _: lambda data, mask: data[mask], ("index",)),
    "slice": Form(f"{_INDEXED}, torch.clone", _slice, ("slice", "slice_copy")),
    "slice_axis": Form("torch.narrow_copy", _slice_axis, ("narrow_copy", "narrow", "slice_copy", "slice")),
    "slice_like": Form(f"{_INDEXED}, torch.clone", lambda _: _slice_like, ("slice", "slice_copy")),
    "unravel_index": Form("torch.unravel_index, torch.stack", _unravel_index, ("unravel_index",)),
    "diag": Form("torch.diagonal_copy", lambda _: torch.diagonal_copy, ("diagonal_copy", "diag")),
    "tril": Form("torch.tril", lambda _: torch.tril, ("tril",)),
}
MISSING: Mapping[str, str] = {
    "ravel_index": "PyTorch has unravel_index, and not its inverse",
}
