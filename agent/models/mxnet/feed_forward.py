"""The base of architectures whose layers follow one another."""

from __future__ import annotations

from typing import Any

from mxnet import gluon
from mxnet.gluon import nn


class FeedForward(gluon.HybridBlock):
    """Layers one after the other; a subclass adds them to ``self.layers`` inside ``self.name_scope()``."""

    def __init__(self) -> None:
        super().__init__()
        with self.name_scope():
            self.layers = nn.HybridSequential(prefix="")

    def hybrid_forward(self, F: Any, data: Any) -> Any:  # noqa: N803  # gluon passes it by this name
        """Returns the output of the last layer: logits, (batch, classes) of the dtype of the input."""
        return self.layers(data)
