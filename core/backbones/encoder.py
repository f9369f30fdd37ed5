"""A text encoder from Hugging Face files: tokens in, one pooled vector out.

Nothing here assumes a decoder: Qwen, Llama, BERT and MiniLM are all loaded through AutoModel. The
transformer blocks are found as the longest list of modules of one class.
"""

from __future__ import annotations

import inspect
import io
import logging
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext, redirect_stderr
from dataclasses import replace
from functools import cached_property
from itertools import groupby, islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, cast

import torch
from torch import Tensor, nn

from ...registry.errors import MissingError, UsageError
from ...registry.package.manifest import Features
from .gguf_reading import header_read_once
from .packs import Pack, attending, packs
from .tiles import KERNELS, PASS_TOKENS, Tiles, tile_of
from .token_hashing import TokenHashing

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase


log = logging.getLogger("redhost")

Pooling = Literal["first", "last", "mean"]
FeatureChoice = Features | Literal["wide"] | None

Around = Callable[[Pack], AbstractContextManager[None]]
"""A pack → the context manager in which it is computed."""

BATCH = 32
"""Most texts in a pass."""

ENDLESS = 2**31 - 1
"""A token limit that no text reaches."""

MOST_PLACES = 2048
"""Default limit of the hashed tokens' width: cards of sums grow with the square of h's width."""


class TextEncoder:
    """The frozen encoder: texts → h ``(N, D)``.

    Args:
        model: The encoder, without a language-model head.
        tokenizer: Its tokenizer.
        pooling: ``first`` or ``last`` token, or ``mean`` over the tokens.
        max_tokens: Token limit above which texts are cut; by default the model's longest input.
        features: The parts of h; by default the last states alone. ``wide`` stands for the result
            of `wide_features`.
        head: The language-model head ``(V, D)``, for text generation.

    Attributes:
        width: D, the width of the pooled vector.
        engine: The device name of the engine that computes h (`engines`); None for torch's own
            computation. A generation is loaded on the engine it was made on.
        tolerance: The largest distance of a text's h from that of torch in float32, relative to
            the norm of h.

    Raises:
        UsageError: If the model lacks one of the layers in `features`.
    """

    engine: str | None = None
    tolerance: float = 0.0

    def __init__(
        self,
        *,
        model: PreTrainedModel,
        tokenizer: PreTrainedTokenizerBase,
        pooling: Pooling,
        max_tokens: int | None = None,
        features: FeatureChoice = None,
        head: Tensor | None = None,
    ) -> None:
        self.head = head
        self.model: PreTrainedModel = model.eval().requires_grad_(False)  # type: ignore[no-untyped-call]
        self.features = _checked(features, model)
        self.hashing, self.width = None, int(model.config.hidden_size)
        if self.features is not None:
            self.width = self.width * len(self.features.layers) + self.features.tokens
            if width := self.features.tokens:
                vocabulary = int(model.config.vocab_size)
                self.hashing = TokenHashing.of(width=width, vocabulary=vocabulary)
        self.tokenizer = tokenizer
        self.pooling: Pooling = pooling
        self.max_tokens = max_tokens
        self.tiles = Tiles.of(model)
        # Interventions hook the blocks during a pass, and tokenizers keep settings between calls,
        # so only one thread may use them at a time.
        self.lock = threading.RLock()

    @property
    def kernels(self) -> str:
        """Identifier of the kernels that determine the bits of h; part of the feature cache key."""
        return KERNELS

    @property
    def has_states(self) -> bool:
        """Whether torch runs the passes, so that states inside can be read and changed."""
        return type(self).passes is TextEncoder.passes

    @cached_property
    def blocks(self) -> nn.ModuleList:
        """The model's transformer blocks."""
        return blocks_of(self.model)[1]

    @property
    def device(self) -> torch.device:
        """The device of the encoder's weights."""
        return cast("Tensor", next(self.model.parameters())).device

    def encode(
        self,
        texts: Sequence[str],
        *,
        compute: Callable[[Tensor], Tensor] | None = None,
        alone: bool = True,
        around: Around | None = None,
        after: Callable[[Pack], None] | None = None,
    ) -> Tensor:
        """Return h ``(N, D)``, each row's bits independent of the other texts.

        Args:
            texts: N texts.
            compute: Token ids ``(B, T)`` → rows ``(B, D)``, to compute something other than h.
            alone: Whether `compute` gets one text at a time on a CPU, because it may mix rows.
            around: Pack → the context manager in which it is computed, if packs are used.
            after: Called with each pack once it is computed.
        """
        ids = [self.tokens(t) for t in texts]
        if not ids:
            return torch.empty(0, self.width)
        order, parts = list[int](), list[Tensor]()
        with self.lock, torch.inference_mode():
            passes = (
                self._packed(ids, around, after)
                if around or after
                else self.passes(ids)
                if compute is None
                else self._computed(ids, compute, alone=alone)
            )
            for index, rows in passes:
                order += index
                parts.append(rows[: len(index)].float().cpu())
            out = torch.cat(parts)
            if order != sorted(order):
                out = out[torch.tensor(order).argsort()]
            if self.hashing is not None:
                for n, cut in enumerate(ids):
                    out[n, -self.hashing.width :] = self.hashing.row(self._whole(texts[n], cut))
        return out

    def passes(self, ids: Sequence[list[int]]) -> Iterator[tuple[Sequence[int], Tensor]]:
        """Yield the indices of a pass's texts and their h ``(B, D)``, until all texts are done.

        Engines override this method to compute h in their own way, and change `kernels`.

        Args:
            ids: Token ids of each text.
        """
        if self.device.type != "cpu" or not self.tiles.is_packed:
            yield from self._computed(ids, lambda batch: self.pool(self.hidden_states(batch)))
            return
        yield from self._packed(ids)

    def _packed(
        self,
        ids: Sequence[list[int]],
        around: Around | None = None,
        after: Callable[[Pack], None] | None = None,
    ) -> Iterator[tuple[Sequence[int], Tensor]]:
        for pack in packs(ids, tokens=PASS_TOKENS):
            with nullcontext() if around is None else around(pack):
                states = self._states_of(pack)[0]
            if after is not None:
                after(pack)
            yield pack.index, torch.cat([self.pool(run.of(states)) for run in pack.runs])

    def _computed(
        self, ids: Sequence[list[int]], compute: Callable[[Tensor], Tensor], *, alone: bool = False
    ) -> Iterator[tuple[Sequence[int], Tensor]]:
        most = 1 if alone and self.device.type == "cpu" else None
        for index, batch in self._batches(ids, most=most):
            yield index, compute(batch)

    def _whole(self, text: str, cut: list[int]) -> list[int]:
        """Return all token ids of a text, given those after the cut."""
        if self.longest is None or len(cut) < self.longest:
            return cut
        # Without a limit, transformers warns about texts longer than the model's longest input.
        with self.lock:
            return list(self.tokenizer(text, truncation=True, max_length=ENDLESS)["input_ids"])

    def batches(
        self, texts: Sequence[str], *, most: int | None = None
    ) -> Iterator[tuple[list[int], Tensor]]:
        """Yield bitwise reproducible passes: the indices of their texts, and token ids ``(B, T)``.

        All texts of a pass have the same number of tokens, so there is no padding. On a CPU,
        `tiles` make rows independent of the batch. On other devices bits depend on the shape of
        the batch only, so that shape is fixed: a batch that is not full repeats its first row.

        Args:
            texts: Any texts.
            most: Most texts in a pass; by default as many as keep bits reproducible.
        """
        yield from self._batches([self.tokens(t) for t in texts], most=most)

    def _batches(
        self, ids: Sequence[list[int]], *, most: int | None
    ) -> Iterator[tuple[list[int], Tensor]]:
        lengths, cpu = [len(row) for row in ids], self.device.type == "cpu"
        by_length = sorted(range(len(ids)), key=lengths.__getitem__)
        for tokens, rows in groupby(by_length, key=lengths.__getitem__):
            count = most or (self.tiles.rows(tokens, most=BATCH) if cpu else BATCH)
            while index := list(islice(rows, count)):
                filled = index if cpu else index + [index[0]] * (count - len(index))
                yield index, torch.tensor([ids[i] for i in filled], device=self.device)

    def tokens(self, text: str) -> list[int]:
        """Return the token ids of a text, cut at `max_tokens` and the model's longest input.

        The tokenizer truncates, so special tokens at the end of the input are kept.
        """
        cut = {} if self.longest is None else {"truncation": True, "max_length": self.longest}
        try:
            with self.lock:  # computing a fingerprint changes the tokenizer's settings
                ids = list(self.tokenizer(text, **cut)["input_ids"])
        except TypeError as e:  # tokenizers raises it for half of a surrogate pair
            raise UsageError("a text", expected="whole characters", found=ascii(text)[:40]) from e
        if not ids:
            raise UsageError("a text has no tokens", expected="at least one", found=repr(text))
        return ids

    @property
    def longest(self) -> int | None:
        """The token limit: the smaller of `max_tokens` and the model's longest input."""
        longest = getattr(self.model.config, "max_position_embeddings", None)
        limits = [n for n in (longest, self.max_tokens) if n is not None]
        return min(limits, default=None)

    def states(self, texts: Sequence[str]) -> list[Tensor]:
        """Return the states ``(T, D)`` of each text's tokens, bitwise independent of the batch."""
        ids = [self.tokens(t) for t in texts]
        found: dict[int, Tensor] = {}
        with self.lock, torch.inference_mode():
            if self.device.type == "cpu" and self.tiles.is_packed:
                for pack in packs(ids, tokens=PASS_TOKENS):
                    states = self._states_of(pack)[0]
                    each = (one for run in pack.runs for one in run.of(states))
                    found |= {n: one.clone() for n, one in zip(pack.index, each, strict=True)}
            else:
                for index, batch in self._batches(ids, most=None):
                    found |= zip(index, self.hidden_states(batch).float().cpu(), strict=False)
        return [found[n] for n in range(len(ids))]

    def hidden_states(self, ids: Tensor) -> Tensor:
        """Return the states ``(B, T, D)`` from which h is pooled, for token ids ``(B, T)``."""
        with self._pass(ids):
            output = self.model(
                input_ids=ids, attention_mask=torch.ones_like(ids), **self._wanted_states
            )
        return self._read(output)

    def _states_of(self, pack: Pack) -> Tensor:
        """Return the states ``(1, N, D)`` from which h is pooled, for a pack."""
        tile = pack.sections[0][1]  # for inputs that do not have the rows of the pack
        tiles = self.tiles.applied(tile, sections=pack.sections, runs=pack.runs)
        with self.lock, tiles, attending(self.model):
            output = self.model(
                input_ids=pack.ids,
                position_ids=pack.places,
                runs=pack.runs,
                use_cache=False,
                **self._wanted_states,
            )
        return self._read(output)

    @property
    def _wanted_states(self) -> dict[str, bool]:
        return {} if self.features is None else {"output_hidden_states": True}

    def _read(self, output: Any) -> Tensor:
        """Return the states from which h is pooled, given the model's output."""
        if self.features is None:
            return cast("Tensor", output.last_hidden_state)
        return torch.cat([output.hidden_states[layer] for layer in self.features.layers], dim=-1)

    def with_linears(self, linears: Sequence[nn.Linear]) -> AbstractContextManager[None]:
        """Treat these as linear layers of the encoder in the passes of a ``with`` block."""
        return self._in(lambda tiles: replace(tiles, linears=(*tiles.linears, *linears)))

    def in_float32(self) -> AbstractContextManager[None]:
        """Compute the passes of a ``with`` block in float32, as for the canaries of authors."""
        return self._in(lambda tiles: replace(tiles, lowered={}))

    @contextmanager
    def _in(self, made: Callable[[Tiles], Tiles]) -> Iterator[None]:
        with self.lock:
            tiles = self.tiles
            self.tiles = made(tiles)
            try:
                yield
            finally:
                self.tiles = tiles

    def decode_step(self, ids: Tensor, cache: Any = None) -> tuple[Tensor, Any]:
        """Return the last hidden states ``(B, T, D)`` of tokens ``(B, T)``, using a KV cache.

        Args:
            ids: The tokens.
            cache: The KV cache of the tokens before; None at the start.

        Returns:
            The states, and the KV cache for the next step.
        """
        with self._pass(ids):
            if self._takes_cache:
                output = self.model(input_ids=ids, cache=cache, use_cache=True)
                return output.last_hidden_state, output.cache
            output = self.model(input_ids=ids, past_key_values=cache, use_cache=True)
        return output.last_hidden_state, output.past_key_values

    @cached_property
    def _takes_cache(self) -> bool:
        """Whether the model takes the KV cache as ``cache``: most do since transformers 5.24."""
        return "cache" in inspect.signature(self.model.forward).parameters

    @contextmanager
    def _pass(self, ids: Tensor) -> Iterator[None]:
        """Compute in tiles if possible: on a CPU, without gradients."""
        if ids.device.type == "cpu" and torch.is_inference_mode_enabled():
            with self.lock, self.tiles.applied(tile_of(ids.shape[1])):
                yield
        else:
            yield

    def pool(self, hidden: Tensor) -> Tensor:
        """Return h ``(B, D)`` for hidden states ``(B, T, D)``; normalise each of several parts.

        Norms of the parts differ widely. Normalised, they are [LN(h_l)], which the bus norm does
        not change. The part of hashed tokens is zero here and is filled in by `encode`.
        """
        if self.features is None:
            return self._pooled(hidden)
        layers = hidden.chunk(len(self.features.layers), dim=-1)
        parts = [nn.functional.layer_norm(h, h.shape[-1:]) for h in map(self._pooled, layers)]
        parts += [] if self.hashing is None else [hidden.new_zeros(len(hidden), self.hashing.width)]
        return torch.cat(parts, dim=-1)

    def _pooled(self, states: Tensor) -> Tensor:
        """Return one vector ``(B, D)`` for the states ``(B, T, D)`` of a layer."""
        if self.pooling == "mean":
            return states.mean(dim=1)
        return states[:, 0 if self.pooling == "first" else -1]


def wide_features(model: PreTrainedModel) -> Features:
    """Return the features that separate domains best in sums: first and last states, tokens.

    Measured on 20 Newsgroups (docs/lab-notes.md): the first states contain information that the
    last have lost, the tokens information that neither has; states in between add nothing.
    """
    width, last = int(model.config.hidden_size), int(model.config.num_hidden_layers)
    return Features(layers=(0, last), tokens=min(4 * width, MOST_PLACES))


def _checked(features: FeatureChoice, model: PreTrainedModel) -> Features | None:
    """Return the parts of h, checked; a model has one more layer of states than blocks.

    Raises:
        UsageError: If the model lacks one of the layers, or one is named twice.
    """
    if features is None or features == "wide":
        return features and wide_features(model)
    layers, last = features.layers, int(model.config.num_hidden_layers)
    if len(set(layers)) < len(layers) or not all(0 <= layer <= last for layer in layers):
        raise UsageError(
            f"layers of {type(model).__name__}",
            expected=f"different ones of 0 … {last}",
            found=", ".join(map(str, layers)),
        )
    return features


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


def linears_of(model: nn.Module) -> dict[str, tuple[int, int]]:
    """Return the linear modules that adapters may target, by name, each with (out, in).

    GPT-2's Conv1D modules store their weights transposed.
    """
    shapes = dict[str, tuple[int, int]]()
    for name, module in model.named_modules():
        if isinstance(module, nn.Linear):
            shapes[name] = (module.out_features, module.in_features)
        elif type(module).__name__ == "Conv1D" and isinstance(module.weight, Tensor):
            shapes[name] = (module.weight.shape[1], module.weight.shape[0])
    return shapes


def load_encoder(
    source: str,
    *,
    revision: str | None = None,
    pooling: Pooling = "last",
    max_tokens: int | None = None,
    features: FeatureChoice = None,
    head: bool = False,
) -> TextEncoder:
    """Load an encoder by its source.

    Args:
        source: ``hf:NAME_OR_DIR`` or ``gguf:FILE``. Only a hub name uses the network.
        revision: The hub revision (commit) to pin; ignored for folders.
        pooling: How token states become one vector.
        max_tokens: Token limit above which texts are cut; by default the model's longest input.
        features: The parts of h, see `TextEncoder`; by default the last states.
        head: Whether to load the language-model head as well.

    Raises:
        UsageError: If the source has neither form, or its head is not a single product.
        MissingError: If the files cannot be read.
    """
    kind, _, where = source.partition(":")
    if kind not in {"hf", "gguf"} or not where:
        raise UsageError(
            f"unknown backbone source {source!r}", expected="hf:NAME_OR_DIR or gguf:FILE"
        )
    path = Path(where).expanduser()
    options: dict[str, Any] = (
        {"local_files_only": True} if path.is_dir() else {"revision": revision}
    )
    if kind == "gguf":
        where, options = str(path.parent), {"gguf_file": path.name}
    tokenizer, model = _load(where, options, head=head)
    _unmap(model)
    trunk = cast("PreTrainedModel", model.base_model) if head else model
    return TextEncoder(
        model=trunk,
        tokenizer=tokenizer,
        pooling=pooling,
        max_tokens=max_tokens,
        features=features,
        head=head_of(model) if head else None,
    )


def _load(
    where: str, options: dict[str, Any], *, head: bool
) -> tuple[PreTrainedTokenizerBase, PreTrainedModel]:
    from transformers import AutoModel, AutoModelForCausalLM, AutoTokenizer

    kind = AutoModelForCausalLM if head else AutoModel
    once = header_read_once() if "gguf_file" in options else nullcontext()
    try:
        with _silence_warnings(), once:
            tokenizer = AutoTokenizer.from_pretrained(where, trust_remote_code=False, **options)
            model: PreTrainedModel = kind.from_pretrained(
                where,
                trust_remote_code=False,
                use_safetensors=None if "gguf_file" in options else True,  # others are pickles
                dtype=torch.float32,
                **options,
            )
    except Exception as e:  # transformers' parsers raise errors of many types
        raise MissingError(
            f"backbone {where!r} cannot be loaded",
            expected="a folder, file or hub name that transformers can read",
            found=next(iter(str(e).splitlines()), "") or type(e).__name__,
            hint="Give a folder by its path, such as ./my-model; a hub name needs a network.",
        ) from e
    return tokenizer, model


def head_of(model: PreTrainedModel) -> Tensor:
    """Return the head's weight ``(V, D)``, if the logits are its product with the last states.

    Raises:
        UsageError: If they are not; a bias, a scale or a cap would be lost.
    """
    made: Any = model
    layer = made.get_output_embeddings()
    with torch.inference_mode():
        probe = torch.arange(4)[None] % model.config.vocab_size
        logits = made(input_ids=probe).logits
        product = made.base_model(input_ids=probe).last_hidden_state @ layer.weight.T
    if not torch.allclose(logits, product, rtol=1e-4, atol=1e-4):
        raise UsageError(
            f"{type(model).__name__} does more to its states than one product",
            expected="logits that are the head's product with the last states",
            found=f"a difference of {float((logits - product).abs().max()):.3g}",
        )
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
