"""Random weights for a network, the same for a seed on any machine."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from inferometer.agent.architectures.gaussian_weights import GaussianLayer

_PIECE = 1 << 16
"""Weights that are drawn at a time, so that the float64 values fit into the cache."""


def draw_weights(parameters: Iterable[Any], seed: int, gaussian: Sequence[GaussianLayer] = ()) -> None:
    """Sets the parameters of an initialised network, whose shapes are known, in their order.

    Weights are drawn as Glorot and Bengio (2010) do, uniformly within sqrt(6 / (inputs + outputs)); scales
    and variances are 1, everything else 0. ``gaussian`` says instead how the layers are drawn one by one,
    each a weight and its bias. MXNet's own generators give other values in each run.
    """
    generator = np.random.default_rng(seed)
    layers, bias = iter(gaussian), 0.0
    for parameter in parameters:
        shape = parameter.shape
        if gaussian and parameter.name.endswith("weight"):
            deviation, bias = next(layers)
            values = np.empty(math.prod(shape), np.float32)
            for piece in np.split(values, range(_PIECE, len(values), _PIECE)):
                piece[:] = generator.normal(0.0, deviation, len(piece))
        elif gaussian:
            values = np.full(shape, bias, np.float32)
        elif parameter.name.endswith("weight") and len(shape) > 1:
            field = math.prod(shape[2:])
            # a filter of one channel is taken for a depthwise one, whose result is of one channel, too
            channels = 2 if field > 1 and shape[1] == 1 else shape[0] + shape[1]
            bound = math.sqrt(6 / (channels * field))
            values = np.empty(math.prod(shape), np.float32)
            for piece in np.split(values, range(_PIECE, len(values), _PIECE)):
                piece[:] = generator.uniform(-bound, bound, len(piece))
        else:
            values = np.full(shape, parameter.name.endswith(("gamma", "running_var")), np.float32)
        parameter.set_data(values.reshape(shape))  # on all of its devices
