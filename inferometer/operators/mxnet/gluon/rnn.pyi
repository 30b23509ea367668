# Generated; do not edit. To regenerate it, run: make stubs
"""Benchmarks of the layers of ``mxnet.gluon.rnn``."""

from inferometer.client.api.operators.benchmark import MXNetBenchmark, RunAll

__all__ = [
    "GRU",
    "LSTM",
    "RNN",
    "run_all_gluon_recurrent_operations_benchmarks",
]

class GRU(MXNetBenchmark):
    """A gated recurrent unit."""

class LSTM(MXNetBenchmark):
    """A long short-term memory layer."""

class RNN(MXNetBenchmark):
    """A recurrent layer with ReLU activation."""

run_all_gluon_recurrent_operations_benchmarks: RunAll
