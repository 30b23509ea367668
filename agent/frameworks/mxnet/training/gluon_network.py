"""A network that gluon trains: a hybridized block, and autograd."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from typing import Any

from inferometer.agent.frameworks.mxnet.runtime import mxnet
from inferometer.agent.frameworks.mxnet.training.networks import (
    LOSSES,
    OnOutput,
    Shard,
    TrainedNetwork,
    lowered,
)
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
        self._watched = False

    def forward(self, shards: Sequence[Shard | None]) -> list[Any]:
        """Records the block and its loss; see ``TrainedNetwork``."""
        self.batch_shapes = [shard[0].shape for shard in shards if shard]
        with warnings.catch_warnings():
            if self._watched:  # MXNet calls it experimental in every call of a block
                warnings.filterwarnings("ignore", "register_op_hook is experimental")
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

    def watch(self, on_output: OnOutput | None) -> None:
        """Hybridizes block and loss again, with a hook and without bulks; see ``TrainedNetwork``."""
        self._watched = on_output is not None
        # one operator at a time: a bulk of none, and no graph so small that it is run without hooks
        apart = {"forward_bulk_size": 0, "backward_bulk_size": 0, "inline_limit": 0} if on_output else {}

        def called(name: bytes, type_: bytes, handle: int) -> None:
            if on_output is not None:
                on_output(name.decode(), type_.decode(), handle)

        for block in (self._block, self._loss):
            block.register_op_hook(called if on_output else None)
            block.hybridize(static_alloc=True, **apart)

    def symbols(self) -> tuple[Any, Any]:
        """See ``TrainedNetwork``."""
        return self._block._cached_graph[1], self._loss._cached_graph[1]

    def update_block(self) -> None:
        """Does nothing, since the block's parameters are those that are trained; see ``TrainedNetwork``."""
