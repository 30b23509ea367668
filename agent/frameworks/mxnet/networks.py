"""Gluon networks: built in code with their parameters, converted to symbols, and trained.

Random weights for a seed are the same on any machine.

In training, a network and its loss are on the devices of the process and use one of MXNet's two APIs: a
hybridized gluon block with autograd, or the Module API with a symbol bound on each device.
"""

from __future__ import annotations

import math
import re
import warnings
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np

from inferometer.agent.architectures.layers import GaussianLayer
from inferometer.agent.artifacts.files import Artifacts
from inferometer.agent.frameworks.mxnet.runtime import FAILURES, mxnet, reason
from inferometer.agent.hardware.environment import Precision, PredictorOptions, Weights
from inferometer.manifests.errors import ArtifactError
from inferometer.manifests.schema import Loss

_PIECE = 1 << 16
"""The number of weights drawn at a time; their float64 values fit into the cache."""


def build_network(
    who: object,
    artifacts: Artifacts,
    options: PredictorOptions,
    dimensions: Sequence[Sequence[int]],
    contexts: Sequence[Any],
    *,
    gradients: bool = False,
) -> Any:
    """Builds a model in code on devices; random weights depend only on the seed.

    ``who`` names the model in messages. Memory for ``gradients`` doubles the memory use.

    Returns:
        The ``gluon.HybridBlock``.

    Raises:
        ArtifactError: The model cannot be built, or the weights are missing or do not fit the model.
    """
    architecture = artifacts.architecture
    assert architecture is not None  # noqa: S101 - the caller has found one
    random = options.weights is Weights.RANDOM
    if not random and artifacts.weights is None:
        raise ArtifactError(f"{who}: has no weights; give weights_path, or use --weights=random")
    net = architecture.build(initialize=random)
    if not isinstance(net, mxnet.gluon.HybridBlock):
        raise ArtifactError(
            f'{who}: architecture "{architecture.name}" is {type(net).__name__}, which is not a '
            "gluon.HybridBlock"
        )
    parameters = net.collect_params()
    if not gradients:
        parameters.setattr("grad_req", "null")
    net.infer_shape(*(mxnet.nd.zeros((1, *each)) for each in dimensions))
    if random:
        # a layer's own initializer would draw the weights that are drawn below, more slowly
        drawn = [p for p in parameters.values() if not isinstance(p, mxnet.gluon.Constant)]
        for parameter in parameters.values():
            init = None if isinstance(parameter, mxnet.gluon.Constant) else mxnet.init.Zero()
            parameter.initialize(init, ctx=list(contexts), force_reinit=True)
        draw_weights(drawn, options.seed, getattr(net, "gaussian_layers", ()))
    else:
        try:
            net.load_parameters(str(artifacts.weights), ctx=list(contexts))
        except FAILURES as error:
            raise ArtifactError(
                f"{artifacts.weights}: are not the weights of {who}: {reason(error)}"
            ) from error
    return net


def draw_weights(parameters: Iterable[Any], seed: int, gaussian: Sequence[GaussianLayer] = ()) -> None:
    """Sets the parameters, in order, of an initialised network whose shapes are known.

    Weights are drawn as in Glorot and Bengio (2010), uniformly within ±sqrt(6 / (inputs + outputs)); scales
    and variances are set to 1, everything else to 0. ``gaussian``, if given, specifies each layer's weight
    and bias instead. MXNet's own generators return different values in each run.
    """
    generator = np.random.default_rng(seed)
    layers, bias = iter(gaussian), 0.0
    for parameter in parameters:
        shape = parameter.shape
        if gaussian and parameter.name.endswith("weight"):
            deviation, bias = next(layers)
            values = np.empty(math.prod(shape), np.float32)
            for piece in np.split(values, range(_PIECE, len(values), _PIECE)):
                piece[:] = generator.normal(0.0, deviation, len(piece))
        elif gaussian:
            values = np.full(shape, bias, np.float32)
        elif parameter.name.endswith("weight") and len(shape) > 1:
            field = math.prod(shape[2:])
            # a filter of one channel is taken for a depthwise one, whose result is of one channel, too
            channels = 2 if field > 1 and shape[1] == 1 else shape[0] + shape[1]
            bound = math.sqrt(6 / (channels * field))
            values = np.empty(math.prod(shape), np.float32)
            for piece in np.split(values, range(_PIECE, len(values), _PIECE)):
                piece[:] = generator.uniform(-bound, bound, len(piece))
        else:
            values = np.full(shape, parameter.name.endswith(("gamma", "running_var")), np.float32)
        parameter.set_data(values.reshape(shape))  # on all of its devices


def symbol_of(block: Any, inputs: Sequence[str], element_type: str | None = None) -> Any:
    """Returns the symbol of a block for the named inputs; it keeps the names of the block's parameters."""
    symbol = block(*(mxnet.sym.var(name, dtype=element_type) for name in inputs))
    # of a block with several outputs, a sequence
    return mxnet.sym.Group(symbol) if isinstance(symbol, list | tuple) else symbol


def read_parameters(weights: Path) -> dict[str, Any]:
    """Returns the arrays in a parameter file by name, without the prefixes ``arg:`` and ``aux:``."""
    try:
        loaded = mxnet.nd.load(str(weights)) or {}
        if not isinstance(loaded, dict):
            raise TypeError("its arrays have no names")
    except FAILURES as error:
        raise ArtifactError(f"{weights}: is not a file of MXNet parameters: {reason(error)}") from error
    return {re.sub("^(arg|aux):", "", name): array for name, array in loaded.items()}


def parameters_of(block: Any) -> dict[str, Any]:
    """Returns the parameters of a block by name, without a copy."""
    try:
        return {parameter.name: parameter.data() for parameter in block.collect_params().values()}
    except FAILURES as error:  # also DeferredInitializationError
        raise ArtifactError(
            f"{type(block).__name__}: has parameters without values; call initialize, then call the "
            f"block once with a batch ({reason(error)})"
        ) from error


Shard: TypeAlias = tuple[Any, Any]
"""The inputs and the targets for one device; the targets are float32, as MXNet's losses require."""


OnOutput: TypeAlias = Callable[[str, str, int], None]
"""Called with the name of an output, the type of its operator, and the handle of the output array."""


class TrainedNetwork(ABC):
    """A network with its loss on the devices of this process; its methods only queue work and never wait.

    Args:
        net: The gluon block.
        used: The gluon names of the parameters that the output depends on.

    Attributes:
        trained: The trained gluon parameters by their names in a parameter file, in the order of the layers.
        others: The other parameters, such as running means.
        batch_shapes: The input shapes in the last step, one for each device that had samples.
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
            shards: One shard for each device; None for a device without samples.

        Returns:
            The losses of the samples, one array for each device with samples.
        """

    @abstractmethod
    def backward(self, scale: float) -> None:
        """Computes the gradients of ``scale`` times the sum of the losses from the last ``forward``."""

    @abstractmethod
    def scores(self, inputs: Any) -> Any:
        """Runs the network on the first device in inference mode."""

    @abstractmethod
    def arrays(self, parameter: Any) -> list[Any]:
        """Returns the values of a parameter, one array per device."""

    def weights(self) -> list[list[Any]]:
        """Returns, for each trained parameter, one array per device."""
        return list(map(self.arrays, self.trained.values()))

    def states(self) -> list[list[Any]]:
        """Returns, for each other parameter, one array per device."""
        return list(map(self.arrays, self.others.values()))

    @abstractmethod
    def gradients(self) -> list[list[Any]]:
        """Returns, for each gradient, one array per device."""

    @abstractmethod
    def watch(self, on_output: OnOutput | None) -> None:
        """Makes later steps queue operators one by one and report each output; None restores bulk queuing.

        ``on_output`` is called on the thread that runs the step, before the next operator is queued.
        """

    @abstractmethod
    def symbols(self) -> tuple[Any, Any]:
        """Returns the graphs of the network and of its loss after a step; the latter may contain both."""

    @abstractmethod
    def update_block(self) -> None:
        """Sets the parameters of the gluon block to the values on the first device."""


def lowered(symbol: Any, precision: Precision, input_name: str) -> Any:
    """Returns the symbol with convolutions and matrix products in ``precision`` and outputs in float32."""
    if precision is Precision.FLOAT32:
        return symbol
    from mxnet.contrib import amp  # most runs need none

    converted = amp.convert_symbol(symbol, target_dtype=precision.value, data_names=[input_name])
    return mxnet.sym.cast(converted, dtype="float32")


def cross_entropy(backend: Any, scores: Any, targets: Any) -> Any:
    """Returns each sample's loss for scores of shape (batch, classes) and targets of shape (batch,).

    MXNet's ``log_softmax``, used by gluon's loss, has two to six times the error of this function on a CPU.
    """
    scores = backend.broadcast_sub(scores, backend.BlockGrad(backend.max(scores, axis=1, keepdims=True)))
    return backend.log(backend.sum(backend.exp(scores), axis=1)) - backend.pick(scores, targets)


def ctc(backend: Any, scores: Any, targets: Any) -> Any:
    """Returns sample losses for scores (batch, time steps, classes) and 1-based targets (batch, length)."""
    steps_first = backend.swapaxes(scores, dim1=0, dim2=1)
    return backend.CTCLoss(steps_first, targets, blank_label="first")


LOSSES: Mapping[Loss, Callable[[Any, Any, Any], Any]] = {Loss.CROSS_ENTROPY: cross_entropy, Loss.CTC: ctc}
"""The loss functions, whose first argument is ``mxnet.nd`` or ``mxnet.sym``."""


class GluonNetwork(TrainedNetwork):
    """Runs the block itself or, in lower precision, a block of its symbol that shares its parameters."""

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
        losses, self._losses = self._losses, []
        mxnet.autograd.backward(losses, [mxnet.nd.full(x.shape, scale, ctx=x.context) for x in losses])

    def scores(self, inputs: Any) -> Any:
        return self._block(inputs)

    def arrays(self, parameter: Any) -> list[Any]:
        return list(parameter.list_data())

    def gradients(self) -> list[list[Any]]:
        return [parameter.list_grad() for parameter in self.trained.values()]

    def watch(self, on_output: OnOutput | None) -> None:
        """Hybridizes the block and the loss again; a hook turns off bulking. See ``TrainedNetwork``."""
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
        return self._block._cached_graph[1], self._loss._cached_graph[1]

    def update_block(self) -> None:
        """Does nothing, because the block's own parameters are trained; see ``TrainedNetwork``."""


_TARGETS = "training_targets"
_OPERATOR = re.compile(r"^Op:(\S+), Name=(\S+)$", re.MULTILINE)


class ModuleNetwork(TrainedNetwork):
    """Runs a ``mx.mod.Module`` on each device, so the devices may have batches of different sizes.

    The gluon block keeps its old parameters until ``update_block``. ``SoftmaxOutput`` returns probabilities
    and, in the backward pass, the gradient of the cross entropy; the loss is a separate output.
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
        """Binds the symbol on each device for one sample, with the block's parameters."""
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
        """Runs the backward pass of the modules; see ``TrainedNetwork``.

        ``SoftmaxOutput`` computes a wrong gradient if it takes the gradient of its output into account, so
        the scale is applied afterwards.
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
        targets = mxnet.nd.zeros((len(inputs), *self._target_shape), ctx=inputs.context)
        self._modules[0].forward(mxnet.io.DataBatch([inputs], [targets]), is_train=False)
        return self._modules[0].get_outputs()[1]

    def arrays(self, parameter: Any) -> list[Any]:
        executors, name = [_executor(module) for module in self._modules], parameter.name
        return [each.arg_dict[name] if name in each.arg_dict else each.aux_dict[name] for each in executors]

    def gradients(self) -> list[list[Any]]:
        executors = [_executor(module) for module in self._modules]
        return [[each.grad_dict[p.name] for each in executors] for p in self.trained.values()]

    def watch(self, on_output: OnOutput | None) -> None:
        """Sets a monitor, which turns off bulking, on the executors of later steps.

        A monitor cannot be removed, so new executors replace the old ones at the end. See ``TrainedNetwork``.
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
        return self._scores, self._modules[0].symbol

    def _watch(self, module: Any, shard: Shard, on_output: OnOutput) -> None:
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
        for parameter in (*self.trained.values(), *self.others.values()):
            parameter.set_data(self.arrays(parameter)[0])


def _executor(module: Any) -> Any:
    """Returns the executor of a single-device module; executors for new batch sizes share its parameters."""
    return module._exec_group.execs[0]
