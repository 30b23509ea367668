"""A network that gluon trains: a hybridized block, and autograd."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from inferometer.agent.frameworks.mxnet_runtime import mxnet
from inferometer.agent.frameworks.mxnet_training.networks import LOSSES, Shard, TrainedNetwork, lowered
from inferometer.agent.inference.predictor import Precision
from inferometer.manifests.schema import Loss


class GluonNetwork(TrainedNetwork):
    """The block itself, or in a lower precision one of its symbol, which shares its parameters."""

    def __init__(
        self, net: Any, symbol: Any, data: Any, loss: Loss, precision: Precision, contexts: Sequence[Any]
    ) -> None:
        super().__init__(net, symbol.list_inputs())
        self._contexts = list(contexts)
        self._block = net
        if precision is not Precision.FLOAT32:
            shared = net.collect_params()
            self._block = mxnet.gluon.SymbolBlock(lowered(symbol, precision, data.name), data, params=shared)
        self._block.hybridize(static_alloc=True)
        self._loss = mxnet.gluon.nn.HybridLambda(LOSSES[loss])
        self._loss.hybridize(static_alloc=True)
        self._losses: list[Any] = []

    def forward(self, shards: Sequence[Shard | None]) -> list[Any]:
        """Records the block and its loss; see ``TrainedNetwork``."""
        with mxnet.autograd.record():
            self._losses = [self._loss(self._block(shard[0]), shard[1]) for shard in shards if shard]
        for context, shard in zip(self._contexts, shards, strict=True):
            if shard is None:  # or else the gradients of the last step are added
                for parameter in self.trained.values():
                    parameter.grad(context)[:] = 0
        return self._losses

    def backward(self, scale: float) -> None:
        """Runs what was recorded backwards; see ``TrainedNetwork``."""
        losses, self._losses = self._losses, []
        mxnet.autograd.backward(losses, [mxnet.nd.full(x.shape, scale, ctx=x.context) for x in losses])

    def scores(self, inputs: Any) -> Any:
        """Runs the block in predict mode; see ``TrainedNetwork``."""
        return self._block(inputs)

    def weights(self) -> list[list[Any]]:
        """See ``TrainedNetwork``."""
        return [parameter.list_data() for parameter in self.trained.values()]

    def gradients(self) -> list[list[Any]]:
        """See ``TrainedNetwork``."""
        return [parameter.list_grad() for parameter in self.trained.values()]

    def states(self) -> list[list[Any]]:
        """See ``TrainedNetwork``."""
        return [parameter.list_data() for parameter in self.others.values()]

    def update_block(self) -> None:
        """Does nothing, since the block's parameters are those that are trained; see ``TrainedNetwork``."""
