"""A network that is trained, in either of MXNet's two APIs: forward, backward, and its arrays."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, TypeAlias

from inferometer.agent.frameworks.mxnet.runtime import mxnet
from inferometer.agent.inference.predictor import Precision
from inferometer.manifests.schema import Loss

Shard: TypeAlias = tuple[Any, Any]
"""The inputs and the targets of one device; the targets are float32, as MXNet's losses take them."""


OnOutput: TypeAlias = Callable[[str, str, int], None]
"""Called with the name of an operator's output, its operator's type, and the handle of the array."""


class TrainedNetwork(ABC):
    """A network with its loss on the devices of this process; all calls queue, and nothing waits.

    Args:
        net: The block of gluon.
        used: The names that gluon gave to the parameters of which the output depends.

    Attributes:
        trained: Gluon's parameters that are trained, by their names in a file, in the order of the layers.
        others: The other parameters, such as running means.
        batch_shapes: The shapes of the inputs of the last step, one for each device that had samples.
    """

    def __init__(self, net: Any, used: Collection[str]) -> None:
        # the names in a file of parameters; the other ones count the blocks of the process
        found = {name: p for name, p in net._collect_params_with_prefix().items() if p.name in used}
        self.trained: Mapping[str, Any] = {n: p for n, p in found.items() if p.grad_req != "null"}
        self.batch_shapes: Sequence[tuple[int, ...]] = ()
        self.others: Mapping[str, Any] = {n: p for n, p in found.items() if p.grad_req == "null"}

    @abstractmethod
    def forward(self, shards: Sequence[Shard | None]) -> list[Any]:
        """Runs the network and its loss for training.

        Args:
            shards: One for each device; None for a device without samples.

        Returns:
            The losses of the samples, an array for each device that has some.
        """

    @abstractmethod
    def backward(self, scale: float) -> None:
        """Computes the gradients of the sum of the losses of the last ``forward``, times a ``scale``."""

    @abstractmethod
    def scores(self, inputs: Any) -> Any:
        """Runs the network on the first device, as in a prediction."""

    @abstractmethod
    def weights(self) -> list[list[Any]]:
        """Returns the arrays of the trained parameters, each with one for each device."""

    @abstractmethod
    def gradients(self) -> list[list[Any]]:
        """Returns the arrays of the gradients, likewise."""

    @abstractmethod
    def states(self) -> list[list[Any]]:
        """Returns the arrays of the other parameters, likewise."""

    @abstractmethod
    def watch(self, on_output: OnOutput | None) -> None:
        """Queues the operators of later steps one by one, and reports each output; with None, in bulk again.

        ``on_output`` is called on the thread that runs the step, before the next operator is queued.
        """

    @abstractmethod
    def symbols(self) -> tuple[Any, Any]:
        """Returns the graphs of the network and of its loss, which may hold both, once a step has run."""

    @abstractmethod
    def update_block(self) -> None:
        """Gives the block of gluon the parameters of the first device."""


def lowered(symbol: Any, precision: Precision, input_name: str) -> Any:
    """Returns the symbol with convolutions and products in a precision, and its outputs in float32."""
    if precision is Precision.FLOAT32:
        return symbol
    from mxnet.contrib import amp  # most runs need none

    converted = amp.convert_symbol(symbol, target_dtype=precision.value, data_names=[input_name])
    return mxnet.sym.cast(converted, dtype="float32")


def cross_entropy(backend: Any, scores: Any, targets: Any) -> Any:
    """The loss of each sample; scores (batch, classes), targets (batch,).

    MXNet's ``log_softmax``, of which gluon makes its loss, has two to six times the error of this on a CPU.
    """
    scores = backend.broadcast_sub(scores, backend.BlockGrad(backend.max(scores, axis=1, keepdims=True)))
    return backend.log(backend.sum(backend.exp(scores), axis=1)) - backend.pick(scores, targets)


def ctc(backend: Any, scores: Any, targets: Any) -> Any:
    """The loss of each sample; scores (batch, time steps, classes), targets (batch, length) from 1."""
    steps_first = backend.swapaxes(scores, dim1=0, dim2=1)
    return backend.CTCLoss(steps_first, targets, blank_label="first")


LOSSES: Mapping[Loss, Callable[[Any, Any, Any], Any]] = {Loss.CROSS_ENTROPY: cross_entropy, Loss.CTC: ctc}
"""The losses, whose first argument is ``mxnet.nd`` or ``mxnet.sym``."""
