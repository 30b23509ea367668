"""The formats of DigitsCNN's shipped weights: how to write, read and run each of them.

Weights are float32 arrays under the names of ``DigitsCNN.state_dict()``. A folder is the model's folder,
whose manifests name its files.
"""

from __future__ import annotations

import warnings
from abc import ABC, abstractmethod
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import torch
from numpy.typing import NDArray
from onnx import ModelProto, TensorProto, helper, numpy_helper

from inferometer.agent.architectures.pytorch.feed_forward import DigitsCNN

with warnings.catch_warnings():
    warnings.simplefilter("ignore", DeprecationWarning)
    np.bool = np.bool_  # type: ignore[attr-defined]  # the alias that mxnet 1.9.1 still uses
    import mxnet

Array = NDArray[Any]
Weights = Mapping[str, Array]


class Format(ABC):
    """One framework's format.

    Attributes:
        framework: The framework's name in manifests.
        manifest: The model manifest that names the files.
        graph: The file with the graph, if any.
        weights: The file with the weights, unless the graph's file contains them.
    """

    framework: str
    manifest: str
    graph: str | None = None
    weights: str | None = None

    @property
    def files(self) -> dict[str, str]:
        """The names of the files, by ``graph`` and ``weights``."""
        named = {"graph": self.graph, "weights": self.weights}
        return {kind: name for kind, name in named.items() if name}

    @abstractmethod
    def write(self, weights: Weights, folder: Path) -> None:
        """Writes the files."""

    @abstractmethod
    def read_weights(self, folder: Path) -> Weights:
        """Returns the weights in the files, under the format's own names."""

    @abstractmethod
    def read_graph(self, folder: Path) -> str:
        """Returns everything in the files except the weights, as text."""

    @abstractmethod
    def predict(self, folder: Path, inputs: Array) -> Array:
        """Returns the logits, shape (batch, 10), for preprocessed float32 images of (batch, 1, 16, 16)."""


class PyTorchFormat(Format):
    """A state_dict; the graph is the class ``DigitsCNN``."""

    framework = "PyTorch"
    manifest = "pytorch.yml"
    weights = "digits_cnn.pt"

    def write(self, weights: Weights, folder: Path) -> None:  # noqa: D102 - as in Format, here and below
        torch.save({name: torch.from_numpy(value) for name, value in weights.items()}, folder / self.weights)

    def read_weights(self, folder: Path) -> Weights:  # noqa: D102
        state = torch.load(folder / self.weights, weights_only=True)
        return {name: value.numpy() for name, value in state.items()}

    def read_graph(self, folder: Path) -> str:  # noqa: D102
        return ""

    def predict(self, folder: Path, inputs: Array) -> Array:  # noqa: D102
        model = DigitsCNN().eval()
        model.load_state_dict(torch.load(folder / self.weights, weights_only=True))
        with torch.inference_mode():
            logits: Array = model(torch.from_numpy(inputs)).numpy()
        return logits


class MXNetFormat(Format):
    """An MXNet checkpoint: the symbol as JSON, the parameters as NDArrays named ``arg:…``."""

    framework = "MXNet"
    manifest = "mxnet.yml"
    graph = "digits_cnn-symbol.json"
    weights = "digits_cnn-0000.params"

    def write(self, weights: Weights, folder: Path) -> None:  # noqa: D102
        sym = mxnet.sym
        data = sym.Variable("data")
        for name, filters in (("conv1", 16), ("conv2", 32)):
            data = sym.Convolution(data, kernel=(3, 3), pad=(1, 1), num_filter=filters, name=name)
            data = sym.Activation(data, act_type="relu", name=f"{name}_relu")
            data = sym.Pooling(data, kernel=(2, 2), stride=(2, 2), pool_type="max", name=f"{name}_pool")
        data = sym.FullyConnected(sym.Flatten(data, name="flatten"), num_hidden=64, name="fc1")
        data = sym.Activation(data, act_type="relu", name="fc1_relu")
        logits = sym.FullyConnected(data, num_hidden=10, name="fc2")
        parameters = {name.replace(".", "_"): mxnet.nd.array(value) for name, value in weights.items()}
        logits.save(str(folder / self.graph))
        mxnet.nd.save(
            str(folder / self.weights), {f"arg:{name}": value for name, value in parameters.items()}
        )

    def read_weights(self, folder: Path) -> Weights:  # noqa: D102
        return {name: value.asnumpy() for name, value in mxnet.nd.load(str(folder / self.weights)).items()}

    def read_graph(self, folder: Path) -> str:  # noqa: D102
        return (folder / self.graph).read_text(encoding="utf-8")

    def predict(self, folder: Path, inputs: Array) -> Array:  # noqa: D102
        symbol, arguments, auxiliary = mxnet.model.load_checkpoint(str(folder / "digits_cnn"), 0)
        arguments["data"] = mxnet.nd.array(inputs)
        executor = symbol.bind(mxnet.cpu(), arguments, aux_states=auxiliary, grad_req="null")
        logits: Array = executor.forward()[0].asnumpy()
        return logits


class ONNXFormat(Format):
    """One ONNX file with graph and weights; the batch can have any size."""

    framework = "ONNXRuntime"
    manifest = "onnxruntime.yml"
    graph = "digits_cnn.onnx"

    def write(self, weights: Weights, folder: Path) -> None:  # noqa: D102
        graph = helper.make_graph(
            _onnx_nodes(),
            "DigitsCNN",
            [helper.make_tensor_value_info("data", TensorProto.FLOAT, ["batch", 1, 16, 16])],
            [helper.make_tensor_value_info("logits", TensorProto.FLOAT, ["batch", 10])],
            [numpy_helper.from_array(value, name) for name, value in weights.items()],
        )
        # Operator set 17 in IR 8 is read by every onnxruntime since 1.13.
        model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
        onnx.checker.check_model(model, full_check=True)
        (folder / self.graph).write_bytes(model.SerializeToString(deterministic=True))

    def read_weights(self, folder: Path) -> Weights:  # noqa: D102
        initializers = onnx.load(folder / self.graph).graph.initializer
        return {value.name: numpy_helper.to_array(value) for value in initializers}

    def read_graph(self, folder: Path) -> str:  # noqa: D102
        model: ModelProto = onnx.load(folder / self.graph)
        for weight in model.graph.initializer:
            weight.ClearField("raw_data")
        return str(model)

    def predict(self, folder: Path, inputs: Array) -> Array:  # noqa: D102
        session = onnxruntime.InferenceSession(folder / self.graph, providers=["CPUExecutionProvider"])
        logits: Array = session.run(None, {"data": inputs})[0]
        return logits


def _onnx_nodes() -> list[onnx.NodeProto]:
    """Returns the operators in order, each with the output of its predecessor as its first input."""
    kernel: dict[str, Any] = {"kernel_shape": [3, 3], "pads": [1, 1, 1, 1]}
    window: dict[str, Any] = {"kernel_shape": [2, 2], "strides": [2, 2]}
    chain: list[tuple[str, str, tuple[str, ...], dict[str, Any]]] = [
        ("Conv", "conv1", ("conv1.weight", "conv1.bias"), kernel),
        ("Relu", "conv1_relu", (), {}),
        ("MaxPool", "conv1_pool", (), window),
        ("Conv", "conv2", ("conv2.weight", "conv2.bias"), kernel),
        ("Relu", "conv2_relu", (), {}),
        ("MaxPool", "conv2_pool", (), window),
        ("Flatten", "flatten", (), {"axis": 1}),
        ("Gemm", "fc1", ("fc1.weight", "fc1.bias"), {"transB": 1}),
        ("Relu", "fc1_relu", (), {}),
        ("Gemm", "logits", ("fc2.weight", "fc2.bias"), {"transB": 1}),
    ]
    nodes = []
    last = "data"
    for operator, output, parameters, attributes in chain:
        nodes.append(helper.make_node(operator, [last, *parameters], [output], name=output, **attributes))
        last = output
    return nodes


FORMATS: tuple[Format, ...] = (PyTorchFormat(), MXNetFormat(), ONNXFormat())
