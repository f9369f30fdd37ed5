"""Load an encoder from Hugging Face files: a folder, a hub name at a commit, or a GGUF file.

What is loaded is what h depends on, all of it from the files, and named by them (`weights`,
`identity`): heads and poolers are left out, and nothing is drawn at random.
"""

from __future__ import annotations

import io
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext, redirect_stderr
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import torch
from torch import Tensor, nn

from ...registry.errors import MissingError, RedhostError, UsageError
from .encoder import FeatureChoice, TextEncoder
from .gguf_reading import header_read_once
from .identity import Stated, stated_config
from .pooling import MODES, Pooling, PoolingChoice
from .weights import drop_unread, load_hint, require_complete

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase


def load_encoder(
    source: str,
    *,
    revision: str | None = None,
    pooling: PoolingChoice = "last",
    max_tokens: int | None = None,
    features: FeatureChoice = None,
    head: bool = False,
) -> TextEncoder:
    """Load an encoder by its source.

    Args:
        source: ``hf:NAME_OR_DIR`` or ``gguf:FILE``. Only a hub name uses the network.
        revision: The hub revision (commit) to pin; ignored for folders.
        pooling: How the states of a text become one vector.
        max_tokens: Token limit above which texts are cut; by default the model's longest input.
        features: The parts of h, see `TextEncoder`; by default the last states.
        head: Whether to load the language-model head as well.

    Raises:
        UsageError: If the source has neither form, or its head is not a single product.
        MissingError: If the files cannot be read.
        ManifestError: If the configuration has a value that cannot compute.
        IntegrityError: If tensors that determine h are missing, or do not fit the configuration.
    """
    kind, _, where = source.partition(":")
    if kind not in {"hf", "gguf"} or not where:
        hint = f"Did you mean 'hf:{source}'?" if Path(source).expanduser().is_dir() else ""
        raise UsageError(
            f"unknown backbone source {source!r}", expected="hf:NAME_OR_DIR or gguf:FILE", hint=hint
        )
    if pooling not in MODES and not isinstance(pooling, Pooling):
        raise UsageError("pooling", expected=", ".join(MODES), found=repr(pooling)[:40])
    path = Path(where).expanduser()
    options: dict[str, Any] = (
        {"local_files_only": True} if path.is_dir() else {"revision": revision}
    )
    if kind == "gguf":
        where, options = str(path.parent), {"gguf_file": path.name}
    tokenizer, model, stated = _load(where, options, head=head)
    # With its head the model is one whose base is the encoder; without, an encoder may have a
    # decoder.
    trunk = cast("PreTrainedModel", model.base_model) if head else reader_of(model)
    return TextEncoder(
        model=trunk,
        tokenizer=tokenizer,
        pooling=pooling,
        max_tokens=max_tokens,
        features=features,
        head=head_of(model) if head else None,
        stated=stated,
    )


def _load(
    where: str, options: dict[str, Any], *, head: bool
) -> tuple[PreTrainedTokenizerBase, PreTrainedModel, Stated]:
    from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer

    kind: Any = AutoModelForCausalLM
    once = header_read_once() if "gguf_file" in options else nullcontext()
    try:
        with _silence_warnings(), once:
            config = stated_config(where, options)
            tokenizer = AutoTokenizer.from_pretrained(where, trust_remote_code=False, **options)
            if not head:
                kind = _reading_class(
                    AutoConfig.from_pretrained(where, trust_remote_code=False, **options)
                )
            loaded: Any = kind.from_pretrained(
                where,
                trust_remote_code=False,
                use_safetensors=None if "gguf_file" in options else True,  # others are pickles
                dtype=torch.float32,
                ignore_mismatched_sizes=True,  # they are refused below, by name
                output_loading_info=True,
                **options,
            )
            stated = Stated.of(loaded[0], tokenizer, config)
    except RedhostError:
        raise
    except Exception as e:  # transformers' parsers raise errors of many types
        raise MissingError(
            f"backbone {where!r} cannot be loaded",
            expected="a folder, file or hub name that transformers can read",
            found=next(iter(str(e).splitlines()), "") or type(e).__name__,
            hint=load_hint(where, kind.__name__),
        ) from e
    model, report = loaded
    base = cast("PreTrainedModel", model.base_model) if head else model
    with _silence_warnings():
        unread = drop_unread(base)
    require_complete(
        base, report, prefix=model.base_model_prefix, unread=unread, source=repr(where)
    )
    _unmap(model)
    return tokenizer, model, stated


def _reading_class(config: Any) -> Any:
    """Return the class that loads a model without its head; for T5's kind, the encoder alone."""
    from transformers import MODEL_FOR_TEXT_ENCODING_MAPPING, AutoModel, AutoModelForTextEncoding

    has_encoder = config.is_encoder_decoder or any(
        str(name).endswith("EncoderModel") for name in config.architectures or ()
    )
    is_encoder = has_encoder and type(config) in MODEL_FOR_TEXT_ENCODING_MAPPING
    return AutoModelForTextEncoding if is_encoder else AutoModel


def reader_of(model: PreTrainedModel) -> PreTrainedModel:
    """Return the part of a model that reads a text: the encoder, if its decoder wants a second."""
    if not model.config.is_encoder_decoder:
        return model
    # By a pass of one token: no configuration says whether the decoder wants input of its own.
    try:
        with torch.inference_mode():
            model(input_ids=torch.zeros(1, 1, dtype=torch.long))
    except (TypeError, ValueError):
        return cast("PreTrainedModel", model.get_encoder())
    return model


def head_of(model: PreTrainedModel) -> Tensor:
    """Return the head's weight ``(V, D)``, if the logits are its product with the last states.

    It is stored in column-major order: the product of one row reads it in half the time.

    Raises:
        UsageError: If they are not; a bias, a scale or a cap would be lost.
    """
    causal: Any = model
    layer = causal.get_output_embeddings()
    with torch.inference_mode():
        # Any tokens show a bias, a scale or a cap; a toy vocabulary may have fewer than four.
        probe = torch.arange(4)[None] % model.config.vocab_size
        logits = causal(input_ids=probe).logits
        product = causal.base_model(input_ids=probe).last_hidden_state @ layer.weight.T
    # Not bitwise: a model may multiply in another order.
    if not torch.allclose(logits, product, rtol=1e-4, atol=1e-4):
        raise UsageError(
            f"{type(model).__name__} does more to its states than one product",
            expected="logits that are the head's product with the last states",
            found=f"a difference of {float((logits - product).abs().max()):.3g}",
        )
    layer.weight.data = layer.weight.data.t().contiguous().t()  # embeddings may share it
    return cast("Tensor", layer.weight.detach())


def _unmap(model: nn.Module) -> None:
    """Copy the weights into memory, because transformers memory-maps the file.

    Truncating a mapped file kills the process; overwriting it changes verified weights.
    """
    for tensor in (*model.parameters(), *model.buffers()):
        tensor.data = tensor.data.clone()


@contextmanager
def _silence_warnings() -> Iterator[None]:
    """Silence transformers' own bars and notices while it loads."""
    from transformers.utils import logging

    hf: Any = logging
    level, bars = hf.get_verbosity(), hf.is_progress_bar_enabled()
    hf.set_verbosity_error()
    hf.disable_progress_bar()
    try:
        # The progress bar of GGUF files comes from tqdm directly, and cannot be disabled.
        with redirect_stderr(io.StringIO()):
            yield
    finally:
        hf.set_verbosity(level)
        if bars:
            hf.enable_progress_bar()
