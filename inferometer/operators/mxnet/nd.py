"""Benchmarks of operators of ``mxnet.nd``."""

from inferometer.client.api.operators.benchmark import contents

__all__, __getattr__, __dir__ = contents(__name__)
