"""A network that the Module API trains: a symbol with its loss, bound on each device."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
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

_TARGETS = "training_targets"
_OPERATOR = re.compile(r"^Op:(\S+), Name=(\S+)$", re.MULTILINE)


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
        self._scores = scores
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
        self._on_output: OnOutput | None = None
        self._watched: list[Any] = []

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
        self.batch_shapes = [shard[0].shape for shard in shards if shard]
        self._ran = []
        for module, shard in zip(self._modules, shards, strict=True):
            if shard is None:
                for parameter in self.trained.values():
                    _executor(module).grad_dict[parameter.name][:] = 0
            else:
                if self._on_output is not None:
                    self._watch(module, shard, self._on_output)
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
            if self._on_output is not None:  # or they would run beside the first operators
                mxnet.nd.waitall()
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

    def watch(self, on_output: OnOutput | None) -> None:
        """Sets the monitor of the executors of later steps, with which they queue no bulks.

        An executor cannot lose its monitor: at the end, each makes way for a new one. See ``TrainedNetwork``.
        """
        if on_output is None and self._watched:
            for module in self._modules:
                samples = module.data_shapes[0].shape[0]
                module.reshape(
                    *(
                        [mxnet.io.DataDesc(x.name, (samples + 1, *x.shape[1:]), x.dtype) for x in found]
                        for found in (module.data_shapes, module.label_shapes)
                    )
                )
        self._on_output, self._watched = on_output, []

    def symbols(self) -> tuple[Any, Any]:
        """See ``TrainedNetwork``."""
        return self._scores, self._modules[0].symbol

    def _watch(self, module: Any, shard: Shard, on_output: OnOutput) -> None:
        """Sets the monitor of the executor that the shard needs."""
        inputs, targets = shard
        module.reshape(
            [mxnet.io.DataDesc(self._name, inputs.shape, inputs.dtype)],
            [mxnet.io.DataDesc(_TARGETS, targets.shape, targets.dtype)],
        )
        executor = _executor(module)
        if any(executor is each for each in self._watched):
            return
        types: Mapping[str, str] = {name: type_ for type_, name in _OPERATOR.findall(executor.debug_str())}

        def called(name: bytes, handle: int) -> None:
            output = name.decode()
            on_output(output, types.get(output.rpartition("_")[0], ""), handle)

        executor.set_monitor_callback(called)
        self._watched.append(executor)

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
