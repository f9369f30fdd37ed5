"""The tiny language model: tokenizer, configuration, and pretraining on arithmetic text.

Every batch depends only on the seed and the step. An interrupted run therefore continues from its
last checkpoint and ends with the same weights as an uninterrupted run (same machine and threads).
Shapes: B batch, T tokens, N positions, D model width, A tokens predicted ahead, W vocabulary.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, NamedTuple

import torch
from tokenizers import Regex, Tokenizer
from tokenizers.decoders import Fuse
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import Split as Splitter
from torch import Tensor, nn
from transformers import PreTrainedTokenizerFast, Qwen3Config, Qwen3Model

from red_lab.arithmetic import Split
from red_lab.corpus import Corpus, Example
from red_lab.progress import Bar
from red_lab.training import adamw, descend, rate, resume, store

__all__ = ["Pretraining", "Shape", "TinyLM", "make_model", "make_tokenizer", "pretrain"]

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


@dataclass(frozen=True, slots=True, kw_only=True)
class Pretraining:
    """Training settings of the language model.

    Attributes:
        steps: Steps of AdamW.
        batch: Examples a step.
        learning_rate: Reached after ``warmup`` steps, held for half of the steps, then decayed
            along a cosine to 2 %.
        warmup: Steps of linear warm-up.
        weight_decay: AdamW's.
        later: Weight of the loss on each token after the next one.
        every: Steps between two checkpoints.
    """

    steps: int = 2000
    batch: int = 128
    learning_rate: float = 2e-3
    warmup: int = 100
    weight_decay: float = 0.1
    later: float = 0.5
    every: int = 100


class Targets(NamedTuple):
    """The tokens that the states at N positions have to predict.

    Attributes:
        row: ``(N,)``, index of the example in the batch.
        position: ``(N,)``, index of the token in the example.
        tokens: ``(N, A)``, the next A tokens; 0 (padding) after the end.
    """

    row: Tensor
    position: Tensor
    tokens: Tensor


def pretrain(
    split: Split,
    *,
    seed: int = 0,
    shape: Shape | None = None,
    settings: Pretraining | None = None,
    checkpoint: Path | None = None,
) -> TinyLM:
    """Return a language model trained without the pairs that ``split`` holds out.

    Args:
        split: The held-out folds.
        seed: Random seed of initial weights and text.
        shape: Size of the model.
        settings: Training settings.
        checkpoint: A file that is written regularly, and resumed from if it exists.
    """
    shape, settings = shape or Shape(), settings or Pretraining()
    model, corpus = make_model(shape, seed=seed), Corpus.of(split, seed=seed)
    optimizer = adamw(model, weight_decay=settings.weight_decay)
    run = {"split": str(split), "seed": seed, **asdict(shape), **asdict(settings)}
    start = resume(checkpoint, model, optimizer, run=run)
    bar, tokenizer = Bar("pretraining", total=settings.steps), make_tokenizer()
    for step in range(start, settings.steps):
        share = rate(step, steps=settings.steps, warmup=settings.warmup)
        ids, targets = _encode(tokenizer, corpus.batch(step, size=settings.batch), model.horizon)
        loss = descend(
            model,
            optimizer,
            _loss(model, ids, targets, later=settings.later),
            learning_rate=settings.learning_rate * share,
        )
        bar.update(step + 1, f"loss {loss:.4f}")
        if checkpoint is not None and (step + 1) % settings.every == 0:
            store(checkpoint, model, optimizer, step=step + 1, run=run)
    return model.eval().requires_grad_(False)


def _encode(
    tokenizer: PreTrainedTokenizerFast, examples: Sequence[Example], horizon: int
) -> tuple[Tensor, Targets]:
    """Return token ids ``(B, T)`` and the targets of every answer position."""
    texts = [example.question + example.answer + END for example in examples]
    ids = pad_right(tokenizer(texts)["input_ids"], extra=horizon)  # (B, T + A)
    places = [
        (row, len(example.question) - 1 + i)
        for row, example in enumerate(examples)
        for i in range(len(example.answer) + 1)
    ]
    row, position = torch.tensor(places).T
    tokens = torch.stack([ids[row, position + 1 + k] for k in range(horizon)], dim=1)
    return ids[:, :-horizon], Targets(row, position, tokens)


def _loss(model: TinyLM, ids: Tensor, targets: Targets, *, later: float) -> Tensor:
    """Return the loss on the next tokens plus ``later`` times the loss on the tokens after them."""
    logits = model.logits(model.hidden(ids)[targets.row, targets.position])  # (N, A, W)
    losses = [
        nn.functional.cross_entropy(logits[:, k], targets.tokens[:, k], ignore_index=0)
        for k in range(model.horizon)
    ]
    return losses[0] + later * torch.stack([*losses[1:], losses[0] * 0]).sum()
