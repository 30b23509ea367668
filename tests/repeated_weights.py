"""Weights for MXNet's networks that are cheap to make."""

from __future__ import annotations

from typing import Any

import numpy as np

from tests.optional_mxnet import mxnet


class Repeated(mxnet.init.Initializer):
    """Values within the bounds of ``draw_weights`` that repeat: to draw each would take most of the time."""

    # as many as a prime number, so that no filter is like another
    drawn = np.random.default_rng(3).uniform(-1, 1, 65_521).astype(np.float32)

    def _init_weight(self, name: str, array: Any) -> None:
        if not name.endswith("weight") or array.ndim < 2:
            array[:] = float(name.endswith(("gamma", "running_var")))
            return
        outputs, inputs, *field = array.shape
        bound = np.sqrt(6 / ((outputs + inputs) * np.prod(field)), dtype=np.float32)
        array[:] = np.resize(bound * self.drawn, array.shape)
