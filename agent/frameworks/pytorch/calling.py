"""How a module is called with several inputs: by the names of its arguments, or by their places."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import torch

from inferometer.agent.inference.input_names import has_numbers, number_of
from inferometer.manifests.errors import ArtifactError, suggestion
from inferometer.manifests.inputs import TensorSpec


@dataclass(frozen=True, slots=True)
class CallForm:
    """How a module is called.

    Attributes:
        places: The names of the inputs in the order of the module's arguments; empty for the given order.
        by_name: Whether the arguments have these names.
    """

    places: tuple[str, ...] = ()
    by_name: bool = False

    def __call__(self, module: Callable[..., object], tensors: Mapping[str, torch.Tensor]) -> object:
        """Calls the module with tensors by their names in the manifest."""
        if self.by_name:
            return module(**tensors)
        if self.places:
            return module(*(tensors[name] for name in self.places))
        return module(*tensors.values())

    def in_order(self, tensors: Sequence[TensorSpec]) -> list[TensorSpec]:
        """Returns the inputs of a manifest in the order of the module's arguments."""
        found = {each.name: each for each in tensors}
        return [found[name] for name in self.places or found]


def call_form(model: str, module: torch.nn.Module, tensors: Sequence[TensorSpec]) -> CallForm:
    """Returns how a module takes the inputs of a manifest.

    One input is given by its place. Of several, those whose names are arguments of the module's ``forward``
    are given by name, and numbered ones by number; where no name is an argument, the order of the manifest is
    that of the arguments.

    Raises:
        ArtifactError: Some names are arguments, and others are not; or the module takes others too.
    """
    names = tuple(each.name for each in tensors)
    if len(names) == 1:
        return CallForm()
    if has_numbers(tensors):
        return CallForm(tuple(sorted(names, key=lambda name: number_of(name) or 0)))
    listed = getattr(module, "input_names", None)
    arguments = list(listed) if listed else argument_names(module)
    matching = [name for name in names if name in arguments]
    if not matching:
        return CallForm(names)
    if len(matching) < len(names):
        wrong = next(name for name in names if name not in arguments)
        raise ArtifactError(f'{model}: takes no input "{wrong}"; {suggestion(wrong, arguments)}')
    order = tuple(name for name in arguments if name in names)
    if listed:
        if missing := [name for name in arguments if name not in names]:
            raise ArtifactError(f'{model}: takes the input "{missing[0]}" too, which the manifest lacks')
        return CallForm(order)
    return CallForm(order, by_name=True)


def argument_names(module: torch.nn.Module) -> list[str]:
    """Returns the names of what ``forward`` takes by name; none where they cannot be told."""
    if isinstance(module, torch.jit.ScriptModule):
        return [each.name for each in module.forward.schema.arguments[1:]]  # type: ignore[attr-defined]
    try:
        parameters = inspect.signature(module.forward).parameters.values()
    except (TypeError, ValueError):
        return []
    named = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
    return [each.name for each in parameters if each.kind in named]
