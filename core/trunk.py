"""A text encoder from Hugging Face files: tokens in, one pooled vector out.

Nothing here assumes a decoder: Qwen, Llama, BERT and MiniLM all come through AutoModel, and the
blocks are found as the longest list of modules of one class.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import torch
from torch import Tensor, nn

from ..registry.errors import MissingError, UsageError

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

__all__ = ["BATCH", "Pooling", "Trunk", "blocks_of", "load_trunk"]

log = logging.getLogger("redhost")

Pooling = Literal["last", "mean"]

BATCH = 32
"""Rows of a canonical batch. Feature bits depend on the shape of a batch, never on what else is
in it, so every text is computed in a batch of this size and of its own token length."""


class Trunk:
    """The frozen encoder: texts → h ``(N, D)``.

    Args:
        model: The encoder, without a language-model head.
        tokenizer: Its tokenizer.
        pooling: ``last`` token or ``mean`` over the tokens.
        max_tokens: Where longer texts are cut; by default the model's longest input.
    """

    def __init__(
        self,
        *,
        model: PreTrainedModel,
        tokenizer: PreTrainedTokenizerBase,
        pooling: Pooling,
        max_tokens: int | None = None,
    ) -> None:
        self.model: PreTrainedModel = model.eval().requires_grad_(False)  # type: ignore[no-untyped-call]
        self.tokenizer = tokenizer
        self.pooling: Pooling = pooling
        self.max_tokens = max_tokens
        # Taps hook the blocks during a pass, and tokenizers keep settings between calls: one
        # thread at a time.
        self.guard = threading.RLock()

    @property
    def width(self) -> int:
        """D, the width of the pooled vector."""
        return int(self.model.config.hidden_size)

    @property
    def device(self) -> torch.device:
        """Where the encoder lives."""
        parameter: Tensor = next(self.model.parameters())
        return parameter.device

    def encode(self, texts: Sequence[str]) -> Tensor:
        """Return h ``(N, D)``, each row's bits independent of the other texts."""
        out = torch.empty(len(texts), self.width)
        with self.guard, torch.inference_mode():
            for index, ids in self.batches(texts):
                out[index] = self.pool(self.hidden(ids))[: len(index)].float().cpu()
        return out

    def batches(self, texts: Sequence[str]) -> Iterator[tuple[list[int], Tensor]]:
        """Yield canonical batches: the rows' indices and token ids ``(BATCH, T)``.

        All texts of a batch have the same number of tokens, so there is no padding; a batch that
        is not full repeats its first row.
        """
        by_length: dict[int, list[int]] = {}
        ids = [self.tokens(t) for t in texts]
        for i, row in enumerate(ids):
            by_length.setdefault(len(row), []).append(i)
        for length in sorted(by_length):
            rows = by_length[length]
            for start in range(0, len(rows), BATCH):
                index = rows[start : start + BATCH]
                filled = index + [index[0]] * (BATCH - len(index))
                yield index, torch.tensor([ids[i] for i in filled], device=self.device)

    def tokens(self, text: str) -> list[int]:
        """Return the token ids of a text, cut at `max_tokens` and the model's longest input.

        The tokenizer cuts, so that the marks some encoders end on are still there.
        """
        longest = getattr(self.model.config, "max_position_embeddings", None)
        limits = [n for n in (longest, self.max_tokens) if n is not None]
        cut = {"truncation": True, "max_length": min(limits)} if limits else {}
        ids = list(self.tokenizer(text, **cut)["input_ids"])
        if not ids:
            raise UsageError("a text has no tokens", expected="at least one", found=repr(text))
        return ids

    def hidden(self, ids: Tensor) -> Tensor:
        """Return the last hidden states ``(B, T, D)`` of token ids ``(B, T)``."""
        options: dict[str, Any] = {"attention_mask": torch.ones_like(ids)}
        hidden: Tensor = self.model(input_ids=ids, **options).last_hidden_state
        return hidden

    def pool(self, hidden: Tensor) -> Tensor:
        """Return h ``(B, D)`` for hidden states ``(B, T, D)``."""
        return hidden[:, -1] if self.pooling == "last" else hidden.mean(dim=1)


def blocks_of(model: nn.Module) -> tuple[str, nn.ModuleList]:
    """Return the name and the list of the model's transformer blocks.

    Raises:
        UsageError: If the model has no list of two or more modules of one class.
    """
    found = [
        (name, m)
        for name, m in model.named_modules()
        if isinstance(m, nn.ModuleList) and len({type(b) for b in m}) == 1
    ]
    if not found:
        raise UsageError(f"{type(model).__name__} has no list of blocks")
    return max(found, key=lambda pair: len(pair[1]))


def load_trunk(
    source: str,
    *,
    revision: str | None = None,
    pooling: Pooling = "last",
    max_tokens: int | None = None,
) -> Trunk:
    """Load an encoder by its source.

    Args:
        source: ``hf:NAME_OR_DIR`` or ``gguf:FILE``. Only a hub name uses the network.
        revision: The hub revision (commit) to pin; ignored for folders.
        pooling: How token states become one vector.
        max_tokens: Where longer texts are cut; by default the model's longest input.

    Raises:
        UsageError: If the source is of neither kind.
        MissingError: If the files cannot be had.
    """
    kind, _, where = source.partition(":")
    if kind not in {"hf", "gguf"} or not where:
        raise UsageError(
            f"unknown backbone source {source!r}", expected="hf:NAME_OR_DIR or gguf:FILE"
        )
    path = Path(where).expanduser()
    options: dict[str, Any] = {}
    if kind == "gguf":
        options["gguf_file"] = path.name
        where = str(path.parent)
    elif path.is_dir():
        options["local_files_only"] = True
    else:
        options["revision"] = revision
    return _load(where, options, pooling=pooling, max_tokens=max_tokens)


def _load(
    where: str, options: dict[str, Any], *, pooling: Pooling, max_tokens: int | None
) -> Trunk:
    from transformers import AutoModel, AutoTokenizer

    try:
        with _quiet():
            tokenizer = AutoTokenizer.from_pretrained(where, trust_remote_code=False, **options)
            model = AutoModel.from_pretrained(
                where,
                trust_remote_code=False,
                use_safetensors=None if "gguf_file" in options else True,  # others are pickles
                dtype=torch.float32,
                **options,
            )
    except (OSError, ValueError, ImportError) as e:
        raise MissingError(
            f"backbone {where!r} cannot be loaded",
            expected="a folder, file or hub name that transformers can read",
            found=str(e).splitlines()[0],
        ) from e
    _unmap(model)
    return Trunk(model=model, tokenizer=tokenizer, pooling=pooling, max_tokens=max_tokens)


def _unmap(model: nn.Module) -> None:
    """Copy the weights into memory: transformers maps the file.

    Whoever truncates a mapped file kills the process, and whoever overwrites it changes weights
    that were verified already.
    """
    for tensor in (*model.parameters(), *model.buffers()):
        tensor.data = tensor.data.clone()


@contextmanager
def _quiet() -> Iterator[None]:
    """Silence transformers' own bars and notices while it loads."""
    from transformers.utils import logging

    hf: Any = logging

    level, bars = hf.get_verbosity(), hf.is_progress_bar_enabled()
    hf.set_verbosity_error()
    hf.disable_progress_bar()
    try:
        yield
    finally:
        hf.set_verbosity(level)
        if bars:
            hf.enable_progress_bar()
