"""Reductions, cumulative sums, sorting and searching in PyTorch."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import torch

from inferometer.agent.frameworks.pytorch.operators.functions import Form, Function
from inferometer.agent.operators.operator import Case


def _reduced(function: Callable[..., Any], **parameters: str) -> Callable[[Case], Function]:
    """The function along the case's axes; ``parameters`` maps its other arguments to the table's."""

    def make(case: Case) -> Function:
        others = {name: case[value] for name, value in parameters.items()}
        return partial(function, dim=case["axis"], keepdim=case["keepdims"], **others)

    return make


def _moments(case: Case) -> Function:
    whole = partial(torch.var_mean, dim=case["axis"], correction=0, keepdim=case["keepdims"])
    return lambda data: whole(data)[::-1]


FUNCTIONS: Mapping[str, Form] = {
    "sum": Form("torch.sum", _reduced(torch.sum)),
    "mean": Form("torch.mean", _reduced(torch.mean)),
    "nansum": Form("torch.nansum", _reduced(torch.nansum)),
    "prod": Form("torch.prod", _reduced(torch.prod)),
    "max": Form("torch.amax", _reduced(torch.amax), ("amax", "max")),
    "min": Form("torch.amin", _reduced(torch.amin), ("amin", "min")),
    "norm": Form(
        "torch.linalg.vector_norm",
        _reduced(torch.linalg.vector_norm, ord="ord"),
        ("linalg_vector_norm", "linalg_norm", "norm", "frobenius_norm"),
    ),
    "logsumexp": Form("torch.logsumexp", _reduced(torch.logsumexp), ("logsumexp", "special_logsumexp")),
    "moments": Form("torch.var_mean", _moments, ("var_mean", "var")),
    "cumsum": Form("torch.cumsum", lambda case: partial(torch.cumsum, dim=case["axis"])),
    "argmax": Form("torch.argmax", lambda case: partial(torch.argmax, dim=case["axis"])),
    "argmin": Form("torch.argmin", lambda case: partial(torch.argmin, dim=case["axis"])),
    "sort": Form(
        "torch.sort", lambda case: lambda data: torch.sort(data, dim=case["axis"]).values, ("sort", "msort")
    ),
    "argsort": Form("torch.argsort", lambda case: partial(torch.argsort, dim=case["axis"])),
    "topk": Form("torch.topk", lambda case: partial(torch.topk, k=case["k"], dim=case["axis"])),
}
MISSING: Mapping[str, str] = {
    "nanprod": "PyTorch has nansum, and no product that leaves out what is not a number",
}
