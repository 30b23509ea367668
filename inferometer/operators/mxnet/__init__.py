"""Benchmarks of the operators of MXNet."""

from __future__ import annotations

from inferometer.client.library.operators import element_wise, layers, networks, tensors
from inferometer.client.library.operators.groups import run_all
from inferometer.operators.mxnet import custom, gluon, nd

__all__ = ["custom", "gluon", "nd", "run_all_mxnet_operator_benchmarks"]

run_all_mxnet_operator_benchmarks = run_all(
    (
        *element_wise.ARITHMETIC,
        *element_wise.COMPARISON,
        *element_wise.LOGICAL,
        *element_wise.EXPONENTIAL,
        *element_wise.POWERS,
        *tensors.CREATION,
        *tensors.GEMM,
        *tensors.SORTING,
        *layers.BASIC,
        *layers.ACTIVATION,
        *layers.CONVOLUTION,
        *layers.POOLING,
        *layers.NORMALIZATION,
        *networks.RECURRENT,
        *networks.LOSS,
        *networks.CUSTOM,
    )
)
