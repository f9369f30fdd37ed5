"""The tiny backbone's tokenizer: bytes, joined into the pairs that general texts repeat."""

from __future__ import annotations

from collections.abc import Iterable

from tokenizers import Tokenizer
from tokenizers.decoders import ByteLevel as Bytes
from tokenizers.models import BPE
from tokenizers.pre_tokenizers import ByteLevel, Digits, Sequence
from tokenizers.trainers import BpeTrainer
from transformers import PreTrainedTokenizerFast

__all__ = ["START", "learn_tokenizer"]

START = "<|start|>"
"""Stands before every text; writing it ends one."""


def learn_tokenizer(
    texts: Iterable[str], *, vocabulary: int, longest: int
) -> PreTrainedTokenizerFast:
    """Return a byte-level tokenizer: any text comes back from its tokens, digits are single.

    Args:
        texts: What it learns from.
        vocabulary: Tokens at most; all 256 bytes and the start are among them.
        longest: Tokens a model can read.
    """
    core = Tokenizer(BPE())
    core.pre_tokenizer = Sequence(
        [Digits(individual_digits=True), ByteLevel(add_prefix_space=False)]
    )
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
