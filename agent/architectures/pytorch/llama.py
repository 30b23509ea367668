"""Llama: a decoder-only transformer with a key-value cache, with the parameter names of Hugging Face's files.

Its parts are RMSNorm (https://arxiv.org/abs/1910.07467), rotary positions
(https://arxiv.org/abs/2104.09864), grouped-query attention (https://arxiv.org/abs/2305.13245) and SwiGLU
(https://arxiv.org/abs/2002.05202). The module computes; ``agent.frameworks.pytorch.language_model`` loads its
weights and keeps the cache.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from itertools import repeat
from typing import Any, Literal, NamedTuple

import torch
from pydantic import AliasChoices, BaseModel, Field, PositiveInt, model_validator
from torch import nn
from torch.nn import functional
from typing_extensions import Self


class LlamaConfig(BaseModel):
    """The fields of ``config.json`` that this module knows, under their names there; others are ignored.

    The fields of ``rope_scaling`` and ``rope_parameters`` count as fields of the file.

    Raises pydantic's ValidationError for a model that is not of this kind.
    """

    model_type: Literal["llama", "mistral"]
    hidden_act: Literal["silu"] = "silu"
    sliding_window: Literal[0] = 0  # attention covers the whole context
    vocab_size: PositiveInt
    hidden_size: PositiveInt
    intermediate_size: PositiveInt
    num_hidden_layers: PositiveInt
    num_attention_heads: PositiveInt
    num_key_value_heads: PositiveInt
    head_dim: PositiveInt = Field(multiple_of=2)
    max_position_embeddings: PositiveInt = 2048
    rms_norm_eps: float = 1e-6
    rope_theta: float = Field(default=10_000.0, gt=0)
    rope_type: Literal["default", "llama3"] = Field(
        default="default", validation_alias=AliasChoices("rope_type", "type")
    )
    factor: float = Field(default=1.0, gt=0)
    low_freq_factor: float = 1.0
    high_freq_factor: float = 4.0
    original_max_position_embeddings: int = 8192
    tie_word_embeddings: bool = False
    attention_bias: bool = False
    mlp_bias: bool = False
    eos_token_id: int | tuple[int, ...] = ()

    @model_validator(mode="before")
    @classmethod
    def _with_defaults(cls, content: Any) -> Any:
        if not isinstance(content, Mapping):
            return content
        found = {key: value for key, value in content.items() if value is not None}
        for name in ("rope_scaling", "rope_parameters"):
            if isinstance(rope := found.get(name), Mapping):
                found |= rope
        heads, hidden = found.get("num_attention_heads"), found.get("hidden_size")
        found.setdefault("num_key_value_heads", heads)
        if isinstance(heads, int) and isinstance(hidden, int) and heads > 0:
            found.setdefault("head_dim", hidden // heads)
        return found

    @model_validator(mode="after")
    def _groups(self) -> Self:
        if self.num_attention_heads % self.num_key_value_heads:
            raise ValueError("num_attention_heads must be a multiple of num_key_value_heads")
        return self

    @property
    def end_tokens(self) -> frozenset[int]:
        """The tokens that end a text."""
        ends = self.eos_token_id
        return frozenset((ends,) if isinstance(ends, int) else ends)

    def frequencies(self, device: torch.device) -> torch.Tensor:
        """Returns the rotary angles per position, float32, half the head size.

        Those of Llama 3.1 are scaled for contexts longer than the original.
        """
        exponents = torch.arange(0, self.head_dim, 2, device=device, dtype=torch.float32) / self.head_dim
        found = self.rope_theta**-exponents
        if self.rope_type == "default":
            return found
        turns = self.original_max_position_embeddings * found / (2 * math.pi)
        span = self.high_freq_factor - self.low_freq_factor
        kept = ((turns - self.low_freq_factor) / span).clamp(0, 1)
        return found * (kept + (1 - kept) / self.factor)


class Step(NamedTuple):
    """What the layers share in one forward pass over n sequences with T new tokens each."""

    rows: slice
    """The rows of the cache that the sequences occupy."""
    positions: torch.Tensor
    """int64, n × T: the position of each new token."""
    length: int
    """The number of positions in the cache that any of the tokens sees."""
    cosines: torch.Tensor
    """float, n × T × 1 × head size, as are ``sines``."""
    sines: torch.Tensor
    mask: torch.Tensor
    """bool, n × 1 × (group · T) × length: which positions each query of a group sees."""


class Attention(nn.Module):
    """Grouped-query attention; a layer's cache is 2 × rows × positions × heads × head size."""

    def __init__(self, config: LlamaConfig) -> None:
        super().__init__()
        self._config = config
        queries, keys = (
            heads * config.head_dim for heads in (config.num_attention_heads, config.num_key_value_heads)
        )
        self.q_proj = nn.Linear(config.hidden_size, queries, bias=config.attention_bias)
        self.k_proj = nn.Linear(config.hidden_size, keys, bias=config.attention_bias)
        self.v_proj = nn.Linear(config.hidden_size, keys, bias=config.attention_bias)
        self.o_proj = nn.Linear(queries, config.hidden_size, bias=config.attention_bias)

    def forward(self, hidden: torch.Tensor, step: Step, cache: torch.Tensor | None) -> torch.Tensor:
        """Adds the keys and values of new tokens to the layer's cache; returns what the tokens attend to."""
        config = self._config
        sequences, tokens, _ = hidden.shape
        queries, keys, values = (
            project(hidden).unflatten(-1, (-1, config.head_dim))
            for project in (self.q_proj, self.k_proj, self.v_proj)
        )
        queries, keys = rotated(queries, step), rotated(keys, step)
        if cache is not None:
            row = torch.arange(sequences, device=hidden.device)[:, None]
            own = cache[:, step.rows]
            own[0][row, step.positions], own[1][row, step.positions] = keys, values
            keys, values = own[:, :, : step.length]
        # The queries of a group share keys and values, so they count as further tokens: nothing is repeated.
        grouped = queries.transpose(1, 2).reshape(sequences, config.num_key_value_heads, -1, config.head_dim)
        found = functional.scaled_dot_product_attention(
            grouped, keys.transpose(1, 2), values.transpose(1, 2), attn_mask=step.mask
        )
        found = found.reshape(sequences, config.num_attention_heads, tokens, config.head_dim).transpose(1, 2)
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
        self.input_layernorm = nn.RMSNorm(config.hidden_size, config.rms_norm_eps)
        self.self_attn = Attention(config)
        self.post_attention_layernorm = nn.RMSNorm(config.hidden_size, config.rms_norm_eps)
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
        self.embed_tokens = nn.Embedding(config.vocab_size, config.hidden_size)
        self.layers = nn.ModuleList(Layer(config) for _ in range(config.num_hidden_layers))
        self.norm = nn.RMSNorm(config.hidden_size, config.rms_norm_eps)


class Llama(nn.Module):
    """A Llama; ``forward`` returns the logits of n sequences, n × T × vocabulary."""

    def __init__(self, config: LlamaConfig) -> None:
        super().__init__()
        self.config = config
        self.model = _Body(config)
        self.lm_head = nn.Linear(config.hidden_size, config.vocab_size, bias=False)
        if config.tie_word_embeddings:
            self.lm_head.weight = self.model.embed_tokens.weight

    def new_cache(self, rows: int, length: int) -> torch.Tensor:
        """Returns a cache: layers × 2 × rows × positions × key-value heads × head size."""
        config, like = self.config, self.lm_head.weight
        return like.new_zeros(
            (config.num_hidden_layers, 2, rows, length, config.num_key_value_heads, config.head_dim)
        )

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
        config, dtype = self.config, self.lm_head.weight.dtype
        frequencies = config.frequencies(positions.device)
        angles = (positions[..., None].float() * frequencies).repeat(1, 1, 2)[:, :, None]
        length = int(positions.max()) + 1
        mask = torch.arange(length, device=positions.device) <= positions[:, None, :, None]
        group = config.num_attention_heads // config.num_key_value_heads
        cosines, sines = angles.cos().to(dtype), angles.sin().to(dtype)
        return Step(rows, positions, length, cosines, sines, mask.repeat(1, 1, group, 1))
