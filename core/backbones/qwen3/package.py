"""The trunk of a package that contains a plain Qwen3 folder, built without transformers.

Plain means: these four files, a configuration and a tokenizer whose every key is known here, and
exactly the tensors of the model. Any other folder is loaded by transformers. As for every backbone,
the result is checked against the manifest's fingerprint: tensors, configuration and tokenizer.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, cast

import msgspec
import safetensors.torch
import torch

from ....registry.package.manifest import Features
from ..encoder import TextEncoder
from ..identity import Stated
from ..pooling import PoolingChoice
from .model import Qwen3, Qwen3Config

if TYPE_CHECKING:
    from tokenizers import Tokenizer
    from transformers import PreTrainedModel, PreTrainedTokenizerBase


CONFIG, WEIGHTS = "config.json", "model.safetensors"
TOKENIZER, TOKENIZER_CONFIG = "tokenizer.json", "tokenizer_config.json"


class _TokenizerConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A ``tokenizer_config.json`` that adds nothing to ``tokenizer.json``."""

    tokenizer_class: Literal["PreTrainedTokenizerFast", "TokenizersBackend"]
    backend: Literal["tokenizers"] = "tokenizers"
    clean_up_tokenization_spaces: bool = False
    model_max_length: int | float | None = None
    pad_token: str | None = None
    padding_side: str = "right"
    unk_token: str | None = None


@dataclass(frozen=True, eq=False)
class PlainTokenizer:
    """A tokenizer as an encoder uses it: text → ids, and its vocabulary."""

    backend_tokenizer: Tokenizer
    special_tokens_map: Mapping[str, str]
    model_max_length: int | float | None = None
    truncation_side: str = "right"

    def __call__(
        self, text: str, *, truncation: bool = False, max_length: int | None = None, **_: object
    ) -> dict[str, list[int]]:
        """Return the ids of a text, cut at `max_length` where `truncation` is set."""
        if truncation and max_length is not None:
            self.backend_tokenizer.enable_truncation(max_length)
        else:
            self.backend_tokenizer.no_truncation()
        return {"input_ids": self.backend_tokenizer.encode(text).ids}

    def get_vocab(self) -> dict[str, int]:
        """Return token → id, added tokens included."""
        return self.backend_tokenizer.get_vocab(with_added_tokens=True)


def qwen3_encoder(
    files: Mapping[str, bytes],
    *,
    pooling: PoolingChoice,
    max_tokens: int | None,
    features: Features | None = None,
) -> TextEncoder | None:
    """Build the trunk from the files of a model folder; return None if the folder is not plain.

    Args:
        files: The folder's files by name, no others.
        pooling: How the states of a text become one vector.
        max_tokens: Token limit above which texts are cut.
        features: The parts of h; by default the last states.
    """
    if files.keys() != {CONFIG, WEIGHTS, TOKENIZER, TOKENIZER_CONFIG}:
        return None
    tokenizer = _tokenizer(files[TOKENIZER], files[TOKENIZER_CONFIG])
    if tokenizer is None:
        return None
    tensors = safetensors.torch.load(files[WEIGHTS])
    # Copied, because safetensors returns views of one buffer.
    tensors = {name: t.to(torch.float32, copy=True) for name, t in tensors.items()}
    try:
        model = Qwen3(msgspec.json.decode(files[CONFIG], type=Qwen3Config))
        model.load_state_dict(tensors, assign=True)
    # The configuration is of another kind, or the tensors do not have its names and shapes.
    except (msgspec.DecodeError, ValueError, RuntimeError):
        return None
    # The casts are safe: both have all members that an encoder uses.
    trunk, words = cast("PreTrainedModel", model), cast("PreTrainedTokenizerBase", tokenizer)
    return TextEncoder(
        model=trunk,
        tokenizer=words,
        pooling=pooling,
        max_tokens=max_tokens,
        features=features,
        stated=Stated.of(trunk, words, json.loads(files[CONFIG])),
    )


def _tokenizer(data: bytes, settings: bytes) -> PlainTokenizer | None:
    """Return the tokenizer of a file; None if transformers would load it differently."""
    from tokenizers import Tokenizer

    try:
        config = msgspec.json.decode(settings, type=_TokenizerConfig)
        tokenizer = Tokenizer.from_str(data.decode("utf-8"))
    except Exception:  # the tokenizers library raises no narrower type
        return None
    special = {str(token) for token in tokenizer.get_added_tokens_decoder().values()}
    named = {token for token in (config.pad_token, config.unk_token) if token is not None}
    if tokenizer.truncation is not None or tokenizer.padding is not None or not named <= special:
        return None
    special_tokens = {"pad_token": config.pad_token, "unk_token": config.unk_token}
    return PlainTokenizer(
        tokenizer,
        {key: token for key, token in special_tokens.items() if token is not None},
        config.model_max_length,
    )
