# Generated; do not edit. To regenerate it, run: make stubs
"""Benchmarks of the losses of ``mxnet.gluon.loss``."""

from inferometer.client.api.operators.benchmark import MXNetBenchmark, RunAll

__all__ = [
    "L1Loss",
    "L2Loss",
    "SigmoidBinaryCrossEntropyLoss",
    "SoftmaxCrossEntropyLoss",
    "run_all_gluon_nn_loss_operations_benchmarks",
]

class L1Loss(MXNetBenchmark):
    """The mean of absolute differences, for each sample."""

class L2Loss(MXNetBenchmark):
    """Half of the mean of squared differences, for each sample."""

class SigmoidBinaryCrossEntropyLoss(MXNetBenchmark):
    """The binary cross-entropy of logits, for each sample."""

class SoftmaxCrossEntropyLoss(MXNetBenchmark):
    """The cross-entropy of logits and probabilities, for each sample."""

run_all_gluon_nn_loss_operations_benchmarks: RunAll
