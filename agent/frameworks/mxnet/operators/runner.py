"""Single operators in MXNet: ``mx.nd``, ``mx.sym`` and Gluon blocks.

A ``Form`` defines how MXNet runs an operator; the sibling modules list the forms by the table's names. A call
runs an operator on its inputs through a function of ``mx.nd``, a bound symbol, a Gluon block, or a symbol
with operators that oneDNN's pass has fused, as the returned symbol shows.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from contextlib import nullcontext
from dataclasses import dataclass, field
from functools import partial
from math import prod
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from inferometer.agent.frameworks.mxnet.runtime import (
    FAILURES,
    WORKERS,
    copied_to,
    find_context,
    framework_details,
    mxnet,
    reason,
)
from inferometer.agent.hardware.environment import FrameworkDetails, default_threads
from inferometer.agent.inference.predictor import prediction_failure
from inferometer.agent.operators.operator import (
    NOTHING,
    PARTS,
    Case,
    NotSupportedHereError,
    Operator,
    OperatorRunner,
    RunnerOptions,
    cotangents,
    element_type,
)

Function: TypeAlias = Callable[..., Any]
"""Takes the input arrays or symbols in the order of the table; returns one output or a list of outputs."""
ND, SYM, GLUON = "nd", "sym", "gluon"
_NO_GRADIENT = "MXNet has no gradient of it"
_NO_KERNEL = re.compile("for MKLDNN|only support float|match specified type|DTypes are not|gemm on cpu not")


@dataclass(frozen=True, slots=True)
class Block:
    """How Gluon runs an operator.

    Attributes:
        api: The block's class, such as ``gluon.nn.Conv2D``.
        make: Returns the uninitialised block for a case.
        parameters: The table's inputs that are parameters of the block, each mapped to the block's attribute,
            such as ``{"weight": "weight"}``.
    """

    api: str
    make: Callable[[Case], Any]
    parameters: Mapping[str, str] = field(default_factory=lambda: NOTHING)


@dataclass(frozen=True, slots=True)
class Form:
    """How MXNet runs an operator.

    Attributes:
        api: The operator's name in ``mx.nd`` and ``mx.sym``, such as ``broadcast_add``; several with spaces.
        make: Returns the function for a case; its first argument is ``mx.nd`` or ``mx.sym``.
        covers: The operators of MXNet's registry that the form covers in addition to those of ``api``.
        gluon: The block, if Gluon has one.
        symbolic: Whether ``mx.sym`` has the operator.
        creates: Whether the function also takes ``dtype`` and, in ``mx.nd``, ``ctx``, because no input
            determines them.
        training: Whether to use training mode even without a gradient, because inference mode differs.
        packed: The vectors that replace several inputs in ``mx.nd`` and ``mx.sym``, with the input names in
            order; joining the inputs is not timed. A block joins them itself.
        whole: Whether the operator requires its integers, such as labels, in the type of its other inputs.
    """

    api: str
    make: Callable[[Any, Case], Function]
    covers: tuple[str, ...] = ()
    gluon: Block | None = None
    symbolic: bool = True
    creates: bool = False
    training: bool = False
    packed: Mapping[str, tuple[str, ...]] = field(default_factory=lambda: NOTHING)
    whole: bool = False

    def forms(self, *, fused: bool) -> tuple[str, ...]:
        """Returns ``nd``, then ``sym`` and ``gluon`` if available; if ``fused``, ``sym`` and ``parts``."""
        if fused:
            return (SYM, PARTS)
        return (ND, *((SYM,) if self.symbolic else ()), *((GLUON,) if self.gluon else ()))


def named(name: str, *covers: str) -> Form:
    """Returns the form of an operator that takes the table's inputs as they are."""
    return Form(name, lambda mx, _: getattr(mx, name), covers)


def with_parameters(
    name: str, *parameters: str, covers: tuple[str, ...] = (), of: Mapping[str, str] = NOTHING, **fixed: Any
) -> Form:
    """Returns the form of an operator that takes the table's inputs, and parameters with the same names.

    ``of`` maps the operator's parameters with other names to those of the table.
    """
    names = {**{each: each for each in parameters}, **of}

    def make(mx: Any, case: Case) -> Function:
        given = {own: case[ours] for own, ours in names.items()}
        return partial(getattr(mx, name), **given, **fixed)

    return Form(name, make, covers)


class _Inputs:
    """The input arrays on the device, with memory for the requested gradients.

    Masks are uint8: the operators of ``mx.nd`` do not support bool.
    """

    def __init__(
        self,
        where: str,
        context: Any,
        arrays: Mapping[str, NDArray[Any]],
        differentiable: frozenset[str],
        training: bool = False,
        packed: Mapping[str, tuple[str, ...]] = NOTHING,
    ) -> None:
        self.where = where
        self.context = context
        self.training = training
        self._packed = packed
        self._shapes = {name: array.shape for name, array in arrays.items()}
        joined = _joined(arrays, packed)
        self.arrays = {
            name: copied_to(context, array.astype(np.uint8) if array.dtype.kind == "b" else array)
            for name, array in joined.items()
        }
        self.differentiable = [
            name for name in joined if differentiable.issuperset(packed.get(name, (name,)))
        ]
        for name in self.differentiable:
            self.arrays[name].attach_grad()
        mxnet.nd.waitall()

    def gradients(self) -> dict[str, NDArray[Any]]:
        """Returns copies of the gradients; a packed vector is split into its parts."""
        found: dict[str, NDArray[Any]] = {}
        for name in self.differentiable:
            gradient = self.arrays[name].grad.asnumpy()
            for part in self._packed.get(name, (name,)):
                size = prod(self._shapes[part])
                found[part] = gradient.ravel()[:size].reshape(self._shapes[part])
                gradient = gradient.ravel()[size:]
        return found


class _Call:
    """A function of ``mx.nd``; see ``OperatorCall``. Each run waits for MXNet's engine."""

    def __init__(self, given: _Inputs, api: str, function: Function) -> None:
        self.api = api
        self.fused = ""
        self._given = given
        self._arrays = list(given.arrays.values())
        self._function = function
        self._outputs: list[Any] = []
        self._heads: list[Any] = []

    def forward(self) -> None:
        self._run(record=False)

    def forward_for_gradient(self) -> None:
        self._run(record=True)
        self._heads = self._heads or self._made_heads()

    def backward(self) -> None:
        try:
            self._differentiate()
            for name in self._given.differentiable:
                self._given.arrays[name].grad.wait_to_read()
        except FAILURES as error:
            if _lacks_gradient(error):
                raise NotSupportedHereError(_NO_GRADIENT) from error
            raise _failure(self._given.where, error) from error

    def outputs(self) -> tuple[NDArray[Any], ...]:
        return tuple(np.array(output.asnumpy()) for output in self._outputs)

    def gradients(self) -> Mapping[str, NDArray[Any]]:
        return self._given.gradients()

    def _run(self, *, record: bool) -> None:
        self._outputs = []  # the next may then have their memory, which is in the cache
        try:
            self._outputs = self._computed(record)
            for output in self._outputs:
                output.wait_to_read()
        except FAILURES as error:
            raise _failure(self._given.where, error) from error

    def _computed(self, record: bool) -> list[Any]:
        training = mxnet.autograd.train_mode() if self._given.training else nullcontext()
        with mxnet.autograd.record() if record else training:
            return _listed(self._function(*self._arrays))

    def _differentiate(self) -> None:
        mxnet.autograd.backward(self._outputs, self._heads)

    def _made_heads(self) -> list[Any]:
        heads = [
            copied_to(self._given.context, cotangents(each.shape).astype(each.dtype))
            for each in self._outputs
        ]
        mxnet.nd.waitall()
        return heads


class _SymbolCall(_Call):
    """A symbol, bound to the inputs."""

    def __init__(self, given: _Inputs, api: str, function: Function) -> None:
        super().__init__(given, api, function)
        symbol = function(*(mxnet.sym.Variable(name) for name in given.arrays))
        self._executor = self._bound(
            mxnet.sym.Group(symbol) if isinstance(symbol, list | tuple) else symbol, given
        )

    def _bound(self, symbol: Any, given: _Inputs) -> Any:
        return symbol.bind(
            given.context,
            args=given.arrays,
            args_grad={name: given.arrays[name].grad for name in given.differentiable},
            grad_req={name: "write" if name in given.differentiable else "null" for name in given.arrays},
            aux_states=given.arrays,
        )

    def _computed(self, record: bool) -> list[Any]:
        outputs: list[Any] = self._executor.forward(is_train=record or self._given.training)
        return outputs

    def _differentiate(self) -> None:
        self._executor.backward(self._heads)


class _BlockCall(_Call):
    """A Gluon block, not hybridized; its parameters have the values of the table's inputs."""

    def __init__(self, given: _Inputs, block: Block, case: Case) -> None:
        made = block.make(case)
        made.cast(next(a.dtype for a in given.arrays.values() if np.dtype(a.dtype).kind == "f"))
        made.initialize(ctx=given.context)
        arrays = [array for name, array in given.arrays.items() if name not in block.parameters]
        super().__init__(given, block.api, made)
        self._arrays = arrays
        # an inference would leave weights in oneDNN's layout, which refuses values
        with mxnet.autograd.record():
            made(*arrays)  # which gives deferred parameters their shapes
        self._parameters = {
            name: getattr(made, attribute)
            for name, attribute in block.parameters.items()
            if name in given.arrays
        }
        for name, parameter in self._parameters.items():
            parameter.set_data(given.arrays[name].reshape(parameter.shape))
        mxnet.nd.waitall()

    def gradients(self) -> Mapping[str, NDArray[Any]]:
        found = self._given.gradients()
        for name, parameter in self._parameters.items():
            if name in found:
                found[name] = parameter.grad().asnumpy().reshape(self._given.arrays[name].shape)
        return found


def _failure(where: str, error: BaseException) -> Exception:
    if _NO_KERNEL.search(str(error)):
        return NotSupportedHereError(f"MXNet has no kernel for the type: {reason(error)}")
    return prediction_failure(f"{where}: {reason(error)}", error)


def _lacks_gradient(error: BaseException) -> bool:
    """Returns whether an error of MXNet says that an operator has no gradient."""
    return re.search("(not |non-)differentiable", str(error)) is not None


def _joined(
    arrays: Mapping[str, NDArray[Any]], packed: Mapping[str, tuple[str, ...]]
) -> Mapping[str, NDArray[Any]]:
    vector_of = {part: vector for vector, parts in packed.items() for part in parts}
    found: dict[str, NDArray[Any]] = {}
    for name, array in arrays.items():
        vector = vector_of.get(name, name)
        if vector == name:
            found[name] = array
        elif vector not in found:
            found[vector] = np.concatenate([arrays[part].ravel() for part in packed[vector]])
    return found


def _listed(answer: Any) -> list[Any]:
    return list(answer) if isinstance(answer, list | tuple) else [answer]


_BACKEND = "MKLDNN"
"""MXNet 1.9's name for oneDNN's pass; given ``ONEDNN``, it warns and fuses nothing."""
_VARIABLE = "null"


class _FusedCall(_SymbolCall):
    """A symbol after oneDNN's pass, bound to the inputs, without gradients; see ``OperatorCall``.

    Raises:
        NotSupportedHereError: The pass fuses nothing here.
    """

    def _bound(self, symbol: Any, given: _Inputs) -> Any:
        symbol = symbol.get_backend_symbol(_BACKEND)
        self.fused = _seen(symbol)
        if not self.fused:
            raise NotSupportedHereError("MXNet's oneDNN pass fuses none of these operators")
        _check(given)
        return symbol.bind(
            given.context,
            args={name: given.arrays[name] for name in symbol.list_arguments()},
            aux_states={name: given.arrays[name] for name in symbol.list_auxiliary_states()},
            grad_req="null",
        )


def _check(given: _Inputs) -> None:
    if given.differentiable:
        raise NotSupportedHereError("MXNet has no gradient for what its oneDNN pass fuses")
    if given.context.device_type != "cpu":
        raise NotSupportedHereError("MXNet's oneDNN pass fuses operators only on the CPU")
    if any(each.dtype is not np.float32 for each in given.arrays.values()):
        raise NotSupportedHereError("MXNet's oneDNN pass fuses operators in float32 only")


def _seen(symbol: Any) -> str:
    """Returns the fused nodes of a symbol, each with its operators."""
    nodes = json.loads(symbol.tojson())["nodes"]
    return "; ".join(
        f"{node['name']}: {', '.join(_operators(node))}" for node in nodes if len(_operators(node)) > 1
    )


def _operators(node: dict[str, Any]) -> list[str]:
    return [
        each["op"]
        for inner in node.get("subgraphs", ())
        for each in inner["nodes"]
        if each["op"] != _VARIABLE
    ]


class MXNetOperators(OperatorRunner):
    """The operators of MXNet; see ``OperatorRunner``."""

    framework = "MXNet"
    package = __package__

    def __init__(self, options: RunnerOptions) -> None:
        super().__init__(options)
        if options.dtype == "bfloat16":
            raise NotSupportedHereError("MXNet has no bfloat16 outside of oneDNN's graphs")
        self._context = find_context(options.device, "operators")
        self._threads = WORKERS.fix(options.threads, default_threads())

    @property
    def threads(self) -> int | None:
        return self._threads

    def prepare(
        self,
        operator: Operator,
        case: Case,
        inputs: Mapping[str, NDArray[Any]],
        *,
        gradient: bool = False,
        form: str = "",
    ) -> _Call:
        found: Form = self.form_of(operator.name)
        form = form or (SYM if operator.parts else ND)
        if form not in self.forms(operator.name):
            raise NotSupportedHereError(f"MXNet has no {form} form of it")
        if gradient and element_type(self.options.dtype).kind != "f":
            raise NotSupportedHereError("gradients of integers would be rounded")
        where = f"{operator.name} in MXNet"
        wanted = {spec.name for spec in operator.tensors(case) if spec.differentiable} if gradient else set()
        try:
            packed = found.packed if form != GLUON else NOTHING
            if found.whole:
                inputs = {name: array.astype(self.options.dtype) for name, array in inputs.items()}
            given = _Inputs(where, self._context, inputs, frozenset(wanted), found.training, packed)
            if form == SYM and operator.parts:
                return _FusedCall(given, f"sym.{found.api}", found.make(mxnet.sym, case))
            if form == SYM:
                return _SymbolCall(given, f"sym.{found.api}", self._function(found, mxnet.sym, case))
            if form == GLUON and found.gluon is not None:
                return _BlockCall(given, found.gluon, case)
            return _Call(given, f"nd.{found.api}", self._function(found, mxnet.nd, case))
        except FAILURES as error:
            if _lacks_gradient(error):
                raise NotSupportedHereError(_NO_GRADIENT) from error
            raise _failure(where, error) from error

    def _function(self, form: Form, module: Any, case: Case) -> Function:
        function = form.make(module, case)
        if not form.creates:
            return function
        where = {"ctx": self._context} if module is mxnet.nd else {}  # a symbol is bound to its context
        return partial(function, dtype=self.options.dtype, **where)

    def uncovered(self) -> tuple[str, ...]:
        covered = {name for form in self.table().values() for name in (*form.api.split(), *form.covers)}
        names = set(mxnet.operator.get_all_registered_operators())
        return tuple(sorted(name for name in names if not name.startswith("_") and name not in covered))

    def details(self) -> FrameworkDetails:
        return framework_details()

    def close(self) -> None:
        """Waits for the engine; MXNet keeps its threads and memory."""
        mxnet.nd.waitall()
