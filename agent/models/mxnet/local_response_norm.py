"""Local response normalisation, which gluon has as an operator only."""

from __future__ import annotations

from typing import Any

from mxnet import gluon


class LocalResponseNorm(gluon.HybridBlock):
    """Caffe's: divides by (1 + 1e-4 / 5 × the sum of squares over 5 neighbouring channels) to the 0.75."""

    def hybrid_forward(self, F: Any, data: Any) -> Any:  # noqa: N803  # gluon passes it by this name
        """Returns (batch, channels, height, width) of the same shape."""
        # the operator's own k is 2
        return F.LRN(data, alpha=1e-4, beta=0.75, knorm=1.0, nsize=5)
