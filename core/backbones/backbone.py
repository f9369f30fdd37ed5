"""The backbone: a frozen trunk, its shared classifier, and the fingerprint of both."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Self

import msgspec
import safetensors.torch
import torch
from torch import Tensor, nn

from ...registry.errors import BackboneMismatchError, IntegrityError, UsageError, short
from ...registry.package.forms import DEFAULT_TASK
from ..bus.bus import BusConfig, Readout
from ..bus.layout import FeatureLayout
from ..bus.task import CLASSIFICATION, Task
from ..digests import tensor_digest
from ..tasks import make_task
from ..types import Row, as_list
from .bfloat16 import BF16, BFloat16Encoder
from .encoder import FeatureChoice, TextEncoder
from .identity import BOUNDLESS, tokenizer_digest
from .loading import load_encoder
from .pooling import Dense, Pooling, PoolingChoice
from .qwen3.package import qwen3_encoder

if TYPE_CHECKING:
    from ...registry.package.manifest import BackboneManifest


MARKS = 8
"""Upper bound on the special tokens that a tokenizer adds to a text."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Backbone(Readout):
    """A frozen text encoder, and the classifier shared by experts on the backbone's labels.

    Attributes:
        trunk: Texts → h ``(N, D)``.
        eps: ε of the bus norm.
        name: The manifest's id, or the source it was loaded from.
        layout: The segments of h̃ that are read in addition to h; None for h alone.
    """

    trunk: TextEncoder
    eps: float = 1e-5
    name: str = ""
    layout: FeatureLayout | None = None

    @classmethod
    def load(
        cls,
        source: str,
        *,
        revision: str | None = None,
        pooling: PoolingChoice = "last",
        max_tokens: int | None = None,
        features: FeatureChoice = None,
        task: Task = CLASSIFICATION,
    ) -> Self:
        """Load a bare backbone from ``hf:NAME_OR_DIR`` or ``gguf:FILE``.

        What a sentence-transformers folder says of pooling, length, lower case and dense layers is
        not followed here, but by `redhost new-backbone`, whose package has it.

        Args:
            source: A Hugging Face folder or hub name (e.g. ``hf:Qwen/Qwen3-0.6B``), or a file.
            revision: The commit to pin, for hub names.
            pooling: How the states of a text become one vector, see `PoolingMode`.
            max_tokens: Token limit above which texts are cut; by default that of the tokenizer, if
                it states one. The model's longest input is a limit in any case.
            features: The parts of h, see `TextEncoder`; by default the last states.
            task: What is predicted; for text generation, the language-model head is loaded too.

        Raises:
            UsageError: If the source has neither of the two forms.
            MissingError: If it cannot be loaded.
        """
        trunk = load_encoder(
            source,
            revision=revision,
            pooling=pooling,
            max_tokens=max_tokens,
            features=features,
            head=task.unit.generates,
        )
        # Sentence-transformers 6 writes a model's limit nowhere else.
        stated = int(getattr(trunk.tokenizer, "model_max_length", BOUNDLESS))
        if max_tokens is None and 0 < stated < min(BOUNDLESS, trunk.longest or BOUNDLESS):
            trunk.max_tokens = stated
        return cls(trunk=trunk, classifier=trunk.head, task=task, name=source)

    @classmethod
    def from_package(
        cls, manifest: BackboneManifest, files: Mapping[str, bytes], *, device: str = "cpu"
    ) -> Self:
        """Load a backbone from its manifest and the file bytes that were checked against it.

        Raises:
            BackboneMismatchError: If the loaded tensors do not match the fingerprint.
        """
        task = make_task(manifest.task, resolution=manifest.resolution)
        trunk = _package_trunk(manifest, files, head=task.unit.generates)
        if manifest.delta is not None:
            _apply_delta(trunk, files[manifest.delta.file])
        classifier = trunk.head
        if manifest.classifier is not None:
            classifier = safetensors.torch.load(files[manifest.classifier.file])["weight"]
        backbone = cls(
            trunk=trunk,
            classifier=classifier,
            labels=manifest.labels,
            eps=manifest.norm.eps,
            task=task,
            name=manifest.id,
        )
        if backbone.width != manifest.width:
            raise _mismatch(backbone.name, f"width {manifest.width}", f"width {backbone.width}")
        # On the CPU, before it moves: a device may hold the tensors in another precision.
        backbone.verify(manifest.fingerprint)
        return backbone if device == "cpu" else backbone.to(device)

    @property
    def width(self) -> int:
        """D, the width of h."""
        return self.trunk.width

    @property
    def total_width(self) -> int:
        """The width of h̃."""
        return self.width if self.layout is None else self.layout.total_width

    @property
    def device(self) -> str:
        """The device the trunk runs on."""
        return str(self.trunk.device)

    @property
    def kernels(self) -> str:
        """An identifier of the kernels that determine the bits of h."""
        return self.trunk.kernels

    def to(self, device: str) -> Self:
        """Move the trunk to a device; h is returned to the CPU, where the bus runs.

        Raises:
            UsageError: If there is no such device here, or it does not support the precision.
        """
        if device == BF16:
            return self.with_trunk(BFloat16Encoder(self.trunk))
        try:
            nn.Module.to(self.trunk.model, device)
        except (RuntimeError, AssertionError) as e:  # the latter, if torch has no CUDA
            raise UsageError(
                f"device {device!r}",
                expected=f"cpu, cuda, {BF16}, or one that a trusted plugin brings",
                found=str(e).splitlines()[0],
            ) from e
        return self

    def with_trunk(self, trunk: TextEncoder) -> Self:
        """Return the same backbone with another encoder that computes the same h (an engine)."""
        return dataclasses.replace(self, trunk=trunk)

    def encode(self, texts: str | Iterable[str]) -> Tensor:
        """Return h ``(N, D)``, or h̃ if experts act inside the trunk.

        The bits of a row depend on its own text only. If rows are words or tokens, each text has
        several rows, in the order of `unit_rows`.

        Raises:
            InputTypeError: If `texts` is neither one text nor an iterable of texts.
        """
        texts = as_list(texts, str, "text")
        unit = self.task.unit
        h = unit.encode(self.trunk, texts, self.layout, width=self.width, eps=self.eps)
        segments = () if self.layout is None else self.layout.segments
        # Segments that nothing computes are those of the unit, whose rows have them already.
        segment_rows = [c.compute(texts) for c in segments if c.compute is not None]
        return torch.cat([h, *segment_rows], dim=1) if segment_rows else h

    def cuts(self, texts: Sequence[str]) -> list[int | None]:
        """Return, for each text, the limit at which its tokens are cut; None if all are read."""
        longest = self.trunk.longest
        if longest is None:
            return [None] * len(texts)

        def long(text: str) -> bool:
            # An ASCII character is at most one token; a few special tokens are added.
            # Most texts are short: without this, every one would be tokenized twice.
            if text.isascii() and len(text) + MARKS <= longest:
                return False
            # One token past the limit is enough to know, however long the text is.
            return (
                len(self.trunk.token_ids(text, truncation=True, max_length=longest + 1)) > longest
            )

        with self.trunk.lock:
            return [longest if long(text) else None for text in texts]

    def token_counts(self, texts: Sequence[str]) -> list[int]:
        """Return the number of tokens read of each text, special tokens included."""
        with self.trunk.lock:
            return [len(self.trunk.token_ids(text, **self.trunk.cut)) for text in texts]

    def unit_rows(self, rows: Sequence[Row]) -> list[Row]:
        """Return labelled rows in the order of `encode`: the texts, their words, or tokens."""
        return self.task.unit.rows(self.trunk, rows)

    def require_tokens(self, texts: Iterable[str]) -> None:
        """Check that every text has at least one token, or one word if rows are words.

        Raises:
            UsageError: If a text has none.
        """
        with self.trunk.lock:
            for text in texts:
                self.task.unit.require(self.trunk, text)

    def bus_config(self) -> BusConfig:
        """Return the configuration from which parts for this backbone's bus are built."""
        width = self.trunk.width
        context = self.task.unit.layout(width).router_width - width
        return BusConfig(
            width=width, labels=self.labels, eps=self.eps, task=self.task, context=context
        )

    def tokenizer_digest(self) -> str:
        """Return the digest of the tokenizer's rules; for text generation, of its template too."""
        with self.trunk.lock:
            return tokenizer_digest(
                self.trunk.tokenizer,
                vocabulary=self.trunk.stated.vocabulary,
                generates=self.task.unit.generates,
            )

    def fingerprint(self) -> str:
        """Return the digest over all that determines what this backbone computes.

        That includes where texts are cut, if not at the model's longest input, what makes up h, if
        not only the last states, and the labels in order: an expert is trained through W_c.
        """
        parts: dict[str, object] = {
            "tensors": tensor_digest(self.trunk.model.state_dict()),
            "config": self.trunk.stated.config,
            "classifier": ""
            if self.classifier is None
            else tensor_digest({"weight": self.classifier}),
            "labels": list(self.labels),
            "tokenizer": self.tokenizer_digest(),
            "pooling": self.trunk.pooling.stated,
            "norm": {"kind": "layernorm", "eps": self.eps},
        }
        if self.trunk.max_tokens is not None:
            parts["max_tokens"] = self.trunk.max_tokens
        if self.trunk.features is not None:
            parts["features"] = msgspec.to_builtins(self.trunk.features)
        if self.task.name != DEFAULT_TASK:
            parts["task"] = self.task.name
        return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()

    def verify(self, fingerprint: str) -> None:
        """Check that this backbone has the given fingerprint.

        Raises:
            BackboneMismatchError: If it has a different one; the message names both.
        """
        computed = self.fingerprint()
        if computed != fingerprint:
            raise _mismatch(self.name, short(fingerprint), short(computed))


def _mismatch(name: str, expected: str, found: str) -> BackboneMismatchError:
    return BackboneMismatchError(
        f"backbone {name!r} is not what its manifest says",
        expected=expected,
        found=found,
        hint="Reinstall the backbone's package.",
    )


def _package_trunk(
    manifest: BackboneManifest, files: Mapping[str, bytes], *, head: bool
) -> TextEncoder:
    """Load the trunk named in a manifest: from files in the package, a hub, or a local file."""
    base = manifest.base
    features = manifest.features or None
    dense = (
        Dense(tensors=safetensors.torch.load(files[d.file]), activation=d.activation)
        for d in manifest.dense or ()
    )
    pooling = Pooling(mode=manifest.pooling, dense=tuple(dense))
    load = partial(
        load_encoder,
        pooling=pooling,
        max_tokens=manifest.max_tokens,
        features=features,
        head=head,
    )
    if base.kind == "hub":
        return load(f"hf:{base.id}", revision=base.revision)
    if base.kind == "file":
        return load(f"gguf:{base.id}")
    carried = {name: files[name] for name in base.files}
    if not head:  # generation needs a KV cache, which the plain encoder does not have
        plain = qwen3_encoder(
            carried, pooling=pooling, max_tokens=manifest.max_tokens, features=features
        )
        if plain is not None:
            return plain
    # transformers reads folders: write one that contains exactly the bytes that were hashed.
    with tempfile.TemporaryDirectory(prefix="redhost-") as folder:
        for name, data in carried.items():
            Path(folder, name).write_bytes(data)
        return load(f"hf:{folder}")


def _apply_delta(trunk: TextEncoder, data: bytes) -> None:
    """Replace tensors of the base by the adapted ones."""
    delta = safetensors.torch.load(data)
    state = trunk.model.state_dict()
    strangers = sorted(n for n, t in delta.items() if n not in state or t.shape != state[n].shape)
    if strangers:
        raise IntegrityError(
            "the backbone's delta does not fit its base",
            expected="tensors of the base, with its shapes",
            found=", ".join(strangers[:3]),
        )
    # Not strict: a delta has a few tensors, all of which were compared above.
    trunk.model.load_state_dict(delta, strict=False)
