"""Benchmarks of the layers and losses of ``mxnet.gluon``, including ``nn``, ``rnn`` and ``loss``."""

from inferometer.client.api.operators.benchmark import contents
from inferometer.operators.mxnet.gluon import loss, nn, rnn

__all__, __getattr__, __dir__ = contents(__name__, loss, nn, rnn)
__all__ += ["loss", "nn", "rnn"]
