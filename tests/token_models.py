"""A tiny model of three int64 inputs of dynamic length and two outputs, the same in each framework.

``scores`` (batch × 2) are a linear layer over the mean of the embedded tokens that ``attention_mask`` counts;
``hidden`` (batch × length × 4) are the embedded tokens.
"""

from __future__ import annotations

import warnings
from pathlib import Path

import numpy as np
import onnx
import torch
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper

from tests.optional_mxnet import mxnet

NAMES = ("input_ids", "attention_mask", "token_type_ids")
_VOCABULARY, _WIDTH = 50, 4
_random = np.random.default_rng(3)
TOKENS, TYPES, WEIGHT = (
    _random.normal(size=shape).astype(np.float32)
    for shape in ((_VOCABULARY, _WIDTH), (2, _WIDTH), (2, _WIDTH))
)


class TokenNet(torch.nn.Module):
    """The model in PyTorch; its arguments are in another order than those of the manifests."""

    def __init__(self) -> None:
        super().__init__()
        self.tokens = torch.nn.Embedding.from_pretrained(torch.from_numpy(TOKENS))  # type: ignore[no-untyped-call]
        self.types = torch.nn.Embedding.from_pretrained(torch.from_numpy(TYPES))  # type: ignore[no-untyped-call]
        self.fc = torch.nn.Linear(_WIDTH, 2, bias=False)
        with torch.no_grad():
            self.fc.weight.copy_(torch.from_numpy(WEIGHT))

    def forward(
        self, input_ids: torch.Tensor, token_type_ids: torch.Tensor, attention_mask: torch.Tensor
    ) -> dict[str, torch.Tensor]:
        hidden = self.tokens(input_ids) + self.types(token_type_ids)
        counted = attention_mask.unsqueeze(-1).to(hidden.dtype)
        mean = (hidden * counted).sum(1) / counted.sum(1)
        return {"scores": self.fc(mean), "hidden": hidden}


def expected(arrays: dict[str, NDArray[np.int64]]) -> dict[str, NDArray[np.float32]]:
    hidden = TOKENS[arrays["input_ids"]] + TYPES[arrays["token_type_ids"]]
    counted = arrays["attention_mask"][..., np.newaxis].astype(np.float32)
    mean = (hidden * counted).sum(1) / counted.sum(1)
    return {"scores": mean @ WEIGHT.T, "hidden": hidden}


def save_program(path: Path) -> Path:
    examples = tuple(torch.ones((2, 6), dtype=torch.int64) for _ in NAMES)
    axes = {0: torch.export.Dim("batch", max=1024), 1: torch.export.Dim("length", max=512)}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # PyTorch's own deprecations
        program = torch.export.export(TokenNet().eval(), examples, dynamic_shapes=(axes, axes, axes))
        torch.export.save(program, path)
    return path


def save_script(path: Path) -> Path:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch.jit is deprecated, and still read
        torch.jit.save(torch.jit.script(TokenNet().eval()), path)
    return path


def save_symbol(folder: Path) -> Path:
    sym = mxnet.sym
    ids, mask, types = (sym.var(name, dtype="int64", shape=(0, 0)) for name in NAMES)
    size = {"output_dim": _WIDTH}
    hidden = sym.elemwise_add(
        sym.Embedding(ids, sym.var("tokens_weight"), input_dim=_VOCABULARY, **size),
        sym.Embedding(types, sym.var("types_weight"), input_dim=2, **size),
        name="hidden",
    )
    counted = sym.expand_dims(sym.cast(mask, dtype="float32"), axis=2)
    mean = sym.broadcast_div(sym.sum(sym.broadcast_mul(hidden, counted), axis=1), sym.sum(counted, axis=1))
    scores = sym.FullyConnected(mean, sym.var("fc_weight"), num_hidden=2, no_bias=True, name="scores")
    path = folder / "net-symbol.json"
    sym.Group([scores, hidden]).save(str(path))
    arrays = {"tokens_weight": TOKENS, "types_weight": TYPES, "fc_weight": WEIGHT}
    parameters = {
        f"arg:{name}": mxnet.nd.from_numpy(array, zero_copy=False) for name, array in arrays.items()
    }
    mxnet.nd.save(str(folder / "net-0000.params"), parameters)
    return path


def save_onnx(path: Path) -> Path:
    def given(name: str) -> onnx.ValueInfoProto:
        return helper.make_tensor_value_info(name, TensorProto.INT64, ("batch", "length"))

    axis = numpy_helper.from_array(np.array([1], np.int64), "axis")
    last = numpy_helper.from_array(np.array([2], np.int64), "last")
    weights = (("tokens", TOKENS), ("types", TYPES), ("weight", WEIGHT.T.copy()))
    nodes = [
        helper.make_node("Gather", ["tokens", "input_ids"], ["token"]),
        helper.make_node("Gather", ["types", "token_type_ids"], ["type"]),
        helper.make_node("Add", ["token", "type"], ["hidden"]),
        helper.make_node("Cast", ["attention_mask"], ["mask"], to=TensorProto.FLOAT),
        helper.make_node("Unsqueeze", ["mask", "last"], ["counted"]),
        helper.make_node("Mul", ["hidden", "counted"], ["kept"]),
        helper.make_node("ReduceSum", ["kept", "axis"], ["total"], keepdims=0),
        helper.make_node("ReduceSum", ["counted", "axis"], ["count"], keepdims=0),
        helper.make_node("Div", ["total", "count"], ["mean"]),
        helper.make_node("MatMul", ["mean", "weight"], ["scores"]),
    ]
    outputs = [
        helper.make_tensor_value_info("scores", TensorProto.FLOAT, ("batch", 2)),
        helper.make_tensor_value_info("hidden", TensorProto.FLOAT, ("batch", "length", _WIDTH)),
    ]
    initializers = [axis, last, *(numpy_helper.from_array(array, name) for name, array in weights)]
    graph = helper.make_graph(nodes, "tokens", [given(name) for name in NAMES], outputs, initializers)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    onnx.save(model, path)
    return path


SAVERS = {
    "PyTorch": lambda folder: save_program(folder / "net.pt2"),
    "TorchScript": lambda folder: save_script(folder / "net.pt"),
    "MXNet": save_symbol,
    "ONNXRuntime": lambda folder: save_onnx(folder / "net.onnx"),
}
"""What writes the model's file into a folder, by framework; TorchScript is PyTorch's too."""


def batch(rows: int, length: int, seed: int = 0) -> dict[str, NDArray[np.int64]]:
    random = np.random.default_rng(seed)
    mask = np.ones((rows, length), np.int64)
    mask[:, length // 2 + 1 :] = random.integers(0, 2, mask[:, length // 2 + 1 :].shape)
    return {
        "input_ids": random.integers(0, _VOCABULARY, (rows, length)),
        "attention_mask": mask,
        "token_type_ids": random.integers(0, 2, (rows, length)),
    }
