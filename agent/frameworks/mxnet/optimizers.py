"""Optimizers for MXNet that compute the same updates as PyTorch's optimizers of the same names."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from inferometer.agent.frameworks.mxnet.runtime import mxnet
from inferometer.agent.training.trainer import OptimizerOptions


def build_optimizer(options: OptimizerOptions) -> Any:
    """Returns an optimizer whose weight decay applies to all parameters, including biases and scales.

    SGD is MXNet's own: its momentum includes the learning rate, which makes no difference while the rate is
    constant. The formulas of MXNet's NAG, Adam and RMSProp differ from PyTorch's: in the weight decay, in
    epsilon, and in the lack of momentum.
    """
    common = {"learning_rate": options.learning_rate, "wd": options.weight_decay}
    if options.name in ("adam", "adamw"):
        return Adam(decoupled=options.name == "adamw", **common)
    kinds = {"sgd": mxnet.optimizer.SGD, "nag": Nesterov, "rmsprop": RMSProp}
    return kinds[options.name](momentum=options.momentum, **common)


class Nesterov(mxnet.optimizer.Optimizer):
    """SGD with Nesterov's momentum: v = m v + g, w = w - lr (g + m v)."""

    def __init__(self, momentum: float, **common: float) -> None:
        super().__init__(**common)
        self.momentum = momentum

    def create_state(self, index: int, weight: Any) -> Any:
        """Returns the initial v of a parameter."""
        return mxnet.nd.zeros_like(weight)

    def update(self, index: int, weight: Any, grad: Any, state: Any) -> None:
        gradient = _with_decay(self, index, weight, grad)
        state *= self.momentum
        state += gradient
        gradient += self.momentum * state
        weight -= self._get_lr(index) * gradient


class RMSProp(mxnet.optimizer.Optimizer):
    """RMSProp with momentum: s = 0.99 s + 0.01 g², v = m v + g / (√s + 1e-8), w = w - lr v."""

    def __init__(self, momentum: float, **common: float) -> None:
        super().__init__(**common)
        self.momentum = momentum

    def create_state(self, index: int, weight: Any) -> tuple[Any, Any]:
        """Returns the initial s and v of a parameter."""
        return mxnet.nd.zeros_like(weight), mxnet.nd.zeros_like(weight)

    def update(self, index: int, weight: Any, grad: Any, state: tuple[Any, Any]) -> None:
        gradient = _with_decay(self, index, weight, grad)
        squares, velocity = state
        squares *= 0.99
        squares += 0.01 * gradient * gradient
        velocity *= self.momentum
        velocity += gradient / (mxnet.nd.sqrt(squares) + 1e-8)
        weight -= self._get_lr(index) * velocity


class Adam(mxnet.optimizer.Optimizer):
    """Adam (arXiv 1412.6980), or with decoupled weight decay AdamW (arXiv 1711.05101)."""

    _FIRST, _SECOND, _EPSILON = 0.9, 0.999, 1e-8

    def __init__(self, *, decoupled: bool, **common: float) -> None:
        super().__init__(**common)
        self.decoupled = decoupled

    def create_state(self, index: int, weight: Any) -> tuple[Any, Any]:
        """Returns the initial moving means of the gradient and of its square."""
        return mxnet.nd.zeros_like(weight), mxnet.nd.zeros_like(weight)

    def update(self, index: int, weight: Any, grad: Any, state: tuple[Any, Any]) -> None:
        self._update_count(index)
        steps, rate, decay = self._index_update_count[index], self._get_lr(index), self._get_wd(index)
        if self.decoupled and decay:
            weight *= 1 - rate * decay
        # the operator adds epsilon to the square root before the correction of the means, and Adam after it
        root = math.sqrt(1 - self._SECOND**steps)
        mxnet.nd.adam_update(
            weight,
            grad,
            *state,
            out=weight,
            lr=rate * root / (1 - self._FIRST**steps),
            beta1=self._FIRST,
            beta2=self._SECOND,
            epsilon=self._EPSILON * root,
            wd=0.0 if self.decoupled else decay,
            rescale_grad=self.rescale_grad,
        )


class ServerOptimizer(mxnet.optimizer.Optimizer):
    """An optimizer on the servers of a kvstore, which updates the first keys and sums all later ones."""

    def __init__(self, keys: int, optimizer: Any) -> None:
        super().__init__()
        self.keys = keys
        self.optimizer = optimizer

    def create_state(self, index: int, weight: Any) -> Any:
        """Returns the state of a parameter; None for a sum."""
        return self.optimizer.create_state(index, weight) if index < self.keys else None

    def update(self, index: int, weight: Any, grad: Any, state: Any) -> None:
        """Updates one parameter, or adds to a sum."""
        if index >= self.keys:
            weight += grad
        elif self.optimizer.aggregate_num:  # it takes several parameters at once
            self.optimizer.update([index], [weight], [grad], [state])
        else:
            self.optimizer.update(index, weight, grad, state)


class Updates:
    """An optimizer on the devices of this process; each device updates its own copy of the parameters."""

    def __init__(self, optimizer: Any, devices: int) -> None:
        self._optimizer = optimizer
        self._updaters = [mxnet.optimizer.get_updater(optimizer) for _ in range(devices)]

    def update(
        self, weights: Sequence[Sequence[Any]], gradients: Sequence[Sequence[Any]], rescale: float
    ) -> None:
        """Updates all parameters.

        Each parameter and each gradient has one array for each device; ``rescale`` is the factor on the
        gradients.
        """
        self._optimizer.rescale_grad = rescale
        for device, updater in enumerate(self._updaters):
            updater(
                list(range(len(weights))),
                [copies[device] for copies in gradients],
                [copies[device] for copies in weights],
            )


def _with_decay(optimizer: Any, index: int, weight: Any, grad: Any) -> Any:
    """Returns the gradient of the mean loss, including the gradient of the L2 penalty."""
    optimizer._update_count(index)
    gradient = grad * optimizer.rescale_grad
    decay = optimizer._get_wd(index)
    if decay:
        gradient += decay * weight
    return gradient
