"""The tiny backbone before training: tokenizer, configuration, language model.

Shapes: B batch, T tokens, N positions, D model width, A tokens predicted ahead, W vocabulary.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from tokenizers import Regex, Tokenizer
from tokenizers.decoders import Fuse
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import Split as Splitter
from torch import Tensor, nn
from transformers import PreTrainedTokenizerFast, Qwen3Config, Qwen3Model

__all__ = ["END", "PAD", "Shape", "TinyLM", "make_model", "make_tokenizer", "pad_right"]

PAD = "<pad>"
UNKNOWN = "<unk>"
END = "\n"
LONGEST = 128


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """The size of the tiny model.

    Attributes:
        width: D, the model width.
        blocks: Transformer blocks.
        heads: Attention heads, each with a key and a value of its own, of width D / heads.
        inner: Width of the blocks' feed-forward layer.
        horizon: A, how many of the next tokens every position predicts in pretraining.
    """

    width: int = 128
    blocks: int = 4
    heads: int = 4
    inner: int = 256
    horizon: int = 3


def make_tokenizer() -> PreTrainedTokenizerFast:
    """Return the character tokenizer: printable ASCII, newline, padding and unknown."""
    signs = [PAD, UNKNOWN, END, *(chr(code) for code in range(32, 127))]
    core = Tokenizer(WordLevel({sign: i for i, sign in enumerate(signs)}, unk_token=UNKNOWN))
    core.pre_tokenizer = Splitter(Regex(r"[\s\S]"), "isolated")
    core.decoder = Fuse()
    return PreTrainedTokenizerFast(  # type: ignore[no-untyped-call]
        tokenizer_object=core,
        pad_token=PAD,
        unk_token=UNKNOWN,
        model_max_length=LONGEST,
        padding_side="right",
        clean_up_tokenization_spaces=False,
    )


class TinyLM(nn.Module):
    """An encoder with heads for the next A tokens; the first is tied to the embedding.

    One position predicts all the digits of an answer, not only the first, so the state of the
    question's last token contains the whole answer.  The heads are dropped after pretraining.

    Args:
        encoder: The Qwen3 encoder.
        horizon: A.
    """

    def __init__(self, *, encoder: Qwen3Model, horizon: int) -> None:
        super().__init__()
        self.encoder = encoder
        width, words = encoder.config.hidden_size, encoder.config.vocab_size
        later = (nn.Linear(width, words, bias=False) for _ in range(horizon - 1))
        self.later = nn.ModuleList(later)

    @property
    def horizon(self) -> int:
        """A, how many of the next tokens are predicted."""
        return 1 + len(self.later)

    def hidden(self, ids: Tensor) -> Tensor:
        """Return the last hidden states ``(B, T, D)`` of token ids ``(B, T)``.

        Attention is causal, so padding on the right changes nothing before it.
        """
        hidden: Tensor = self.encoder(input_ids=ids).last_hidden_state
        return hidden

    def logits(self, h: Tensor) -> Tensor:
        """Return ``(N, A, W)``, the scores of the next A tokens after states ``(N, D)``."""
        embedding = self.encoder.embed_tokens.weight
        return torch.stack([h @ embedding.T, *(head(h) for head in self.later)], dim=1)


def make_model(shape: Shape, *, seed: int) -> TinyLM:
    """Return an untrained language model whose weights depend only on the seed."""
    words = len(make_tokenizer())
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        encoder = Qwen3Model(_config(shape, words=words))
        nn.init.normal_(encoder.embed_tokens.weight, std=0.05)
        return TinyLM(encoder=encoder, horizon=shape.horizon)


def _config(shape: Shape, *, words: int) -> Qwen3Config:
    options: dict[str, Any] = {
        "vocab_size": words,
        "hidden_size": shape.width,
        "intermediate_size": shape.inner,
        "num_hidden_layers": shape.blocks,
        "num_attention_heads": shape.heads,
        "num_key_value_heads": shape.heads,
        "head_dim": shape.width // shape.heads,
        "max_position_embeddings": LONGEST,
        "tie_word_embeddings": True,
        "use_cache": False,
        "pad_token_id": 0,
        "bos_token_id": None,
        "eos_token_id": None,
    }
    return Qwen3Config(**options)


def pad_right(ids: Sequence[Sequence[int]], *, extra: int = 0) -> Tensor:
    """Return token ids ``(B, T + extra)``, padded with id 0 on the right."""
    length = max(len(row) for row in ids) + extra
    return torch.tensor([[*row, *[0] * (length - len(row))] for row in ids])
