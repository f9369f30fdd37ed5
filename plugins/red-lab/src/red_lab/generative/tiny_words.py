"""The tiny backbone's tokenizer: byte-level BPE, trained on general texts."""

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
"""The token before every text; generating it ends a text."""


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
