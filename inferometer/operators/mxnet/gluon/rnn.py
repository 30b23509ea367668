"""Benchmarks of the layers of ``mxnet.gluon.rnn``."""

from inferometer.client.api.operators.benchmark import contents

__all__, __getattr__, __dir__ = contents(__name__)
