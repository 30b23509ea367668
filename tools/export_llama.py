"""Writes a Llama, a folder of Hugging Face's format, as an ONNX file in the layout of Optimum's exports.

    python -m tools.export_llama inferometer/manifests/builtin/models/ToyLlama FOLDER

FOLDER then has ``model.onnx``, ``config.json``, and the folder's other files except the weights. With a
manifest of the framework ONNXRuntime beside them, it is a model (docs/serving.md).
"""

from __future__ import annotations

import argparse
import math
import shutil
import warnings
from pathlib import Path

import torch
from torch import nn

from inferometer.agent.architectures.pytorch.llama import Attention, Llama, Step, rotated
from inferometer.agent.frameworks.pytorch.language_model import load_weights, read_config

MODEL, OPSET = "model.onnx", 17
INPUTS = ("input_ids", "attention_mask", "position_ids")


class Norm(nn.Module):
    """RMSNorm of operators that this opset has."""

    def __init__(self, norm: nn.RMSNorm) -> None:
        super().__init__()
        self.weight, self.eps = norm.weight, norm.eps

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        """Returns the normalised vectors."""
        return hidden * torch.rsqrt(hidden.square().mean(-1, keepdim=True) + self.eps) * self.weight


class Decoder(nn.Module):
    """A Llama that is given its cache, and returns it with the new tokens."""

    def __init__(self, llama: Llama) -> None:
        super().__init__()
        self.llama, body = llama, llama.model
        for owner in (body, *body.layers):
            for name, child in list(owner.named_children()):
                if isinstance(child, nn.RMSNorm):
                    setattr(owner, name, Norm(child))

    def forward(
        self, ids: torch.Tensor, mask: torch.Tensor, positions: torch.Tensor, *past: torch.Tensor
    ) -> tuple[torch.Tensor, ...]:
        """Returns the logits, n × T × vocabulary, and the keys and values of each layer."""
        config, body = self.llama.config, self.llama.model
        angles = (positions[..., None].float() * config.frequencies(positions.device)).repeat(1, 1, 2)
        angles, dtype = angles[:, :, None], self.llama.lm_head.weight.dtype
        count, length = ids.shape[1], mask.shape[1]
        last = torch.arange(count)[:, None] + length - count
        seen = (torch.arange(length) <= last) & mask[:, None, None].bool()
        step = Step(slice(None), positions, length, angles.cos().to(dtype), angles.sin().to(dtype), seen)
        hidden, presents = body.embed_tokens(ids), []
        for layer, keys, values in zip(body.layers, past[::2], past[1::2], strict=True):
            attended, keys, values = attend(
                layer.self_attn, layer.input_layernorm(hidden), step, keys, values
            )
            hidden = hidden + attended
            hidden = hidden + layer.mlp(layer.post_attention_layernorm(hidden))
            presents += [keys, values]
        return (self.llama.lm_head(body.norm(hidden)), *presents)


def attend(
    attention: Attention, hidden: torch.Tensor, step: Step, keys: torch.Tensor, values: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Returns what new tokens attend to, and all keys and values, n × heads × positions × head size."""
    queries, new_keys, new_values = (
        project(hidden).unflatten(-1, (-1, keys.shape[-1]))
        for project in (attention.q_proj, attention.k_proj, attention.v_proj)
    )
    keys = torch.cat((keys, rotated(new_keys, step).transpose(1, 2)), dim=2)
    values = torch.cat((values, new_values.transpose(1, 2)), dim=2)
    group = queries.shape[2] // keys.shape[1]
    scores = rotated(queries, step).transpose(1, 2) @ keys.repeat_interleave(group, dim=1).transpose(2, 3)
    scores = (scores * keys.shape[-1] ** -0.5).masked_fill(~step.mask, -math.inf)
    found = scores.softmax(-1) @ values.repeat_interleave(group, dim=1)
    return attention.o_proj(found.transpose(1, 2).flatten(2)), keys, values


def export(folder: Path, output: Path, dtype: torch.dtype = torch.float32) -> Path:
    """Writes the file and what belongs beside it; returns its path."""
    config = read_config(folder / "config.json")
    with torch.device("meta"):
        llama = Llama(config)
    load_weights(llama, folder / "model.safetensors", dtype)
    layers = range(config.num_hidden_layers)
    names = [f"{layer}.{part}" for layer in layers for part in ("key", "value")]
    past = torch.zeros(2, config.num_key_value_heads, 3, config.head_dim, dtype=dtype)
    tokens = torch.ones(2, 2, dtype=torch.int64)
    axes = {name: {0: "batch", 1: "sequence"} for name in (*INPUTS, "logits")}
    axes["attention_mask"] = {0: "batch", 1: "total"}
    axes |= {f"past_key_values.{name}": {0: "batch", 2: "past"} for name in names}
    axes |= {f"present.{name}": {0: "batch", 2: "total"} for name in names}
    output.mkdir(parents=True, exist_ok=True)
    with warnings.catch_warnings(), torch.inference_mode():
        warnings.simplefilter("ignore")  # this is the older exporter; the newer one requires onnxscript
        torch.onnx.export(
            Decoder(llama).eval(),
            (tokens, torch.ones(2, 5, dtype=torch.int64), tokens.cumsum(1) + 2, *[past] * len(names)),
            output / MODEL,
            dynamo=False,
            opset_version=OPSET,
            input_names=[*INPUTS, *(f"past_key_values.{name}" for name in names)],
            output_names=["logits", *(f"present.{name}" for name in names)],
            dynamic_axes=axes,
        )
    for file in folder.glob("*.json"):
        shutil.copy(file, output)
    return output / MODEL


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("output", type=Path)
    given = parser.parse_args()
    print(export(given.folder, given.output))
