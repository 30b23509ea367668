"""A small encoder of the shape of BERT: three int64 inputs of dynamic length, and random weights."""

from __future__ import annotations

import warnings
from pathlib import Path

import torch
from torch import nn

INPUTS = ("input_ids", "attention_mask", "token_type_ids")
WORDS = (
    "who",
    "when",
    "met",
    "ada",
    "charles",
    "in",
    "1833",
    "the",
    "a",
    "and",
    "numbers",
    "loved",
    ".",
    "?",
)
VOCABULARY = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", *WORDS, "##s")


class _Attention(nn.Module):
    """Self-attention of two heads, then a feed-forward network, each added to its input and normalized."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.projections = nn.Linear(width, 3 * width)
        self.out = nn.Linear(width, width)
        self.forth, self.back = nn.Linear(width, 2 * width), nn.Linear(2 * width, width)
        self.first, self.second = nn.LayerNorm(width), nn.LayerNorm(width)

    def forward(self, data: torch.Tensor, hidden: torch.Tensor) -> torch.Tensor:
        batch, length, width = data.shape
        heads = self.projections(data).reshape(batch, length, 3, 2, width // 2).permute(2, 0, 3, 1, 4)
        query, key, value = heads[0], heads[1], heads[2]
        weights = (query @ key.transpose(2, 3) / (width // 2) ** 0.5 + hidden).softmax(3)
        mixed = (weights @ value).permute(0, 2, 1, 3).reshape(batch, length, width)
        data = self.first(data + self.out(mixed))
        normalized: torch.Tensor = self.second(data + self.back(torch.relu(self.forth(data))))
        return normalized


class BertShaped(nn.Module):
    """Two layers over the sum of three embeddings.

    It returns the scores of two classes, of each token as the start and as the end of an answer, and the
    normalized mean of the tokens that count, as an embedding.
    """

    def __init__(self, width: int = 16, positions: int = 64) -> None:
        super().__init__()
        torch.manual_seed(8)
        self.tokens = nn.Embedding(len(VOCABULARY), width)
        self.positions = nn.Embedding(positions, width)
        self.types = nn.Embedding(2, width)
        self.layers = nn.ModuleList([_Attention(width), _Attention(width)])
        self.classes, self.spans = nn.Linear(width, 2), nn.Linear(width, 2)

    def forward(
        self, input_ids: torch.Tensor, attention_mask: torch.Tensor, token_type_ids: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
        places = attention_mask.cumsum(1) - 1
        data = self.tokens(input_ids) + self.positions(places.clamp(min=0)) + self.types(token_type_ids)
        counts = attention_mask.to(data.dtype)
        hidden = (counts[:, None, None, :] - 1) * 1e4
        for layer in self.layers:
            data = layer(data, hidden)
        mean = (data * counts[:, :, None]).sum(1) / counts.sum(1)[:, None]
        spans = self.spans(data)
        return self.classes(4 * data[:, 0]), spans[..., 0], spans[..., 1], mean


OUTPUTS = ("classes", "starts", "ends", "embedding")


def example() -> tuple[torch.Tensor, ...]:
    """Two texts of five tokens, of which one is padded."""
    ids = torch.tensor([[2, 4, 5, 6, 3], [2, 7, 3, 0, 0]])
    return ids, (ids > 0).long(), torch.zeros_like(ids)


def save_onnx(module: nn.Module, path: Path) -> Path:
    axes = {name: {0: "batch", 1: "tokens"} for name in (*INPUTS, "starts", "ends")}
    axes |= {"classes": {0: "batch"}, "embedding": {0: "batch"}}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the exporter's own deprecations
        torch.onnx.export(
            module.eval(),
            example(),
            path,
            input_names=list(INPUTS),
            output_names=list(OUTPUTS),
            dynamic_axes=axes,
            opset_version=17,
            dynamo=False,
        )
    return path


def save_script(module: nn.Module, path: Path) -> Path:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch.jit is deprecated, and still read
        torch.jit.save(torch.jit.trace(module.eval(), example()), path)
    return path
