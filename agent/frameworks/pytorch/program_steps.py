"""The steps of an exported program, interpreted one by one: nothing of a file becomes source code.

What a file names is looked up in closed tables, of PyTorch's own operators and of arithmetic on sizes; its
other names are keys of a dictionary and no more.
"""

from __future__ import annotations

import functools
import math
import operator
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import torch

from inferometer.manifests.errors import one_line, printable

_REFUSED_ARGUMENTS = frozenset({"filename"})
# the first prints a text of the file; the others take indices and offsets into memory without a check
_REFUSED = re.compile(r"aten::(_print|_sparse_\w+_unsafe|_nested_view_from_buffer\w*)(\..*)?")
_ON_SIZES: Mapping[str, Callable[..., Any]] = {
    **{
        f"_operator.{name}": getattr(operator, name)
        for name in (
            "add",
            "and_",
            "eq",
            "floordiv",
            "ge",
            "gt",
            "le",
            "lt",
            "mod",
            "mul",
            "ne",
            "neg",
            "or_",
            "pos",
            "sub",
            "truediv",
        )
    },
    **{f"math.{name}": getattr(math, name) for name in ("ceil", "floor", "trunc")},
    **{
        f"torch.{name}": getattr(torch, name)
        for name in ("sym_float", "sym_int", "sym_ite", "sym_max", "sym_min", "sym_not", "sym_sum")
        if hasattr(torch, name)
    },
}


@dataclass(frozen=True, slots=True)
class Computed:
    """An argument that is computed while the program runs, by its name: a text of the file, or a number."""

    name: str | int


OutputNames: TypeAlias = "str | int | tuple[OutputNames, ...] | None"
"""The names of what an operator returns: of one value, of each of several, or of a value that is not used."""


@dataclass(frozen=True, slots=True)
class Step:
    """A call of an operator; its arguments are plain values and ``Computed``."""

    called: Callable[..., Any]
    places: tuple[object, ...]
    named: Mapping[str, object]
    outputs: OutputNames


class ProgramModule(torch.nn.Module):
    """A program as a module: its tensors are buffers, and it returns a tuple.

    The values of a run are in one dictionary, with the constants of all steps; a value is freed after the
    last step that takes it.

    Attributes:
        input_names: The names of the inputs in the order of the arguments.
    """

    def __init__(
        self,
        tensors: Mapping[str, torch.Tensor],
        inputs: Sequence[str],
        steps: Sequence[Step],
        outputs: Sequence[object],
    ) -> None:
        super().__init__()
        self.input_names = list(inputs)
        self._tensor_names = list(tensors)
        for number, tensor in enumerate(tensors.values()):
            self.register_buffer(f"tensor{number}", tensor)
        self._constants: dict[object, Any] = {}
        self._outputs = [self._key(each) for each in outputs]
        self._calls = self._calls_of(steps)

    def forward(self, *inputs: torch.Tensor) -> tuple[Any, ...]:
        """Runs the steps; raises what an operator raises, and TypeError for another number of inputs."""
        if len(inputs) != len(self.input_names):
            raise TypeError(f"it takes {len(self.input_names)} inputs, and was given {len(inputs)}")
        values = self._constants.copy()
        values.update(zip(self._tensor_names, self._buffers.values(), strict=True))
        values.update(zip(self.input_names, inputs, strict=True))
        value = values.__getitem__
        for called, places, names, named, outputs, unused in self._calls:
            if names:
                made = called(*map(value, places), **dict(zip(names, map(value, named), strict=True)))
            else:
                made = called(*map(value, places))
            if type(outputs) is str:  # as most are
                values[outputs] = made
            else:
                _keep(outputs, made, values)
            del made
            for name in unused:
                del values[name]
        return tuple(map(value, self._outputs))

    def _calls_of(self, steps: Sequence[Step]) -> Sequence[tuple[Any, ...]]:
        """Each step with the keys of its arguments, and those that no later step and no output takes."""
        needed = set(self._outputs)
        calls = []
        for step in reversed(steps):
            places, named = map(self._key, step.places), map(self._key, step.named.values())
            call = step.called, tuple(places), tuple(step.named), tuple(named), step.outputs
            unused = {*call[1], *call[3], *_flat(step.outputs)} - needed - self._constants.keys()
            needed |= unused
            calls.append((*call, tuple(unused)))
        return calls[::-1]

    def _key(self, argument: object) -> object:
        """The key of an argument among the values: its name, or for a constant one that no name equals."""
        if isinstance(argument, Computed):
            return argument.name
        key = (len(self._constants),)
        self._constants[key] = argument
        return key


def step_of(target: object, given: Sequence[tuple[object, object]], outputs: Sequence[OutputNames]) -> Step:
    """Returns the call of an operator by the name that a program has for it.

    Args:
        target: The name.
        given: The arguments with their names.
        outputs: The names of each value that the operator returns.

    Raises:
        ValueError: It is no operator that a program may call, or has another signature.
    """
    if isinstance(target, str) and target in _ON_SIZES:
        places = tuple(value for _, value in given)
        if any(isinstance(value, str) for value in places):
            raise ValueError(f"{target} takes numbers, and was given a text")
        return Step(_ON_SIZES[target], places, {}, _returned(outputs, 1))
    called = _operator(target)
    left = dict(given)
    places_of = []
    for argument in called._schema.arguments:
        if argument.kwarg_only or argument.name not in left:
            break
        places_of.append(left.pop(argument.name))
    known = {argument.name for argument in called._schema.arguments[len(places_of) :]}
    if len(left) + len(places_of) < len(given) or not known.issuperset(left):
        raise ValueError(f"it gives {called} other arguments than those of its schema")
    named = {str(name): value for name, value in left.items()}
    return Step(called, tuple(places_of), named, _returned(outputs, len(called._schema.returns)))


def list_of(items: Sequence[object], name: int) -> Step:
    """Returns the step that makes a list in which some values are computed."""
    return Step(_list, tuple(items), {}, name)


@functools.cache
def _aten() -> Mapping[str, tuple[str, str]]:
    """ATen's operators by the names that programs have for them: the names of each and of its overload.

    These are the dispatcher's. TorchScript's own, which read and write files, have no kernel there.
    """
    found = {}
    for name in torch._C._dispatch_get_all_op_names():
        namespace, _, rest = name.partition("::")
        packet, _, overload = rest.partition(".")
        if namespace == "aten" and not _REFUSED.fullmatch(name) and torch._C._dispatch_has_kernel(name):
            overload = overload or "default"
            found[f"torch.ops.aten.{packet}.{overload}"] = packet, overload
    return found


def _operator(target: object) -> torch._ops.OpOverload:
    """An operator of ATen; raises ValueError for anything else that a program may name."""
    text = target if isinstance(target, str) else ""
    if names := _aten().get(text):
        packet, overload = names  # PyTorch's own texts, equal to those of the file
        found: torch._ops.OpOverload = getattr(getattr(torch.ops.aten, packet), overload)
        if _REFUSED_ARGUMENTS.isdisjoint(argument.name for argument in found._schema.arguments):
            return found
    raise ValueError(f"it uses {one_line(printable(text), 80)}; accepted: ATen's operators without files")


def _returned(outputs: Sequence[OutputNames], number: int) -> OutputNames:
    """The names of what a call returns, as its caller gets it: one value, several, or none."""
    if len(outputs) != number:
        raise ValueError(f"it has {len(outputs)} names for the {number} values that an operator returns")
    return outputs[0] if number == 1 else tuple(outputs) or None


def _keep(names: OutputNames, made: Any, values: dict[object, Any]) -> None:
    if isinstance(names, tuple):
        for name, each in zip(names, made, strict=True):
            _keep(name, each, values)
    elif names is not None:
        values[names] = made


def _flat(names: OutputNames) -> set[str | int]:
    if isinstance(names, tuple):
        return set().union(*map(_flat, names))
    return set() if names is None else {names}


def _list(*items: object) -> list[object]:
    return list(items)
