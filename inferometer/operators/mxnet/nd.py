"""Benchmarks of operators of ``mxnet.nd``."""

from inferometer.client.library.operators.classes import contents

__all__, __getattr__, __dir__ = contents(__name__)
