"""A Qwen3 encoder in plain torch, bitwise identical to transformers' and without its import.

Importing transformers' models takes longer than the rest of a cold `predict`. Therefore the trunk
of a package that contains an ordinary Qwen3 folder is built here, from the same operations in the
same order. All other folders are loaded through AutoModel (`core.backbones.encoder`). Modules and
parameters have the names of transformers, because fingerprints and taps use them.

Legend: B batch, T tokens, D width, H heads, K key and value heads, W width of a head, M of the MLP.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import msgspec
import torch
from torch import Tensor, nn
from torch.nn import functional

from ..packs import by_text
from ..tiles import Run


class Rope(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The settings of default rotary position embeddings."""

    rope_theta: float
    rope_type: Literal["default"]


class Qwen3Config(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The ``config.json`` of a plain Qwen3 encoder; a file with any other key is not plain."""

    model_type: Literal["qwen3"]
    hidden_act: Literal["silu"]
    hidden_size: int
    intermediate_size: int
    num_hidden_layers: int
    num_attention_heads: int
    num_key_value_heads: int
    head_dim: int
    rms_norm_eps: float
    rope_parameters: Rope
    layer_types: list[Literal["full_attention"]]
    max_position_embeddings: int
    vocab_size: int
    attention_bias: bool = False
    attention_dropout: float = 0.0
    use_sliding_window: bool = False
    sliding_window: None = None
    # The fields below do not affect what is computed here.
    architectures: list[str] | None = None
    bos_token_id: int | None = None
    eos_token_id: int | list[int] | None = None
    pad_token_id: int | None = None
    dtype: str | None = None
    initializer_range: float = 0.02
    max_window_layers: int = 0
    tie_word_embeddings: bool = True
    transformers_version: str = ""
    use_cache: bool = True


@dataclass(frozen=True, kw_only=True, eq=False)
class States:
    """The output of an encoder.

    Attributes:
        last_hidden_state: The last hidden states ``(B, T, D)``.
        hidden_states: States before the first block and after each block, if requested.
    """

    last_hidden_state: Tensor
    hidden_states: tuple[Tensor, ...] | None = None


class _Unset:
    """Skips weight initialisation, because loaded weights replace the allocated ones at once."""

    def reset_parameters(self) -> None:
        """Leave the parameters uninitialised."""


class _Embedding(_Unset, nn.Embedding):
    pass


class _Linear(_Unset, nn.Linear):
    pass


class _RMSNorm(nn.Module):
    def __init__(self, width: int, *, eps: float) -> None:
        super().__init__()
        self.weight, self.eps = nn.Parameter(torch.empty(width)), eps

    def forward(self, x: Tensor) -> Tensor:
        """Return g · x / √(mean x² + ε) over the last dimension of ``(…, D)``."""
        # In float32 and back, in the order of transformers: the bits are the same.
        wide = x.to(torch.float32)
        wide = wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + self.eps)
        return self.weight * wide.to(x.dtype)


class _Mlp(nn.Module):
    def __init__(self, width: int, inner: int) -> None:
        super().__init__()
        self.gate_proj = _Linear(width, inner, bias=False)
        self.up_proj = _Linear(width, inner, bias=False)
        self.down_proj = _Linear(inner, width, bias=False)
        self.act_fn = nn.SiLU()

    def forward(self, x: Tensor) -> Tensor:
        """Return the gated MLP of ``(B, T, D)``."""
        out: Tensor = self.down_proj(self.act_fn(self.gate_proj(x)) * self.up_proj(x))
        return out


class _Attention(nn.Module):
    def __init__(self, config: Qwen3Config) -> None:
        super().__init__()
        self.width, width = config.head_dim, config.hidden_size
        heads, keys = config.num_attention_heads, config.num_key_value_heads
        self.grouped = heads != keys
        self.q_proj = _Linear(width, heads * self.width, bias=False)
        self.k_proj = _Linear(width, keys * self.width, bias=False)
        self.v_proj = _Linear(width, keys * self.width, bias=False)
        self.o_proj = _Linear(heads * self.width, width, bias=False)
        self.q_norm = _RMSNorm(self.width, eps=config.rms_norm_eps)
        self.k_norm = _RMSNorm(self.width, eps=config.rms_norm_eps)

    def forward(
        self, x: Tensor, cos: Tensor, sin: Tensor, runs: Sequence[Run] | None = None
    ) -> Tensor:
        """Return causal attention ``(B, T, D)``, given cos and sin of the angles ``(1, T, W)``."""
        heads = (*x.shape[:-1], -1, self.width)
        query = self.q_norm(self.q_proj(x).view(heads)).transpose(1, 2)  # (B, H, T, W)
        key = self.k_norm(self.k_proj(x).view(heads)).transpose(1, 2)  # (B, K, T, W)
        value = self.v_proj(x).view(heads).transpose(1, 2)
        query, key = _turned(query, cos, sin), _turned(key, cos, sin)
        if runs is None:
            attended = self._attend(query, key, value)
        else:
            attended = by_text(self._attend, query, key, value, runs=runs)
        out: Tensor = self.o_proj(attended.reshape(*x.shape[:-1], -1))
        return out

    def _attend(self, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        """Return ``(B, T, H, W)`` of heads ``(B, H, T, W)``."""
        attended = functional.scaled_dot_product_attention(
            query,
            key,
            value,
            scale=self.width**-0.5,
            is_causal=bool(query.shape[2] > 1),  # the shape is a symbol during export
            enable_gqa=self.grouped,
        )
        return attended.transpose(1, 2).contiguous()


class _Block(nn.Module):
    def __init__(self, config: Qwen3Config) -> None:
        super().__init__()
        width, eps = config.hidden_size, config.rms_norm_eps
        self.self_attn = _Attention(config)
        self.mlp = _Mlp(width, config.intermediate_size)
        self.input_layernorm = _RMSNorm(width, eps=eps)
        self.post_attention_layernorm = _RMSNorm(width, eps=eps)

    def forward(
        self, x: Tensor, cos: Tensor, sin: Tensor, runs: Sequence[Run] | None = None
    ) -> Tensor:
        """Return the states ``(B, T, D)`` above the block."""
        x = x + self.self_attn(self.input_layernorm(x), cos, sin, runs)
        states: Tensor = x + self.mlp(self.post_attention_layernorm(x))
        return states


class Qwen3(nn.Module):
    """The encoder, without a language-model head; weights must be loaded afterwards.

    Args:
        config: Its sizes.

    Raises:
        ValueError: If the configuration asks for something that is not implemented here.
    """

    def __init__(self, config: Qwen3Config) -> None:
        super().__init__()
        unknown = config.attention_bias or config.attention_dropout or config.use_sliding_window
        if unknown or len(config.layer_types) != config.num_hidden_layers:
            raise ValueError("not plain")
        self.config = config
        self.embed_tokens = _Embedding(config.vocab_size, config.hidden_size)
        self.layers = nn.ModuleList(_Block(config) for _ in range(config.num_hidden_layers))
        self.norm = _RMSNorm(config.hidden_size, eps=config.rms_norm_eps)

    def forward(
        self,
        input_ids: Tensor,
        *,
        position_ids: Tensor | None = None,
        runs: Sequence[Run] | None = None,
        output_hidden_states: bool = False,
        # attention_mask and use_cache: nothing is padded, and nothing is cached.
        **_: object,
    ) -> States:
        """Return the hidden states for token ids ``(B, T)`` that have no padding to mask.

        Args:
            input_ids: The tokens, or those of a pack, ``(1, N)``.
            position_ids: Position of each token in its text; by default its position in the row.
            runs: The texts of a pack.
            output_hidden_states: Whether to return the states between blocks too.
        """
        x = self.embed_tokens(input_ids)
        # cos and sin of each position's angles, (1, T, W): Su et al. 2021
        width = self.config.head_dim
        steps = torch.arange(0, width, 2, dtype=torch.float) / width
        frequency = (1.0 / (self.config.rope_parameters.rope_theta**steps)).to(x.device)
        if position_ids is None:
            position_ids = torch.arange(x.shape[1], device=x.device)[None]
        # Each angle twice: `_turned` pairs number i of a head with number i + W/2.
        angles = torch.cat((position_ids[..., None].float() * frequency,) * 2, dim=-1)
        cos, sin = angles.cos().to(x.dtype), angles.sin().to(x.dtype)
        states = []
        for block in self.layers:
            states.append(x)
            x = block(x, cos, sin, runs)
        x = self.norm(x)
        return States(
            last_hidden_state=x, hidden_states=(*states, x) if output_hidden_states else None
        )


def _turned(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Return states ``(B, H, T, W)`` rotated by the angles ``(1, T, W)`` of their positions."""
    half = x.shape[-1] // 2
    turned = torch.cat((-x[..., half:], x[..., :half]), dim=-1)
    return (x * cos.unsqueeze(1)) + (turned * sin.unsqueeze(1))
