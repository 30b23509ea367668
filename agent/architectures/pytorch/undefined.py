"""Modules whose weights a file replaces, built without drawing them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch


def undefined(build: Callable[[], Any]) -> torch.nn.Module:
    """Builds a module with undefined parameters, which ``load_state_dict`` then sets.

    To draw the parameters would take most of the time of a load: each layer draws its own, and the
    architecture draws them again. The buffers are zero.
    """
    with torch.device("meta"):
        module: torch.nn.Module = build()
    # Module.to_empty would import torch's symbolic shapes: 0.7 s and 35 MiB
    for owner in module.modules():
        for name, drawn in list(owner.named_parameters(recurse=False)):
            undrawn = torch.empty(drawn.shape, dtype=drawn.dtype)
            setattr(owner, name, torch.nn.Parameter(undrawn, drawn.requires_grad))
        for name, buffer in list(owner.named_buffers(recurse=False)):
            setattr(owner, name, torch.zeros(buffer.shape, dtype=buffer.dtype))
    return module
