"""PyTorch's optimizers, without its compiler."""

from __future__ import annotations

import inspect
from typing import TypeVar

import torch

from inferometer.agent.training.trainer import OptimizerOptions
from inferometer.manifests.errors import ConfigurationError

_Optimizer = TypeVar("_Optimizer", bound=torch.optim.Optimizer)
_HIDDEN_FROM_COMPILER = ("add_param_group", "load_state_dict", "state_dict", "zero_grad")


def make_optimizer(parameters: list[torch.nn.Parameter], options: OptimizerOptions) -> torch.optim.Optimizer:
    """Returns PyTorch's optimizer; those of Adam have its defaults, and RMSProp forgets as PyTorch has it.

    Raises:
        ConfigurationError: PyTorch's trainer does not have this optimizer.
    """
    rate, momentum, decay = options.learning_rate, options.momentum, options.weight_decay
    match options.name:
        case "sgd":
            return _eager(torch.optim.SGD)(parameters, rate, momentum, weight_decay=decay)
        case "nag":  # which without momentum is SGD, and PyTorch refuses it
            return _eager(torch.optim.SGD)(
                parameters, rate, momentum, weight_decay=decay, nesterov=momentum > 0
            )
        case "adam":
            return _eager(torch.optim.Adam)(parameters, rate, weight_decay=decay)
        case "adamw":
            return _eager(torch.optim.AdamW)(parameters, rate, weight_decay=decay)
        case "rmsprop":
            return _eager(torch.optim.RMSprop)(parameters, rate, weight_decay=decay, momentum=momentum)
    raise ConfigurationError(f"optimizer is {options.name}, which PyTorch's trainer does not have")


def _eager(kind: type[_Optimizer]) -> type[_Optimizer]:
    """Returns the optimizer with its own methods in place of those that call PyTorch's compiler.

    The wrappers tell the compiler what not to compile, which nobody does here. For that they import it:
    2 s of each start, and 800 modules. The wrapper of ``step`` also turns gradients off.
    """
    methods = {name: inspect.unwrap(getattr(kind, name)) for name in _HIDDEN_FROM_COMPILER}
    return type(kind.__name__, (kind,), methods | {"step": torch.no_grad()(inspect.unwrap(kind.step))})
