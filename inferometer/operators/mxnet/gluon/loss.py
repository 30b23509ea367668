"""Benchmarks of the losses of ``mxnet.gluon.loss``."""

from inferometer.client.api.operators.benchmark import contents

__all__, __getattr__, __dir__ = contents(__name__)
