"""Benchmarks of the layers of ``mxnet.gluon.rnn``."""

from __future__ import annotations

from inferometer.client.library.operators.groups import run_all
from inferometer.client.library.operators.networks import (
    GRU,
    LSTM,
    RECURRENT,
    RNN,
)

__all__ = [
    "GRU",
    "LSTM",
    "RNN",
    "run_all_gluon_recurrent_operations_benchmarks",
]

run_all_gluon_recurrent_operations_benchmarks = run_all(RECURRENT)
