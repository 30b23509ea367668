"""Benchmarks of the layers of ``mxnet.gluon.rnn``."""

from inferometer.client.library.operators.classes import contents

__all__, __getattr__, __dir__ = contents(__name__)
