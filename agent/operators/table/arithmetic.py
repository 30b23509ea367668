"""Element-wise arithmetic of two tensors, also in place."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from inferometer.agent.operators.operator import (
    Category,
    Operator,
    Preset,
    Sizes,
    one_flop_per_output,
    same_shape,
)

_BINARY: Mapping[Preset, tuple[Sizes, ...]] = {
    Preset.SMALL: (({"lhs": (32, 32), "rhs": (32, 32)}, {}),),
    Preset.NORMAL: (({"lhs": (1024, 1024), "rhs": (1024, 1024)}, {}),),
    Preset.LARGE: (({"lhs": (4096, 4096), "rhs": (4096, 4096)}, {}),),
    Preset.SKEWED: (
        ({"lhs": (10000, 10), "rhs": (10000, 10)}, {}),
        ({"lhs": (10000, 1), "rhs": (10000, 1)}, {}),
    ),
    Preset.HUGE: (({"lhs": (2**16, 2**15 + 1), "rhs": (2**16, 2**15 + 1)}, {}),),
}

OPERATORS = (
    Operator(
        name="add",
        category=Category.ARITHMETIC,
        summary="lhs + rhs",
        given=("lhs", "rhs"),
        tensors=same_shape("lhs", "rhs"),
        presets=_BINARY,
        reference=lambda arrays, _: (np.add(*arrays),),
        flops=one_flop_per_output,
    ),
)
