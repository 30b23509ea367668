"""An operator of MXNet on its inputs: by a function of ``mx.nd``, a bound symbol, or a block of Gluon."""

from __future__ import annotations

import re
from collections.abc import Mapping
from contextlib import nullcontext
from math import prod
from typing import Any

import numpy as np
from numpy.typing import NDArray

from inferometer.agent.frameworks.mxnet.operators.functions import Block, Function
from inferometer.agent.frameworks.mxnet.runtime import FAILURES, copied_to, mxnet, reason
from inferometer.agent.inference.predictor import prediction_failure
from inferometer.agent.operators.inputs import cotangents
from inferometer.agent.operators.operator import NOTHING, Case
from inferometer.agent.operators.runner import NotSupportedHereError

NO_GRADIENT = "MXNet has no gradient of it"


class Inputs:
    """The input arrays on the device, with room for their gradients where those are wanted.

    Masks are uint8: the operators of ``mx.nd`` know no bool.
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
        """Returns copies of the gradients; of a packed vector those of its parts."""
        found: dict[str, NDArray[Any]] = {}
        for name in self.differentiable:
            gradient = self.arrays[name].grad.asnumpy()
            for part in self._packed.get(name, (name,)):
                size = prod(self._shapes[part])
                found[part] = gradient.ravel()[:size].reshape(self._shapes[part])
                gradient = gradient.ravel()[size:]
        return found


class Call:
    """A function of ``mx.nd``; see ``OperatorCall``. Each run waits for MXNet's engine."""

    def __init__(self, given: Inputs, api: str, function: Function) -> None:
        self.api = api
        self.fused = ""
        self._given = given
        self._arrays = list(given.arrays.values())
        self._function = function
        self._outputs: list[Any] = []
        self._heads: list[Any] = []

    def forward(self) -> None:
        """See ``OperatorCall``."""
        self._outputs = []  # the next may then have their memory, which is in the cache
        try:
            with mxnet.autograd.train_mode() if self._given.training else nullcontext():
                self._outputs = _listed(self._function(*self._arrays))
            for output in self._outputs:
                output.wait_to_read()
        except FAILURES as error:
            raise self._failure(error) from error

    def forward_for_gradient(self) -> None:
        """See ``OperatorCall``."""
        self._outputs = []
        try:
            with mxnet.autograd.record():
                self._outputs = _listed(self._function(*self._arrays))
            for output in self._outputs:
                output.wait_to_read()
        except FAILURES as error:
            raise self._failure(error) from error
        self._heads = self._heads or self._made_heads()

    def backward(self) -> None:
        """See ``OperatorCall``."""
        try:
            mxnet.autograd.backward(self._outputs, self._heads)
            for name in self._given.differentiable:
                self._given.arrays[name].grad.wait_to_read()
        except FAILURES as error:
            if lacks_gradient(error):
                raise NotSupportedHereError(NO_GRADIENT) from error
            raise self._failure(error) from error

    def outputs(self) -> tuple[NDArray[Any], ...]:
        """See ``OperatorCall``."""
        return tuple(np.array(output.asnumpy()) for output in self._outputs)

    def gradients(self) -> Mapping[str, NDArray[Any]]:
        """See ``OperatorCall``."""
        return self._given.gradients()

    def _made_heads(self) -> list[Any]:
        heads = [
            copied_to(self._given.context, cotangents(each.shape).astype(each.dtype))
            for each in self._outputs
        ]
        mxnet.nd.waitall()
        return heads

    def _failure(self, error: BaseException) -> Exception:
        return prediction_failure(f"{self._given.where}: {reason(error)}", error)


class SymbolCall(Call):
    """A symbol, bound to the inputs."""

    def __init__(self, given: Inputs, api: str, function: Function) -> None:
        super().__init__(given, api, function)
        symbol = function(*(mxnet.sym.Variable(name) for name in given.arrays))
        symbol = mxnet.sym.Group(symbol) if isinstance(symbol, list | tuple) else symbol
        self._executor = symbol.bind(
            given.context,
            args=given.arrays,
            args_grad={name: given.arrays[name].grad for name in given.differentiable},
            grad_req={name: "write" if name in given.differentiable else "null" for name in given.arrays},
            aux_states=given.arrays,
        )

    def forward(self) -> None:
        """See ``OperatorCall``."""
        self._forward(train=self._given.training)

    def forward_for_gradient(self) -> None:
        """See ``OperatorCall``."""
        self._forward(train=True)
        self._heads = self._heads or self._made_heads()

    def backward(self) -> None:
        """See ``OperatorCall``."""
        try:
            self._executor.backward(self._heads)
            for name in self._given.differentiable:
                self._given.arrays[name].grad.wait_to_read()
        except FAILURES as error:
            raise self._failure(error) from error

    def _forward(self, *, train: bool) -> None:
        try:
            self._outputs = self._executor.forward(is_train=train)
            for output in self._outputs:
                output.wait_to_read()
        except FAILURES as error:
            raise self._failure(error) from error


class BlockCall(Call):
    """A block of Gluon, not hybridized; its parameters have the values of the inputs of the table."""

    def __init__(self, given: Inputs, block: Block, case: Case) -> None:
        made = block.make(case)
        made.cast(next(a.dtype for a in given.arrays.values() if np.dtype(a.dtype).kind == "f"))
        made.initialize(ctx=given.context)
        arrays = [array for name, array in given.arrays.items() if name not in block.parameters]
        super().__init__(given, block.api, made)
        self._arrays = arrays
        with (
            mxnet.autograd.record()
        ):  # an inference would leave weights in oneDNN's layout, which refuses values
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
        """See ``OperatorCall``."""
        found = self._given.gradients()
        for name, parameter in self._parameters.items():
            if name in found:
                found[name] = parameter.grad().asnumpy().reshape(self._given.arrays[name].shape)
        return found


def lacks_gradient(error: BaseException) -> bool:
    """Returns whether MXNet says that an operator has no gradient."""
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
