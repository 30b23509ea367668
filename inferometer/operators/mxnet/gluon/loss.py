"""Benchmarks of the losses of ``mxnet.gluon.loss``."""

from __future__ import annotations

from inferometer.client.library.operators.groups import run_all
from inferometer.client.library.operators.networks import (
    LOSS,
    L1Loss,
    L2Loss,
    SigmoidBinaryCrossEntropyLoss,
    SoftmaxCrossEntropyLoss,
)

__all__ = [
    "L1Loss",
    "L2Loss",
    "SigmoidBinaryCrossEntropyLoss",
    "SoftmaxCrossEntropyLoss",
    "run_all_gluon_nn_loss_operations_benchmarks",
]

run_all_gluon_nn_loss_operations_benchmarks = run_all(LOSS)
