"""Llama: a decoder-only transformer with a key-value cache, with the parameter names of Hugging Face's files.

Its parts are RMSNorm (https://arxiv.org/abs/1910.07467), rotary positions
(https://arxiv.org/abs/2104.09864), grouped-query attention (https://arxiv.org/abs/2305.13245) and SwiGLU
(https://arxiv.org/abs/2002.05202). The module computes; ``agent.frameworks.pytorch.language_model`` loads its
weights and keeps the cache.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import repeat
from typing import Any

import torch
from torch import nn
from torch.nn import functional

_MODEL_TYPES = ("llama", "mistral")
_ACTIVATION = "silu"
_ROPE_THETA = 10_000.0


@dataclass(frozen=True, slots=True)
class Scaling:
    """The scaling of rotary frequencies for contexts longer than the original, as in Llama 3.1."""

    factor: float
    low_frequency_factor: float
    high_frequency_factor: float
    original_length: int

    def __call__(self, frequencies: torch.Tensor) -> torch.Tensor:
        """Returns the frequencies, of which the low ones are divided by ``factor``."""
        turns = self.original_length * frequencies / (2 * math.pi)
        span = self.high_frequency_factor - self.low_frequency_factor
        kept = ((turns - self.low_frequency_factor) / span).clamp(0, 1)
        return frequencies * (kept + (1 - kept) / self.factor)


@dataclass(frozen=True, slots=True)
class LlamaConfig:
    """The sizes of a model, as in ``config.json``.

    Attributes:
        key_value_heads: The number of key and value heads, each of which serves a group of query heads.
        head_size: The width of a head.
        context_length: The largest number of tokens of a sequence.
        norm_epsilon: The constant that RMSNorm adds to the mean square.
        rope_theta: The base of the rotary frequencies.
        scaling: The scaling of the rotary frequencies, if any.
        tied: Whether the output layer has the weights of the embedding.
        end_tokens: The tokens that end a text.
    """

    vocabulary_size: int
    hidden_size: int
    intermediate_size: int
    layers: int
    heads: int
    key_value_heads: int
    head_size: int
    context_length: int
    norm_epsilon: float = 1e-6
    rope_theta: float = _ROPE_THETA
    scaling: Scaling | None = None
    tied: bool = False
    attention_bias: bool = False
    mlp_bias: bool = False
    end_tokens: tuple[int, ...] = ()

    @classmethod
    def of(cls, content: Mapping[str, Any]) -> LlamaConfig:
        """Reads the content of ``config.json``; raises ValueError if this module is not its model."""
        kind = content.get("model_type")
        if kind not in _MODEL_TYPES:
            raise ValueError(f'model_type is "{kind}"; supported: {", ".join(_MODEL_TYPES)}')
        if (activation := content.get("hidden_act", _ACTIVATION)) != _ACTIVATION:
            raise ValueError(f'hidden_act is "{activation}"; supported: {_ACTIVATION}')
        if content.get("sliding_window"):
            raise ValueError("sliding_window is set; attention here covers the whole context")
        theta, scaling = _rope(content)
        try:
            hidden, heads = int(content["hidden_size"]), int(content["num_attention_heads"])
            end = content.get("eos_token_id")
            ends = end if isinstance(end, list) else [] if end is None else [end]
            found = cls(
                vocabulary_size=int(content["vocab_size"]),
                hidden_size=hidden,
                intermediate_size=int(content["intermediate_size"]),
                layers=int(content["num_hidden_layers"]),
                heads=heads,
                key_value_heads=int(content.get("num_key_value_heads") or heads),
                head_size=int(content.get("head_dim") or hidden // heads),
                context_length=int(content.get("max_position_embeddings", 2048)),
                norm_epsilon=float(content.get("rms_norm_eps", 1e-6)),
                rope_theta=theta,
                scaling=scaling,
                tied=bool(content.get("tie_word_embeddings", False)),
                attention_bias=bool(content.get("attention_bias", False)),
                mlp_bias=bool(content.get("mlp_bias", False)),
                end_tokens=tuple(map(int, ends)),
            )
        except (KeyError, TypeError, ZeroDivisionError) as error:
            raise ValueError(f"a size is missing or no number: {error}") from error
        if found.heads % found.key_value_heads or found.head_size % 2:
            raise ValueError("num_attention_heads must be a multiple of num_key_value_heads, head_dim even")
        return found


def _rope(content: Mapping[str, Any]) -> tuple[float, Scaling | None]:
    """Returns the base of the rotary frequencies, and their scaling."""
    rope = content.get("rope_parameters") or content.get("rope_scaling") or {}
    theta = float(rope.get("rope_theta") or content.get("rope_theta") or _ROPE_THETA)
    kind = rope.get("rope_type") or rope.get("type") or "default"
    if kind == "default":
        return theta, None
    if kind != "llama3":
        raise ValueError(f'rope_type is "{kind}"; supported: default, llama3')
    return theta, Scaling(
        float(rope["factor"]),
        float(rope["low_freq_factor"]),
        float(rope["high_freq_factor"]),
        int(rope["original_max_position_embeddings"]),
    )


@dataclass(frozen=True, slots=True)
class Step:
    """What the layers share in one forward pass over n sequences with T new tokens each.

    Attributes:
        rows: The rows of the cache that the sequences occupy.
        positions: int64, n × T: the position of each new token.
        length: The number of positions in the cache that any of the tokens sees.
        cosines: float, n × T × 1 × head size.
        sines: float, n × T × 1 × head size.
        mask: bool, n × 1 × (group · T) × length: which positions each query of a group sees.
    """

    rows: slice
    positions: torch.Tensor
    length: int
    cosines: torch.Tensor
    sines: torch.Tensor
    mask: torch.Tensor


class Attention(nn.Module):
    """Grouped-query attention; a layer's cache is 2 × rows × positions × heads × head size."""

    def __init__(self, config: LlamaConfig) -> None:
        super().__init__()
        self._config = config
        queries, keys = config.heads * config.head_size, config.key_value_heads * config.head_size
        self.q_proj = nn.Linear(config.hidden_size, queries, bias=config.attention_bias)
        self.k_proj = nn.Linear(config.hidden_size, keys, bias=config.attention_bias)
        self.v_proj = nn.Linear(config.hidden_size, keys, bias=config.attention_bias)
        self.o_proj = nn.Linear(queries, config.hidden_size, bias=config.attention_bias)

    def forward(self, hidden: torch.Tensor, step: Step, cache: torch.Tensor | None) -> torch.Tensor:
        """Adds the keys and values of new tokens to the layer's cache; returns what the tokens attend to."""
        config = self._config
        sequences, tokens, _ = hidden.shape
        queries = self.q_proj(hidden).view(sequences, tokens, config.heads, -1)
        keys = self.k_proj(hidden).view(sequences, tokens, config.key_value_heads, -1)
        values = self.v_proj(hidden).view(sequences, tokens, config.key_value_heads, -1)
        queries, keys = rotated(queries, step), rotated(keys, step)
        if cache is not None:
            row = torch.arange(sequences, device=hidden.device)[:, None]
            own = cache[:, step.rows]
            own[0][row, step.positions], own[1][row, step.positions] = keys, values
            keys, values = own[:, :, : step.length]
        # The queries of a group share keys and values, so they count as further tokens: nothing is repeated.
        grouped = queries.transpose(1, 2).reshape(sequences, config.key_value_heads, -1, config.head_size)
        found = functional.scaled_dot_product_attention(
            grouped, keys.transpose(1, 2), values.transpose(1, 2), attn_mask=step.mask
        )
        found = found.reshape(sequences, config.heads, tokens, config.head_size).transpose(1, 2)
        projected: torch.Tensor = self.o_proj(found.reshape(sequences, tokens, -1))
        return projected


def rotated(heads: torch.Tensor, step: Step) -> torch.Tensor:
    """Rotates the halves of each head by the angles of its position."""
    first, second = heads.chunk(2, dim=-1)
    return heads * step.cosines + torch.cat((-second, first), dim=-1) * step.sines


class FeedForward(nn.Module):
    """SwiGLU."""

    def __init__(self, config: LlamaConfig) -> None:
        super().__init__()
        sizes = config.hidden_size, config.intermediate_size
        self.gate_proj = nn.Linear(*sizes, bias=config.mlp_bias)
        self.up_proj = nn.Linear(*sizes, bias=config.mlp_bias)
        self.down_proj = nn.Linear(*sizes[::-1], bias=config.mlp_bias)

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        """Returns the feed-forward part of a layer."""
        found: torch.Tensor = self.down_proj(functional.silu(self.gate_proj(hidden)) * self.up_proj(hidden))
        return found


class Layer(nn.Module):
    """Attention and a feed-forward part, each after RMSNorm and added to its input."""

    def __init__(self, config: LlamaConfig) -> None:
        super().__init__()
        self.input_layernorm = nn.RMSNorm(config.hidden_size, config.norm_epsilon)
        self.self_attn = Attention(config)
        self.post_attention_layernorm = nn.RMSNorm(config.hidden_size, config.norm_epsilon)
        self.mlp = FeedForward(config)

    def forward(self, hidden: torch.Tensor, step: Step, cache: torch.Tensor | None) -> torch.Tensor:
        """Returns the output of the layer."""
        hidden = hidden + self.self_attn(self.input_layernorm(hidden), step, cache)
        found: torch.Tensor = hidden + self.mlp(self.post_attention_layernorm(hidden))
        return found


class _Body(nn.Module):
    """What Hugging Face's files call ``model``: all but the output layer."""

    def __init__(self, config: LlamaConfig) -> None:
        super().__init__()
        self.embed_tokens = nn.Embedding(config.vocabulary_size, config.hidden_size)
        self.layers = nn.ModuleList(Layer(config) for _ in range(config.layers))
        self.norm = nn.RMSNorm(config.hidden_size, config.norm_epsilon)


class Llama(nn.Module):
    """A Llama; ``forward`` returns the logits of n sequences, n × T × vocabulary."""

    def __init__(self, config: LlamaConfig) -> None:
        super().__init__()
        self.config = config
        self.model = _Body(config)
        self.lm_head = nn.Linear(config.hidden_size, config.vocabulary_size, bias=False)
        if config.tied:
            self.lm_head.weight = self.model.embed_tokens.weight

    def new_cache(self, rows: int, length: int) -> torch.Tensor:
        """Returns a cache: layers × 2 × rows × positions × key-value heads × head size."""
        config, like = self.config, self.lm_head.weight
        return like.new_zeros((config.layers, 2, rows, length, config.key_value_heads, config.head_size))

    def forward(
        self,
        tokens: torch.Tensor,
        positions: torch.Tensor,
        cache: torch.Tensor | None = None,
        rows: slice = slice(None),
        *,
        last: bool = False,
    ) -> torch.Tensor:
        """Runs new tokens, whose keys and values it adds to the cache.

        Args:
            tokens: int64, n × T.
            positions: int64, n × T, ascending in each sequence.
            cache: As from ``new_cache``, with at least as many positions as the sequences have; None if the
                tokens are whole sequences, of which nothing is kept.
            rows: The n rows of the cache with the earlier tokens of the sequences.
            last: Whether to return only the logits of the last token, n × 1 × vocabulary.
        """
        step = self._step(positions, rows)
        hidden = self.model.embed_tokens(tokens)
        for layer, cached in zip(self.model.layers, cache if cache is not None else repeat(None)):  # noqa: B905
            hidden = layer(hidden, step, cached)
        found: torch.Tensor = self.lm_head(self.model.norm(hidden[:, -1:] if last else hidden))
        return found

    def _step(self, positions: torch.Tensor, rows: slice) -> Step:
        config, device = self.config, positions.device
        exponents = torch.arange(0, config.head_size, 2, device=device, dtype=torch.float32)
        frequencies = config.rope_theta ** (-exponents / config.head_size)
        if config.scaling is not None:
            frequencies = config.scaling(frequencies)
        angles = (positions[..., None].float() * frequencies).repeat(1, 1, 2)[:, :, None]
        length = int(positions.max()) + 1
        mask = torch.arange(length, device=device) <= positions[:, None, :, None]
        group = config.heads // config.key_value_heads
        dtype = self.lm_head.weight.dtype
        return Step(
            rows,
            positions,
            length,
            angles.cos().to(dtype),
            angles.sin().to(dtype),
            mask.repeat(1, 1, group, 1),
        )
