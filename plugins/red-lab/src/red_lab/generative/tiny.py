"""The tiny generative backbone: a causal Qwen3 of a million weights, pretrained on general text.

None of its text is of the five domains (`red_lab.generative.corpora`). Its tokenizer is byte-level
BPE, trained on the same texts. Every batch depends on the seed and the step alone. An interrupted
run therefore resumes from its last checkpoint, and ends with the weights of an uninterrupted one
(on the same machine and number of threads).

Shapes: B batch, T tokens, W vocabulary.
"""

from __future__ import annotations

import json
import math
import os
import random
import shutil
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from tokenizers import Tokenizer
from tokenizers.decoders import ByteLevel as Bytes
from tokenizers.models import BPE
from tokenizers.pre_tokenizers import ByteLevel, Digits
from tokenizers.pre_tokenizers import Sequence as InTurn
from tokenizers.trainers import BpeTrainer
from torch import Tensor, nn
from transformers import PreTrainedTokenizerFast, Qwen3Config, Qwen3ForCausalLM

from red_lab.generative.corpora import General, read_general
from red_lab.progress import shown
from red_lab.training import adamw, descend, rate, resume, store

__all__ = [
    "START",
    "GenerativePretraining",
    "GenerativeShape",
    "bits_per_byte",
    "learn_tokenizer",
    "make_language_model",
    "tiny_language_model",
    "token_stream",
]

START = "<|start|>"
"""The token before every text; generating it ends a text."""

RECORD = "training.json"
SCORED_CHARACTERS = 800
"""Characters of an evaluation text: with the vocabulary of general text it fits the window."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GenerativeShape:
    """The size of the tiny generative model.

    Attributes:
        vocabulary: The maximum W.
        width: D, the model width.
        blocks: Transformer blocks.
        heads: Attention heads, each with its own key and value.
        inner: Width of the blocks' feed-forward layer.
        longest: Maximum number of positions.
    """

    vocabulary: int = 1024
    width: int = 128
    blocks: int = 4
    heads: int = 4
    inner: int = 384
    longest: int = 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class GenerativePretraining:
    """Settings of its training.

    Attributes:
        steps: Steps of AdamW.
        batch: B, windows per step.
        window: T, tokens of a window.
        learning_rate: The peak learning rate (`red_lab.training.rate`).
        warmup: Steps of linear warm-up.
        weight_decay: AdamW's weight decay.
        every: Steps between two checkpoints.
    """

    steps: int = 3200
    batch: int = 4
    window: int = 512
    learning_rate: float = 3e-3
    warmup: int = 100
    weight_decay: float = 0.1
    every: int = 200


def tiny_language_model(
    work: Path,
    *,
    seed: int = 0,
    shape: GenerativeShape | None = None,
    settings: GenerativePretraining | None = None,
    general: General | None = None,
) -> Path:
    """Return the folder of the tiny generative backbone; pretrain it if it does not exist yet.

    Args:
        work: The parent of the folder and its checkpoint.
        seed: Seed of the initial weights and of the order of the text.
        shape: Size of the model.
        settings: Training settings.
        general: Its training and evaluation texts; `read_general` by default.

    Returns:
        A folder that AutoModelForCausalLM and AutoTokenizer load. Its `training.json` records the
        training texts, the duration, and bits per byte on held-out documents.

    Raises:
        redhost.MissingError: If a package that contains the text is not installed.
        ValueError: If ``work`` holds a checkpoint of another run.
    """
    shape, settings = shape or GenerativeShape(), settings or GenerativePretraining()
    folder = work / f"generative-tiny-{seed}"
    requested = {"seed": seed, "shape": asdict(shape), "settings": asdict(settings)}
    if (folder / RECORD).exists():
        record = json.loads((folder / RECORD).read_text("utf-8"))
        if requested.items() <= record.items():
            return folder
    general = general or read_general()
    words = learn_tokenizer(
        (d.text for d in general.base), vocabulary=shape.vocabulary, longest=shape.longest
    )
    model = _pretrained(
        token_stream(words, [d.text for d in general.base]),
        model=make_language_model(shape, words=words, seed=seed),
        settings=settings,
        run={**requested, "general": general.digest},
        checkpoint=folder.with_suffix(".pt"),
    )
    bits = bits_per_byte(model, words, [d.text[:SCORED_CHARACTERS] for d in general.valid])
    facts = {"general": general.digest, "source": dict(general.source), "bits_per_byte": bits}
    return _saved(folder, model, words, record={**requested, **facts})


def learn_tokenizer(
    texts: Iterable[str], *, vocabulary: int, longest: int
) -> PreTrainedTokenizerFast:
    """Return a byte-level tokenizer: lossless for any text, with one token for each digit.

    Args:
        texts: Its training texts.
        vocabulary: Maximum number of tokens, including all 256 bytes and the start token.
        longest: Maximum number of tokens that a model can read.
    """
    core = Tokenizer(BPE())
    core.pre_tokenizer = InTurn([Digits(individual_digits=True), ByteLevel(add_prefix_space=False)])
    core.decoder = Bytes()
    core.train_from_iterator(
        texts,
        trainer=BpeTrainer(
            vocab_size=vocabulary,
            special_tokens=[START],
            initial_alphabet=ByteLevel.alphabet(),
            show_progress=False,
        ),
    )
    return PreTrainedTokenizerFast(  # type: ignore[no-untyped-call]
        tokenizer_object=core,
        bos_token=START,
        eos_token=START,
        model_max_length=longest,
        clean_up_tokenization_spaces=False,
    )


def make_language_model(
    shape: GenerativeShape, *, words: PreTrainedTokenizerFast, seed: int
) -> Qwen3ForCausalLM:
    """Return an untrained model whose weights depend on the seed alone; its head is tied."""
    start = words.bos_token_id
    config = Qwen3Config(
        vocab_size=len(words),
        hidden_size=shape.width,
        intermediate_size=shape.inner,
        num_hidden_layers=shape.blocks,
        num_attention_heads=shape.heads,
        num_key_value_heads=shape.heads,
        head_dim=shape.width // shape.heads,
        max_position_embeddings=shape.longest,
        tie_word_embeddings=True,
        bos_token_id=start,
        eos_token_id=start,
        pad_token_id=None,
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return Qwen3ForCausalLM(config)


def token_stream(words: PreTrainedTokenizerFast, texts: Iterable[str]) -> Tensor:
    """Return the tokens of all texts in one row, each text after a start token."""
    start = words.bos_token_id
    found = words.backend_tokenizer.encode_batch(list(texts), add_special_tokens=False)
    return torch.tensor([token for text in found for token in (start, *text.ids)])


def bits_per_byte(model: nn.Module, words: PreTrainedTokenizerFast, texts: Sequence[str]) -> float:
    """Return −log₂ p of texts, each after a start token, divided by their number of bytes."""
    bits, size = 0.0, 0
    with torch.inference_mode():
        for text in texts:
            ids = token_stream(words, [text])[None]  # (1, T)
            bits += float(_loss(model, ids, total=True)) / math.log(2)
            size += len(text.encode())
    return bits / size


def _pretrained(
    stream: Tensor,
    *,
    model: Qwen3ForCausalLM,
    settings: GenerativePretraining,
    run: dict[str, Any],
    checkpoint: Path,
) -> Qwen3ForCausalLM:
    """Train a model on windows of a row of tokens, or resume from a checkpoint."""
    optimizer = adamw(model, weight_decay=settings.weight_decay)
    first = resume(checkpoint, model, optimizer, run=run)
    show = shown("pretraining")
    for step in range(first, settings.steps):
        descend(
            model,
            optimizer,
            _loss(model, _windows(stream, settings, seed=run["seed"], step=step)),
            learning_rate=settings.learning_rate
            * rate(step, steps=settings.steps, warmup=settings.warmup),
        )
        show(step + 1, settings.steps)
        if (step + 1) % settings.every == 0:
            store(checkpoint, model, optimizer, step=step + 1, run=run)
    model.eval()  # type: ignore[no-untyped-call]
    return model


def _windows(stream: Tensor, settings: GenerativePretraining, *, seed: int, step: int) -> Tensor:
    """Return windows ``(B, T)`` from random positions in the stream, each after a start token."""
    rng = random.Random(f"windows {seed} {step}")  # noqa: S311  (no secret)
    inside = settings.window - 1
    places = [rng.randrange(len(stream) - inside + 1) for _ in range(settings.batch)]
    return torch.stack([torch.cat([stream[:1], stream[p : p + inside]]) for p in places])


def _loss(model: nn.Module, ids: Tensor, *, total: bool = False) -> Tensor:
    """Return the mean loss in nats on the tokens ``(B, T)`` after the first, or its sum."""
    logits = model(input_ids=ids[:, :-1], use_cache=False).logits  # (B, T - 1, W)
    kind = "sum" if total else "mean"
    return nn.functional.cross_entropy(
        logits.flatten(0, 1).float(), ids[:, 1:].flatten(), reduction=kind
    )


def _saved(
    folder: Path,
    model: Qwen3ForCausalLM,
    words: PreTrainedTokenizerFast,
    *,
    record: dict[str, Any],
) -> Path:
    """Write the folder, under a temporary name until it is complete."""
    fresh = folder.with_suffix(".new")
    shutil.rmtree(fresh, ignore_errors=True)
    model.save_pretrained(fresh)
    words.save_pretrained(fresh)
    (fresh / RECORD).write_text(json.dumps(record, indent=2) + "\n", "utf-8")
    shutil.rmtree(folder, ignore_errors=True)
    os.replace(fresh, folder)  # noqa: PTH105
    return folder
