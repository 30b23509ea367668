"""A network that the Module API trains: a symbol with its loss, bound on each device."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from inferometer.agent.frameworks.mxnet_runtime import mxnet
from inferometer.agent.frameworks.mxnet_training.networks import LOSSES, Shard, TrainedNetwork, lowered
from inferometer.agent.inference.predictor import Precision
from inferometer.manifests.schema import Loss

_TARGETS = "training_targets"


class ModuleNetwork(TrainedNetwork):
    """A ``mx.mod.Module`` for each device, so that devices may have batches of different sizes.

    The block that the symbol is from keeps its parameters until ``update_block``. ``SoftmaxOutput`` gives the
    probabilities and, backwards, the gradient of the cross entropy; the loss is an output beside it.
    """

    def __init__(
        self, net: Any, symbol: Any, data: Any, loss: Loss, precision: Precision, contexts: Sequence[Any]
    ) -> None:
        super().__init__(net, symbol.list_inputs())
        net.collect_params().setattr("grad_req", "null")  # frees the block's own gradients
        self._name = data.name
        self._softmax = loss is Loss.CROSS_ENTROPY
        self._target_shape: tuple[int, ...] = (1,) if loss is Loss.CTC else ()
        scores, targets = lowered(symbol, precision, data.name), mxnet.sym.var(_TARGETS)
        shown = mxnet.sym.BlockGrad(scores, name="scores")
        if loss is Loss.CTC:
            self._loss_at, outputs = 0, [LOSSES[loss](mxnet.sym, scores, targets), shown]
        else:
            losses = LOSSES[loss](mxnet.sym, scores, targets)
            softmax = mxnet.sym.SoftmaxOutput(scores, targets)
            self._loss_at, outputs = 2, [softmax, shown, mxnet.sym.BlockGrad(losses)]
        self._modules = [
            mxnet.mod.Module(mxnet.sym.Group(outputs), [self._name], [_TARGETS], context=context)
            for context in contexts
        ]
        self._ran: list[Any] = []

    def bind(self, input_shape: Sequence[int], element_type: str) -> None:
        """Binds the symbol on each device for one sample, with the parameters of the block."""
        arrays = {p.name: p.data(p.list_ctx()[0]) for p in (*self.trained.values(), *self.others.values())}
        auxiliary = set(self._modules[0].symbol.list_auxiliary_states())
        data = [mxnet.io.DataDesc(self._name, (1, *input_shape), element_type)]
        targets = [mxnet.io.DataDesc(_TARGETS, (1, *self._target_shape), "float32")]
        fixed = {p.name for p in self.others.values()} - auxiliary
        requests = {name: "null" if name in fixed else "write" for name in arrays if name not in auxiliary}
        for module in self._modules:
            module.bind(data, targets, grad_req={**requests, self._name: "null", _TARGETS: "null"})
            module.init_params(
                arg_params={name: array for name, array in arrays.items() if name not in auxiliary},
                aux_params={name: array for name, array in arrays.items() if name in auxiliary},
            )

    def forward(self, shards: Sequence[Shard | None]) -> list[Any]:
        """Runs the modules; see ``TrainedNetwork``."""
        self._ran = []
        for module, shard in zip(self._modules, shards, strict=True):
            if shard is None:
                for parameter in self.trained.values():
                    _executor(module).grad_dict[parameter.name][:] = 0
            else:
                module.forward(mxnet.io.DataBatch([shard[0]], [shard[1]]), is_train=True)
                self._ran.append(module)
        return [module.get_outputs()[self._loss_at] for module in self._ran]

    def backward(self, scale: float) -> None:
        """Runs the modules backwards; see ``TrainedNetwork``.

        ``SoftmaxOutput`` computes a wrong gradient where it is told to take that of its output into account,
        so that the scale comes afterwards.
        """
        for module in self._ran:
            heads = [mxnet.nd.full(each.shape, scale, ctx=each.context) for each in module.get_outputs()]
            module.backward(heads)
            if self._softmax and scale != 1:
                for parameter in self.trained.values():
                    _executor(module).grad_dict[parameter.name][:] *= scale

    def scores(self, inputs: Any) -> Any:
        """Runs the first module without gradients; see ``TrainedNetwork``."""
        targets = mxnet.nd.zeros((len(inputs), *self._target_shape), ctx=inputs.context)
        self._modules[0].forward(mxnet.io.DataBatch([inputs], [targets]), is_train=False)
        return self._modules[0].get_outputs()[1]

    def weights(self) -> list[list[Any]]:
        """See ``TrainedNetwork``."""
        return [self._arrays(parameter.name) for parameter in self.trained.values()]

    def gradients(self) -> list[list[Any]]:
        """See ``TrainedNetwork``."""
        executors = [_executor(module) for module in self._modules]
        return [[each.grad_dict[p.name] for each in executors] for p in self.trained.values()]

    def states(self) -> list[list[Any]]:
        """See ``TrainedNetwork``."""
        return [self._arrays(parameter.name) for parameter in self.others.values()]

    def update_block(self) -> None:
        """See ``TrainedNetwork``."""
        for parameter in (*self.trained.values(), *self.others.values()):
            parameter.set_data(self._arrays(parameter.name)[0])

    def _arrays(self, name: str) -> list[Any]:
        executors = [_executor(module) for module in self._modules]
        return [each.arg_dict[name] if name in each.arg_dict else each.aux_dict[name] for each in executors]


def _executor(module: Any) -> Any:
    """The executor of a module with one device; that of a new batch size has the same parameters."""
    return module._exec_group.execs[0]
