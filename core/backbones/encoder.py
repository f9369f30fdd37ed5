"""A text encoder from Hugging Face files: tokens in, one pooled vector out.

Nothing here assumes a decoder: Qwen, Llama, BERT and MiniLM are all loaded through AutoModel. The
transformer blocks are found as the longest list of modules of one class.
"""

from __future__ import annotations

import inspect
import logging
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import replace
from functools import cached_property
from itertools import groupby, islice
from typing import TYPE_CHECKING, Any, Literal, cast

import torch
from torch import Tensor, nn

from ...registry.errors import UsageError
from ...registry.package.manifest import Features
from .identity import Stated
from .packs import Pack, attending, packs
from .pooling import MODES, Pooling, PoolingChoice
from .tiles import KERNELS, PASS_TOKENS, Tiles, tile_of
from .token_hashing import TokenHashing

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase


log = logging.getLogger("redhost")

FeatureChoice = Features | Literal["wide"] | None

Around = Callable[[Pack], AbstractContextManager[None]]
"""A pack → the context manager in which it is computed."""

BATCH = 32
"""Most texts in a pass."""

ENDLESS = 2**31 - 1
"""A token limit that no text reaches."""

SIZES = (
    "max_position_embeddings",
    "max_seq_len",
    "max_encoder_position_embeddings",
    "max_decoder_position_embeddings",
)
"""The names under which configurations state how many positions there are."""

MOST_PLACES = 2048
"""Default limit of the hashed tokens' width: cards of sums grow with the square of h's width."""


class TextEncoder:
    """The frozen encoder: texts → h ``(N, D)``.

    Args:
        model: The encoder, without a language-model head.
        tokenizer: Its tokenizer.
        pooling: How the states of a text become one vector.
        max_tokens: Token limit above which texts are cut; by default the model's longest input.
        features: The parts of h; by default the last states alone. ``wide`` stands for the result
            of `wide_features`.
        head: The language-model head ``(V, D)``, for text generation.
        stated: What the model's files state in addition to its tensors; by default what the model
            would save.

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
        pooling: PoolingChoice,
        max_tokens: int | None = None,
        features: FeatureChoice = None,
        head: Tensor | None = None,
        stated: Stated | None = None,
    ) -> None:
        self.head = head
        self.stated = stated or Stated.of(model, tokenizer)
        self.model: PreTrainedModel = model.eval().requires_grad_(False)  # type: ignore[no-untyped-call]
        self.pooling = pooling if isinstance(pooling, Pooling) else Pooling(mode=pooling)
        self.features = _checked(features, model, dense=bool(self.pooling.dense))
        states = _setting(model, "hidden_size")
        self.width = self.pooling.width(states) if self.pooling.dense else states
        self.hashing = None
        if self.features is not None:
            # The last layer is counted already: it alone passes through dense layers.
            self.width += states * (len(self.features.layers) - 1) + self.features.tokens
            if width := self.features.tokens:
                vocabulary = _setting(model, "vocab_size")
                self.hashing = TokenHashing.of(width=width, vocabulary=vocabulary)
        self.positions = longest_input(model)
        self.tokenizer = tokenizer
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
                # Off the CPU a pass that is not full ends in copies of its first row.
                parts.append(rows[: len(index)].float().cpu())
            out = torch.cat(parts)
            # Passes go by length; rows return to the order of the texts.
            if order != sorted(order):
                out = out[torch.tensor(order).argsort()]
            if self.hashing is not None:
                for n, cut in enumerate(ids):
                    # Counts are of the whole text, so also of what the token limit cut off.
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
        # Off the CPU the fixed shape of a pass keeps the bits, whatever is computed in it.
        most = 1 if alone and self.device.type == "cpu" else None
        for index, batch in self._batches(ids, most=most):
            yield index, compute(batch)

    def _whole(self, text: str, cut: list[int]) -> list[int]:
        """Return all token ids of a text, given those after the cut."""
        if self.longest is None or len(cut) < self.longest:
            return cut
        # Without a limit, transformers warns about texts longer than the model's longest input.
        return self.token_ids(text, truncation=True, max_length=ENDLESS)

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
        ids = self.token_ids(text, **self.cut)
        if not ids:
            raise UsageError("a text has no tokens", expected="at least one", found=repr(text))
        return ids

    def token_ids(self, text: str, **options: object) -> list[int]:
        """Return the token ids of a text.

        Args:
            text: The text.
            options: Options of the tokenizer's call.

        Raises:
            UsageError: If the tokenizer cannot read the text.
        """
        try:
            with self.lock:  # computing a fingerprint changes the tokenizer's settings
                return list(
                    cast("Any", self.tokenizer)(text, verbose=False, **options)["input_ids"]
                )
        except TypeError as e:  # tokenizers raises it for half of a surrogate pair
            raise UsageError("a text", expected="whole characters", found=ascii(text)[:40]) from e
        except BaseException as e:
            if type(e).__name__ != "PanicException":  # Rust's, which cannot be imported
                raise
            raise UsageError(
                "a text", expected="one that the tokenizer can read", found=ascii(text)[:40]
            ) from e

    @property
    def longest(self) -> int | None:
        """The token limit: the smaller of `max_tokens` and the model's longest input."""
        limits = [n for n in (self.positions, self.max_tokens) if n is not None]
        return min(limits, default=None)

    @property
    def cut(self) -> dict[str, Any]:
        """The options with which a tokenizer cuts texts at the token limit."""
        return {} if self.longest is None else {"truncation": True, "max_length": self.longest}

    def states(self, texts: Sequence[str]) -> list[Tensor]:
        """Return the states ``(T, D)`` of each text's tokens, bitwise independent of the batch."""
        ids = [self.tokens(t) for t in texts]
        by_text: dict[int, Tensor] = {}
        with self.lock, torch.inference_mode():
            if self.device.type == "cpu" and self.tiles.is_packed:
                for pack in packs(ids, tokens=PASS_TOKENS):
                    states = self._states_of(pack)[0]
                    each = (one for run in pack.runs for one in run.of(states))
                    # Cloned: a view would keep the states of the whole pack in memory.
                    by_text |= {n: one.clone() for n, one in zip(pack.index, each, strict=True)}
            else:
                for index, batch in self._batches(ids, most=None):
                    # Not strict: a filled pass has more rows than texts.
                    by_text |= zip(index, self.hidden_states(batch).float().cpu(), strict=False)
        return [by_text[n] for n in range(len(ids))]

    def hidden_states(self, ids: Tensor) -> Tensor:
        """Return the states ``(B, T, D)`` from which h is pooled, for token ids ``(B, T)``."""
        with self._pass(ids):
            output = self.model(
                input_ids=ids, attention_mask=torch.ones_like(ids), **self._wanted_states
            )
        return self.read(output)

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
        return self.read(output)

    @property
    def _wanted_states(self) -> dict[str, bool]:
        return {} if self.features is None else {"output_hidden_states": True}

    def read(self, output: Any) -> Tensor:
        """Return the states ``(B, T, …)`` from which h is pooled, given the model's output."""
        if self.features is None:
            return cast("Tensor", output.last_hidden_state)
        # The states of an encoder-decoder that end in its last ones are those of its decoder.
        states = getattr(output, "hidden_states", None) or output.decoder_hidden_states
        return torch.cat([states[layer] for layer in self.features.layers], dim=-1)

    def with_linears(self, linears: Sequence[nn.Linear]) -> AbstractContextManager[None]:
        """Treat these as linear layers of the encoder in the passes of a ``with`` block."""
        return self._in(lambda tiles: replace(tiles, linears=(*tiles.linears, *linears)))

    def in_float32(self) -> AbstractContextManager[None]:
        """Compute the passes of a ``with`` block in float32, as for the canaries of authors."""
        return self._in(lambda tiles: replace(tiles, lowered={}))

    @contextmanager
    def _in(self, change: Callable[[Tiles], Tiles]) -> Iterator[None]:
        with self.lock:
            tiles = self.tiles
            self.tiles = change(tiles)
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
            # A token that is generated is a pack of one tile.
            with (
                self.lock,
                self.tiles.applied(
                    tile_of(ids.shape[1]), sections=((1, 1),) if ids.numel() == 1 else ()
                ),
            ):
                yield
        else:
            yield

    def pool(self, hidden: Tensor) -> Tensor:
        """Return h ``(B, D)`` for hidden states ``(B, T, D)``; normalise each of several parts.

        Norms of the parts differ widely. Normalised, they are [LN(h_l)], which the bus norm does
        not change. The part of hashed tokens is zero here and is filled in by `encode`.
        """
        if self.features is None:
            return self.pooling(hidden)
        layers = zip(self.features.layers, hidden.chunk(len(self.features.layers), -1), strict=True)
        last, others = max(self.features.layers), MODES[self.pooling.mode]
        pooled = [(self.pooling if n == last else others)(h) for n, h in layers]
        parts = [nn.functional.layer_norm(h, h.shape[-1:]) for h in pooled]
        parts += [] if self.hashing is None else [hidden.new_zeros(len(hidden), self.hashing.width)]
        return torch.cat(parts, dim=-1)


def wide_features(model: PreTrainedModel) -> Features:
    """Return the features that separate domains best in sums: first and last states, tokens.

    Measured on 20 Newsgroups (docs/lab-notes.md): the first states contain information that the
    last have lost, the tokens information that neither has; states in between add nothing.
    """
    tokens = min(4 * _setting(model, "hidden_size"), MOST_PLACES)
    return Features(layers=(0, _depth(model)), tokens=tokens)


def longest_input(model: nn.Module) -> int | None:
    """Return the most tokens that a model's positions allow; None for any number.

    RoBERTa's kind counts positions from padding_idx + 1, so that 514 rows of positions are 512
    tokens (transformers #14243). XLNet states −1, and models with relative positions nothing.
    """
    config: Any = model.config
    stated = (getattr(config, name, None) for name in SIZES)
    size = min((n for n in stated if isinstance(n, int) and n > 0), default=None)
    return None if size is None else size - _offset(model, size)


def _offset(model: nn.Module, size: int) -> int:
    """Return how many rows of the table of positions come before the first token's."""
    for name, module in model.named_modules():
        padding, rows = (getattr(module, key, None) for key in ("padding_idx", "weight"))
        is_table = isinstance(rows, Tensor) and len(rows) == size
        if is_table and padding is not None and "position" in name.rpartition(".")[2]:
            return int(padding) + 1
    return 0


def _depth(model: PreTrainedModel) -> int:
    """Return the number of blocks whose states are read: of an encoder-decoder, its decoder's."""
    blocks = getattr(model.config, "decoder_layers", None) if hasattr(model, "decoder") else None
    return _setting(model, "num_hidden_layers") if blocks is None else int(blocks)


def _setting(model: PreTrainedModel, name: str) -> int:
    """Return a size that a model's configuration states.

    Raises:
        UsageError: If it does not: the model reads more than a text, or something else.
    """
    size = getattr(model.config, name, None)
    if not isinstance(size, int):
        expected = f"{name} in its config.json"
        raise UsageError(
            f"{type(model).__name__} is not read as an encoder of texts",
            expected=expected,
            found="none",
        )
    return size


def _checked(features: FeatureChoice, model: PreTrainedModel, *, dense: bool) -> Features | None:
    """Return the parts of h, checked; a model has one more layer of states than blocks.

    Raises:
        UsageError: If the model lacks one of the layers, one is named twice, or the last one is
            missing, which dense layers read.
    """
    if features is None or features == "wide":
        return features and wide_features(model)
    if not isinstance(features, Features):
        expected = "'wide', None for the last states, or Features(layers=…)"
        raise UsageError("parts of h", expected=expected, found=repr(features)[:40])
    layers, last = features.layers, _depth(model)
    absent = dense and last not in layers
    if absent or len(set(layers)) < len(layers) or not all(0 <= n <= last for n in layers):
        raise UsageError(
            f"layers of {type(model).__name__}",
            expected=f"different ones of 0 … {last}" + f", with {last}, for dense layers" * absent,
            found=", ".join(map(str, layers)),
        )
    return features


def blocks_of(model: nn.Module) -> tuple[str, nn.ModuleList]:
    """Return the name and the list of the model's transformer blocks.

    Raises:
        UsageError: If the model has no list of two or more modules of one class.
    """
    lists = [
        (name, m)
        for name, m in model.named_modules()
        if isinstance(m, nn.ModuleList) and len({type(b) for b in m}) == 1
    ]
    if not lists:
        raise UsageError(f"{type(model).__name__} has no list of blocks")
    return max(lists, key=lambda pair: len(pair[1]))
