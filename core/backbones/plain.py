"""The trunk of a package that carries a plain Qwen3 folder, built without transformers.

Plain means: these four files, a configuration and a tokenizer of which every key is known here, and
exactly the tensors of the model. Anything else is for transformers to read. What was built is held
to the manifest's fingerprint like every other backbone: tensors, vocabulary, what the tokenizer
makes of the probes.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Literal, cast

import msgspec
import safetensors.torch
import torch
from torch import Tensor

from .qwen3 import Qwen3, Qwen3Config, expected_tensors, read_config
from .trunk import Pooling, Trunk

if TYPE_CHECKING:
    from tokenizers import Tokenizer
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

__all__ = ["PlainTokenizer", "plain_trunk"]

CONFIG, WEIGHTS = "config.json", "model.safetensors"
TOKENIZER, TOLD = "tokenizer.json", "tokenizer_config.json"


class _Told(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A ``tokenizer_config.json`` that adds nothing to ``tokenizer.json``."""

    tokenizer_class: Literal["PreTrainedTokenizerFast", "TokenizersBackend"]
    backend: Literal["tokenizers"] = "tokenizers"
    clean_up_tokenization_spaces: bool = False
    model_max_length: int | float | None = None
    pad_token: str | None = None
    padding_side: str = "right"
    unk_token: str | None = None


class PlainTokenizer:
    """A tokenizer as a trunk uses it: called with a text, and asked for its vocabulary."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self.tokenizer = tokenizer

    def __call__(
        self, text: str, *, truncation: bool = False, max_length: int | None = None
    ) -> dict[str, list[int]]:
        """Return the ids of a text, cut at `max_length` where that is asked for."""
        if truncation and max_length is not None:
            self.tokenizer.enable_truncation(max_length)
        else:
            self.tokenizer.no_truncation()
        return {"input_ids": self.tokenizer.encode(text).ids}

    def get_vocab(self) -> dict[str, int]:
        """Return token → id, added tokens among them."""
        return self.tokenizer.get_vocab(with_added_tokens=True)


def plain_trunk(
    files: Mapping[str, bytes], *, pooling: Pooling, max_tokens: int | None
) -> Trunk | None:
    """Build the trunk from a carried folder's bytes; return None if that is not plain.

    Args:
        files: The folder's files by name, no others.
        pooling: How token states become one vector.
        max_tokens: Where longer texts are cut.
    """
    if files.keys() != {CONFIG, WEIGHTS, TOKENIZER, TOLD}:
        return None
    config = read_config(files[CONFIG])
    tokenizer = _tokenizer(files[TOKENIZER], files[TOLD])
    tensors = None if config is None else _tensors(files[WEIGHTS], config)
    if config is None or tokenizer is None or tensors is None:
        return None
    # A trunk asks of both no more than what these have.
    return Trunk(
        model=cast("PreTrainedModel", Qwen3(config, tensors)),
        tokenizer=cast("PreTrainedTokenizerBase", tokenizer),
        pooling=pooling,
        max_tokens=max_tokens,
    )


def _tensors(data: bytes, config: Qwen3Config) -> dict[str, Tensor] | None:
    """Return the weights in float32, in memory of their own; None if they are not the model's."""
    found = safetensors.torch.load(data)
    if {name: tuple(t.shape) for name, t in found.items()} != expected_tensors(config):
        return None
    return {name: t.to(torch.float32, copy=True) for name, t in found.items()}


def _tokenizer(data: bytes, told: bytes) -> PlainTokenizer | None:
    """Return the tokenizer of a file; None if transformers would make another of it."""
    from tokenizers import Tokenizer

    try:
        config = msgspec.json.decode(told, type=_Told)
        made = Tokenizer.from_str(data.decode("utf-8"))
    except Exception:  # the tokenizers library raises no narrower one
        return None
    special = {str(token) for token in made.get_added_tokens_decoder().values()}
    named = {token for token in (config.pad_token, config.unk_token) if token is not None}
    if made.truncation is not None or made.padding is not None or not named <= special:
        return None
    return PlainTokenizer(made)
