"""A Qwen3 encoder in plain torch: the bits that transformers computes, without importing it.

Importing transformers' models takes longer than all else that a cold `predict` does. So the trunk
of a package that carries an ordinary Qwen3 folder is built here, from the same operations in the
same order; whatever else a folder may hold goes through AutoModel (`core.backbones.trunk`). Names
of modules and parameters are transformers' own, since fingerprints and taps go by them.

Legend: B batch, T tokens, D width, H heads, K key and value heads, W width of a head, M of the MLP.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

import msgspec
import torch
from torch import Tensor, nn
from torch.nn import functional

__all__ = ["Qwen3", "Qwen3Config", "Rope", "States", "expected_tensors", "read_config"]


class Rope(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Rotary positions of the plain kind."""

    rope_theta: float
    rope_type: Literal["default"]


class Qwen3Config(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The ``config.json`` of a plain Qwen3 encoder; any other key, and it is not one."""

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
    # What follows changes nothing that is computed here.
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
    """What an encoder answers: the last hidden states ``(B, T, D)``."""

    last_hidden_state: Tensor


def read_config(data: bytes) -> Qwen3Config | None:
    """Read a ``config.json``; return None for one that is not of this plain kind."""
    try:
        config = msgspec.json.decode(data, type=Qwen3Config)
    except (msgspec.DecodeError, UnicodeDecodeError):
        return None
    odd = (
        config.attention_bias
        or config.attention_dropout
        or config.use_sliding_window
        or len(config.layer_types) != config.num_hidden_layers
    )
    return None if odd else config


def expected_tensors(config: Qwen3Config) -> dict[str, tuple[int, ...]]:
    """Return name → shape of every tensor that such an encoder has."""
    d, m, w = config.hidden_size, config.intermediate_size, config.head_dim
    query, key = config.num_attention_heads * w, config.num_key_value_heads * w
    block = {
        "self_attn.q_proj": (query, d),
        "self_attn.k_proj": (key, d),
        "self_attn.v_proj": (key, d),
        "self_attn.o_proj": (d, query),
        "self_attn.q_norm": (w,),
        "self_attn.k_norm": (w,),
        "mlp.gate_proj": (m, d),
        "mlp.up_proj": (m, d),
        "mlp.down_proj": (d, m),
        "input_layernorm": (d,),
        "post_attention_layernorm": (d,),
    }
    numbers = range(config.num_hidden_layers)
    shapes = {f"layers.{n}.{name}.weight": s for n in numbers for name, s in block.items()}
    return {"embed_tokens.weight": (config.vocab_size, d), **shapes, "norm.weight": (d,)}


class _Weighted(nn.Module):
    """A module with one weight."""

    def __init__(self, weight: Tensor) -> None:
        super().__init__()
        self.weight = nn.Parameter(weight)


class _Embedding(_Weighted):
    def forward(self, ids: Tensor) -> Tensor:
        """Return the rows ``(B, T, D)`` of ids ``(B, T)``."""
        return functional.embedding(ids, self.weight)


class _Projection(_Weighted):
    def forward(self, x: Tensor) -> Tensor:
        """Return W x ``(…, out)`` for ``(…, in)``."""
        return functional.linear(x, self.weight)


class _RMSNorm(_Weighted):
    def __init__(self, weight: Tensor, *, eps: float) -> None:
        super().__init__(weight)
        self.eps = eps

    def forward(self, x: Tensor) -> Tensor:
        """Return g · x / √(mean x² + ε) over the last dimension of ``(…, D)``."""
        wide = x.to(torch.float32)
        wide = wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + self.eps)
        return self.weight * wide.to(x.dtype)


class _Mlp(nn.Module):
    def __init__(self, tensors: Mapping[str, Tensor], prefix: str) -> None:
        super().__init__()
        self.gate_proj = _Projection(tensors[f"{prefix}.gate_proj.weight"])
        self.up_proj = _Projection(tensors[f"{prefix}.up_proj.weight"])
        self.down_proj = _Projection(tensors[f"{prefix}.down_proj.weight"])

    def forward(self, x: Tensor) -> Tensor:
        """Return the gated MLP of ``(B, T, D)``."""
        out: Tensor = self.down_proj(functional.silu(self.gate_proj(x)) * self.up_proj(x))
        return out


class _Attention(nn.Module):
    def __init__(self, config: Qwen3Config, tensors: Mapping[str, Tensor], prefix: str) -> None:
        super().__init__()
        self.width = config.head_dim
        self.grouped = config.num_attention_heads != config.num_key_value_heads
        self.q_proj = _Projection(tensors[f"{prefix}.q_proj.weight"])
        self.k_proj = _Projection(tensors[f"{prefix}.k_proj.weight"])
        self.v_proj = _Projection(tensors[f"{prefix}.v_proj.weight"])
        self.o_proj = _Projection(tensors[f"{prefix}.o_proj.weight"])
        self.q_norm = _RMSNorm(tensors[f"{prefix}.q_norm.weight"], eps=config.rms_norm_eps)
        self.k_norm = _RMSNorm(tensors[f"{prefix}.k_norm.weight"], eps=config.rms_norm_eps)

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        """Return causal attention ``(B, T, D)`` at positions with these angles ``(1, T, W)``."""
        heads = (*x.shape[:-1], -1, self.width)
        query = self.q_norm(self.q_proj(x).view(heads)).transpose(1, 2)  # (B, H, T, W)
        key = self.k_norm(self.k_proj(x).view(heads)).transpose(1, 2)  # (B, K, T, W)
        value = self.v_proj(x).view(heads).transpose(1, 2)
        made = functional.scaled_dot_product_attention(
            _turned(query, cos, sin),
            _turned(key, cos, sin),
            value,
            scale=self.width**-0.5,
            is_causal=x.shape[1] > 1,
            enable_gqa=self.grouped,
        )
        out: Tensor = self.o_proj(made.transpose(1, 2).contiguous().reshape(*x.shape[:-1], -1))
        return out


class _Block(nn.Module):
    def __init__(self, config: Qwen3Config, tensors: Mapping[str, Tensor], prefix: str) -> None:
        super().__init__()
        eps = config.rms_norm_eps
        self.self_attn = _Attention(config, tensors, f"{prefix}.self_attn")
        self.mlp = _Mlp(tensors, f"{prefix}.mlp")
        self.input_layernorm = _RMSNorm(tensors[f"{prefix}.input_layernorm.weight"], eps=eps)
        after = tensors[f"{prefix}.post_attention_layernorm.weight"]
        self.post_attention_layernorm = _RMSNorm(after, eps=eps)

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        """Return the states ``(B, T, D)`` above the block."""
        x = x + self.self_attn(self.input_layernorm(x), cos, sin)
        made: Tensor = x + self.mlp(self.post_attention_layernorm(x))
        return made


class Qwen3(nn.Module):
    """The encoder, without a language-model head.

    Args:
        config: Its sizes.
        tensors: Name → tensor, as `expected_tensors` has them; they become its parameters.
    """

    def __init__(self, config: Qwen3Config, tensors: Mapping[str, Tensor]) -> None:
        super().__init__()
        self.config = config
        self.embed_tokens = _Embedding(tensors["embed_tokens.weight"])
        self.layers = nn.ModuleList(
            _Block(config, tensors, f"layers.{n}") for n in range(config.num_hidden_layers)
        )
        self.norm = _RMSNorm(tensors["norm.weight"], eps=config.rms_norm_eps)

    def forward(self, input_ids: Tensor, **_: object) -> States:
        """Return the last hidden states for token ids ``(B, T)`` that have no padding to mask."""
        x = self.embed_tokens(input_ids)
        cos, sin = self._angles(x)
        for block in self.layers:
            x = block(x, cos, sin)
        return States(last_hidden_state=self.norm(x))

    def _angles(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Return cos and sin of each position's angles, ``(1, T, W)`` (Su et al. 2021)."""
        width, base = self.config.head_dim, self.config.rope_parameters.rope_theta
        steps = torch.arange(0, width, 2, dtype=torch.float) / width
        frequency = (1.0 / (base**steps)).to(x.device)
        places = torch.arange(x.shape[1], device=x.device)[None, :, None].float()
        angles = places * frequency
        angles = torch.cat((angles, angles), dim=-1)
        return angles.cos().to(x.dtype), angles.sin().to(x.dtype)


def _turned(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Return states ``(B, H, T, W)`` turned by their positions' angles ``(1, T, W)``."""
    half = x.shape[-1] // 2
    turned = torch.cat((-x[..., half:], x[..., :half]), dim=-1)
    return (x * cos.unsqueeze(1)) + (turned * sin.unsqueeze(1))
