"""Benchmarks of the layers and losses of ``mxnet.gluon``, also those of ``nn``, ``rnn`` and ``loss``."""

from __future__ import annotations

from inferometer.operators.mxnet.gluon import loss, nn, rnn
from inferometer.operators.mxnet.gluon.loss import *  # noqa: F403
from inferometer.operators.mxnet.gluon.nn import *  # noqa: F403
from inferometer.operators.mxnet.gluon.rnn import *  # noqa: F403

__all__ = ["loss", "nn", "rnn"]
__all__ += loss.__all__
__all__ += nn.__all__
__all__ += rnn.__all__
