"""Benchmarks of the losses of ``mxnet.gluon.loss``."""

from inferometer.client.library.operators.classes import contents

__all__, __getattr__, __dir__ = contents(__name__)
