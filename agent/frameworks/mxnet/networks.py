"""Networks of gluon: built in code with their parameters, and turned into symbols."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from inferometer.agent.architectures.mxnet.random_weights import draw_weights
from inferometer.agent.artifacts.model_files import Artifacts
from inferometer.agent.frameworks.mxnet.runtime import FAILURES, mxnet, reason
from inferometer.agent.inference.predictor import PredictorOptions, Weights
from inferometer.manifests.errors import ArtifactError


def build_network(
    who: object,
    artifacts: Artifacts,
    options: PredictorOptions,
    dimensions: Sequence[Sequence[int]],
    contexts: Sequence[Any],
    *,
    gradients: bool = False,
) -> Any:
    """Builds a model in code on devices; random weights depend on the seed alone.

    Args:
        who: The model, as messages name it.
        artifacts: Its architecture and its weights.
        options: The source of the weights and the seed.
        dimensions: The shape of each input, without the batch.
        contexts: The devices, each of which holds all parameters.
        gradients: Whether memory for gradients is allocated, which is as much again.

    Returns:
        The ``gluon.HybridBlock``.

    Raises:
        ArtifactError: The model cannot be built, or the weights are missing or not its own.
    """
    architecture = artifacts.architecture
    assert architecture is not None  # noqa: S101 - the caller has found one
    random = options.weights is Weights.RANDOM
    if not random and artifacts.weights is None:
        raise ArtifactError(f"{who}: has no weights; give weights_path, or use --weights=random")
    net = architecture.build(initialize=random)
    if not isinstance(net, mxnet.gluon.HybridBlock):
        raise ArtifactError(
            f'{who}: architecture "{architecture.name}" is {type(net).__name__}, which is no '
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


def symbol_of(block: Any, inputs: Sequence[str], element_type: str | None = None) -> Any:
    """Returns the symbol of a block with these inputs, which has the names of the block's parameters."""
    symbol = block(*(mxnet.sym.var(name, dtype=element_type) for name in inputs))
    # of a block with several outputs, a sequence
    return mxnet.sym.Group(symbol) if isinstance(symbol, list | tuple) else symbol


def read_parameters(weights: Path) -> dict[str, Any]:
    """The arrays of a file of parameters, without the ``arg:`` and ``aux:`` of their names."""
    try:
        loaded = mxnet.nd.load(str(weights)) or {}
        if not isinstance(loaded, dict):
            raise TypeError("its arrays have no names")
    except FAILURES as error:
        raise ArtifactError(f"{weights}: is no file of MXNet parameters: {reason(error)}") from error
    return {re.sub("^(arg|aux):", "", name): array for name, array in loaded.items()}


def parameters_of(block: Any) -> dict[str, Any]:
    """The parameters of a block by name, where they are."""
    try:
        return {parameter.name: parameter.data() for parameter in block.collect_params().values()}
    except FAILURES as error:  # also DeferredInitializationError
        raise ArtifactError(
            f"{type(block).__name__}: has parameters without values; call initialize, and the block once "
            f"with a batch ({reason(error)})"
        ) from error
