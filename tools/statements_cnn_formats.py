"""The formats of StatementsCNN's shipped weights: how to write, read and run each of them.

Weights are float32 arrays under the names of ``StatementsCNN.state_dict()``. Inputs are int64, (2, batch,
tokens): the token ids and the mask.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import torch
from digits_cnn_formats import Array, Format, MXNetFormat, ONNXFormat, PyTorchFormat, Weights, mxnet
from onnx import TensorProto, helper, numpy_helper

from inferometer.agent.architectures.pytorch.text_convolution import StatementsCNN

INPUTS = ("input_ids", "attention_mask")


class StatementsPyTorch(PyTorchFormat):
    """A state_dict; the graph is the class ``StatementsCNN``."""

    weights = "statements_cnn.pt"

    def predict(self, folder: Path, inputs: Array) -> Array:  # noqa: D102 - as in Format, here and below
        state = torch.load(folder / self.weights, weights_only=True)
        model = StatementsCNN(tokens=len(state["embedding.weight"])).eval()
        model.load_state_dict(state)
        with torch.inference_mode():
            logits: Array = model(*torch.from_numpy(inputs)).numpy()
        return logits


class StatementsMXNet(MXNetFormat):
    """An MXNet checkpoint: the symbol as JSON, the parameters as NDArrays named ``arg:…``."""

    graph = "statements_cnn-symbol.json"
    weights = "statements_cnn-0000.params"

    def write(self, weights: Weights, folder: Path) -> None:  # noqa: D102
        sym = mxnet.sym
        tokens, width = weights["embedding.weight"].shape
        ids, mask = map(sym.Variable, INPUTS)
        data = sym.Embedding(ids, input_dim=tokens, output_dim=width, name="embedding")
        mask = sym.expand_dims(sym.Cast(mask, dtype="float32", name="mask"), axis=1, name="mask_of_channels")
        data = sym.broadcast_mul(sym.transpose(data, axes=(0, 2, 1), name="transpose"), mask, name="masked")
        for name in ("conv1", "conv2"):
            filters = len(weights[f"{name}.weight"])
            data = sym.Convolution(data, kernel=(3,), pad=(1,), num_filter=filters, name=name)
            data = sym.Activation(data, act_type="relu", name=f"{name}_relu")
            data = sym.broadcast_mul(data, mask, name=f"{name}_masked")
        data = sym.FullyConnected(
            sym.max(data, axis=2, name="maximum"), num_hidden=len(weights["fc1.weight"]), name="fc1"
        )
        data = sym.Activation(data, act_type="relu", name="fc1_relu")
        logits = sym.FullyConnected(data, num_hidden=len(weights["fc2.weight"]), name="fc2")
        parameters = {name.replace(".", "_"): mxnet.nd.array(value) for name, value in weights.items()}
        logits.save(str(folder / self.graph))
        mxnet.nd.save(
            str(folder / self.weights), {f"arg:{name}": value for name, value in parameters.items()}
        )

    def predict(self, folder: Path, inputs: Array) -> Array:  # noqa: D102
        symbol, arguments, auxiliary = mxnet.model.load_checkpoint(str(folder / "statements_cnn"), 0)
        for name, array in zip(INPUTS, inputs, strict=True):
            arguments[name] = mxnet.nd.array(array, dtype="int64")
        executor = symbol.bind(mxnet.cpu(), arguments, aux_states=auxiliary, grad_req="null")
        logits: Array = executor.forward()[0].asnumpy()
        return logits


class StatementsONNX(ONNXFormat):
    """One ONNX file with graph and weights; batch and texts can have any size."""

    graph = "statements_cnn.onnx"

    def write(self, weights: Weights, folder: Path) -> None:  # noqa: D102
        shape = ["batch", "tokens"]
        graph = helper.make_graph(
            _onnx_nodes(),
            "StatementsCNN",
            [helper.make_tensor_value_info(name, TensorProto.INT64, shape) for name in INPUTS],
            [helper.make_tensor_value_info("logits", TensorProto.FLOAT, ["batch", 2])],
            [
                *(numpy_helper.from_array(value, name) for name, value in weights.items()),
                numpy_helper.from_array(np.array([1], np.int64), "axis_of_channels"),
            ],
        )
        # Operator set 17 in IR 8 is read by every onnxruntime since 1.13.
        model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
        onnx.checker.check_model(model, full_check=True)
        (folder / self.graph).write_bytes(model.SerializeToString(deterministic=True))

    def predict(self, folder: Path, inputs: Array) -> Array:  # noqa: D102
        session = onnxruntime.InferenceSession(folder / self.graph, providers=["CPUExecutionProvider"])
        logits: Array = session.run(None, dict(zip(INPUTS, inputs, strict=True)))[0]
        return logits


def _onnx_nodes() -> list[onnx.NodeProto]:
    """Returns the operators in order."""
    kernel: dict[str, Any] = {"kernel_shape": [3], "pads": [1, 1]}
    chain: list[tuple[str, str, tuple[str, ...], dict[str, Any]]] = [
        ("Cast", "mask", ("attention_mask",), {"to": TensorProto.FLOAT}),
        ("Unsqueeze", "mask_of_channels", ("mask", "axis_of_channels"), {}),
        ("Gather", "embedding", ("embedding.weight", "input_ids"), {}),
        ("Transpose", "transpose", ("embedding",), {"perm": [0, 2, 1]}),
        ("Mul", "masked", ("transpose", "mask_of_channels"), {}),
        ("Conv", "conv1", ("masked", "conv1.weight", "conv1.bias"), kernel),
        ("Relu", "conv1_relu", ("conv1",), {}),
        ("Mul", "conv1_masked", ("conv1_relu", "mask_of_channels"), {}),
        ("Conv", "conv2", ("conv1_masked", "conv2.weight", "conv2.bias"), kernel),
        ("Relu", "conv2_relu", ("conv2",), {}),
        ("Mul", "conv2_masked", ("conv2_relu", "mask_of_channels"), {}),
        ("ReduceMax", "maximum", ("conv2_masked",), {"axes": [2], "keepdims": 0}),
        ("Gemm", "fc1", ("maximum", "fc1.weight", "fc1.bias"), {"transB": 1}),
        ("Relu", "fc1_relu", ("fc1",), {}),
        ("Gemm", "logits", ("fc1_relu", "fc2.weight", "fc2.bias"), {"transB": 1}),
    ]
    return [
        helper.make_node(operator, list(inputs), [output], name=output, **attributes)
        for operator, output, inputs, attributes in chain
    ]


FORMATS: tuple[Format, ...] = (StatementsPyTorch(), StatementsMXNet(), StatementsONNX())
