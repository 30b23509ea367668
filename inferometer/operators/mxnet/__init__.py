"""Benchmarks of the operators of MXNet."""

from inferometer.client.api.operators.benchmark import contents
from inferometer.operators.mxnet import custom, gluon, nd

__all__, __getattr__, __dir__ = contents(__name__)
__all__ += ["custom", "gluon", "nd"]
