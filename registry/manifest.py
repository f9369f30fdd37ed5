"""What a package says of itself: ``expert.json`` and ``backbone.json``, a closed schema.

An unknown key is a violation, never ignored: a manifest that a host half understands is a
manifest it does not understand. The structs below *are* the schema; `json_schema` prints them.
"""

from __future__ import annotations

import json
import re
from typing import Annotated, Any, Literal, TypeVar

import msgspec
from msgspec import UNSET, Meta, Struct, UnsetType

from .errors import suggest
from .forms import FORMS
from .violations import Violation

__all__ = [
    "BUS_API",
    "MAX_BYTES",
    "BackboneManifest",
    "BackboneRef",
    "Base",
    "CanaryRef",
    "CardRef",
    "ExpertManifest",
    "FileRef",
    "Norm",
    "Reads",
    "RowsRef",
    "Training",
    "Writes",
    "dumps",
    "json_schema",
    "parse_backbone",
    "parse_expert",
]

BUS_API = "1.0"
"""The version of the bus this host speaks (manifests name a range, e.g. ``>=1,<2``)."""

MAX_BYTES = 4 * 2**20
"""No manifest is larger: 100,000 labels of forty characters."""

MAX_PARTS = 200_000
"""Most brackets and colons in a manifest: what is decoded stays within 64 MiB of memory."""

NO_FINAL_NEWLINE = r"(?!\\n)"  # Python's `$` alone also matches before a final newline
Id = Annotated[str, Meta(pattern=r"^[a-z0-9][a-z0-9._-]{0,63}$(?!\n)")]
Sha256 = Annotated[str, Meta(pattern=r"^[0-9a-f]{64}$(?!\n)")]
FileName = Annotated[str, Meta(pattern=r"^[A-Za-z0-9_][A-Za-z0-9._-]{0,99}$(?!\n)")]
Count = Annotated[int, Meta(ge=0)]
Width = Annotated[int, Meta(ge=1, le=65536)]
Positive = Annotated[float, Meta(gt=0)]
Form = Annotated[str, Meta(pattern=rf"^({'|'.join(FORMS)}|[a-z0-9._-]+:[A-Za-z0-9._-]+)$(?!\n)")]
Activation = Literal["gelu", "identity", "relu", "silu", "tanh"]
Space = Literal["hidden", "labels", "logits"]
CardKind = Literal["none", "statistics", "texts", "vectors"]
Labels = Annotated[tuple[str, ...], Meta(max_length=100_000)]


class _Closed(Struct, frozen=True, forbid_unknown_fields=True):
    """Base of every part of a manifest: immutable, keyword-only, no unknown keys."""


class BackboneRef(_Closed, frozen=True, kw_only=True):
    """The backbone an expert was trained on, by content.

    Attributes:
        name: Its id, for messages.
        fingerprint: What it is: see `BackboneManifest`.
    """

    name: Id
    fingerprint: Sha256


class Reads(_Closed, frozen=True, kw_only=True):
    """Where the expert reads: the bus vector z at a tap.

    Attributes:
        tap: ``final``, the end of the trunk, or a block by number or name.
        width: D, the backbone's width.
        causal: True where it reads the state of every token rather than one vector for the whole
            text; otherwise the key is absent.
    """

    tap: str = "final"
    width: Width
    causal: bool | UnsetType = UNSET


class Writes(_Closed, frozen=True, kw_only=True):
    """Where the expert writes.

    Attributes:
        space: ``hidden`` states, the backbone's ``logits``, or ``labels`` of its own.
        tap: ``final``, the bus, or a block of the trunk by number or name.
        vocabulary: The digest of the tokenizer whose next tokens it was trained to tell, where it
            is causal; otherwise the key is absent.
    """

    space: Space
    tap: str = "final"
    vocabulary: Sha256 | UnsetType = UNSET


class FileRef(_Closed, frozen=True, kw_only=True):
    """A file beside the manifest.

    Attributes:
        file: Its name.
        sha256: Of its bytes.
    """

    file: FileName
    sha256: Sha256


class RowsRef(_Closed, frozen=True, kw_only=True):
    """A JSON-lines file beside the manifest.

    Attributes:
        file: Its name.
        sha256: Of its bytes.
        rows: How many lines it has.
    """

    file: FileName
    sha256: Sha256
    rows: Count


class CardRef(_Closed, frozen=True, kw_only=True):
    """The routing card: rows of the domain that the expert never trained on.

    Attributes:
        kind: ``texts`` with labels, bus ``vectors`` z with labels, ``statistics`` (per label the
            count, Σz, and Σzzᵀ over all), or ``none``.
        file: Its file; null where there is none.
        sha256: Of that file's bytes.
        fit: Rows that routers are trained on.
        gate: Rows that compositions are judged on.
    """

    kind: CardKind
    file: FileName | None = None
    sha256: Sha256 | None = None
    fit: Count = 0
    gate: Count = 0


class CanaryRef(_Closed, frozen=True, kw_only=True):
    """A few bus vectors with the Δ the author saw; recomputed on attach.

    Attributes:
        file: A safetensors file beside the manifest.
        sha256: Of its bytes.
        tolerance: By how much a recomputed Δ may differ.
    """

    file: FileName
    sha256: Sha256
    tolerance: Positive


class Training(_Closed, frozen=True, kw_only=True):
    """How the weights came to be; informative, never executed.

    Attributes:
        data: The digest of the training data.
        seed: Where randomness came from.
        epochs: Passes over the data.
        metrics: What was measured, by name.
        versions: Versions of the libraries used, by name.
        note: Anything else.
    """

    data: str
    seed: int
    epochs: Count
    metrics: dict[str, float] = {}
    versions: dict[str, str] = {}
    note: str = ""


class ExpertManifest(_Closed, frozen=True, kw_only=True):
    """``expert.json``: the static half of an expert's contract.

    Attributes:
        schema: The version of this schema.
        id: Its name on the bus; the entry point has the same.
        bus_api: The versions of the bus it works with, e.g. ``>=1,<2``.
        backbone: The backbone it was trained on.
        form: ``residual``, ``linear``, ``mlp``, or ``PLUGIN:NAME`` for a plugin's own.
        reads: Where it reads.
        writes: Where it writes.
        rank: R, the width of its inner layer; 0 for ``linear``.
        activation: σ between its two layers; ``linear`` has no use for it.
        norm_bound: An ε that ‖Δ‖ never exceeds, if its author promises one; held to it on the
            canary's rows.
        off_domain: Root mean square of ‖W_c Δ‖ on the backbone's background card, measured again
            on attach.
        temperature: T of softmax(Δ / T), where it writes ``labels``; fitted by the author.
        labels: What it may answer.
        domain: What inputs it is for, as a sentence for people.
        weights: Its tensors, a safetensors file.
        card: Its routing card.
        canary: What it must compute.
        training: How it was trained.
        license: An SPDX expression.
    """

    schema: Literal["redhost.expert/1"] = "redhost.expert/1"
    id: Id
    bus_api: str
    backbone: BackboneRef
    form: Form
    reads: Reads
    writes: Writes
    rank: Count
    activation: Activation
    norm_bound: Positive | None = None
    off_domain: Annotated[float, Meta(ge=0)] | None = None
    temperature: Positive = 1.0
    labels: Labels
    domain: str
    weights: FileRef
    card: CardRef
    canary: CanaryRef
    training: Training
    license: str


class Base(_Closed, frozen=True, kw_only=True):
    """Where the trunk's tensors come from.

    Attributes:
        kind: ``carried``, an ordinary Hugging Face folder in the package itself; ``hub``; or
            ``file``, a GGUF file on this machine.
        id: The hub's name or the file's path.
        revision: The commit on the hub.
        files: What is carried, file name → sha256.
    """

    kind: Literal["carried", "file", "hub"]
    id: str = ""
    revision: str = ""
    files: dict[FileName, Sha256] = {}


class Norm(_Closed, frozen=True, kw_only=True):
    """The bus norm: z = LayerNorm(h), no learned affine.

    Attributes:
        kind: Which norm.
        eps: What is added to the variance.
    """

    kind: Literal["layernorm"] = "layernorm"
    eps: Positive = 1e-5


class BackboneManifest(_Closed, frozen=True, kw_only=True):
    """``backbone.json``: what a backbone is, by content.

    Attributes:
        schema: The version of this schema.
        id: Its name; the entry point has the same.
        bus_api: The versions of the bus it works with, e.g. ``>=1,<2``.
        base: Where its trunk comes from.
        delta: The tensors that the base stage changed, a safetensors file.
        classifier: The shared classifier W_c, a safetensors file; null where experts bring labels
            of their own.
        task: What it and its experts answer: one of several labels, the next token, or a number.
        resolution: Where numbers are answered: the smallest difference that matters.
        labels: What the classifier answers, in the order of its rows.
        width: D, the width of h.
        pooling: How the states of a text become one h: their ``mean``, or the ``last``.
        max_tokens: Where longer texts are cut; null for the model's longest input.
        norm: The bus norm.
        tokenizer: The digest of the tokenizer.
        fingerprint: The digest over tensors, tokenizer, pooling and norm: what an expert is bound
            to.
        background: The background card: unlabelled texts that experts leave alone.
        evaluation: Held-out rows of text, label and domain that nobody trains on.
        training: How the base stage went, if there was one.
        license: An SPDX expression.
    """

    schema: Literal["redhost.backbone/1"] = "redhost.backbone/1"
    id: Id
    bus_api: str
    base: Base
    delta: FileRef | None = None
    classifier: FileRef | None = None
    task: Literal["classification", "generation", "regression"] = "classification"
    resolution: Positive = 1.0
    labels: Labels = ()
    width: Width
    pooling: Literal["last", "mean"]
    max_tokens: Annotated[int, Meta(ge=1)] | None = None
    norm: Norm
    tokenizer: Sha256
    fingerprint: Sha256
    background: RowsRef | None = None
    evaluation: RowsRef | None = None
    training: Training | None = None
    license: str


M = TypeVar("M", ExpertManifest, BackboneManifest)


def parse_expert(data: bytes) -> ExpertManifest | Violation:
    """Read ``expert.json``; return the manifest, or the first thing wrong with it."""
    return _parse(data, ExpertManifest)


def parse_backbone(data: bytes) -> BackboneManifest | Violation:
    """Read ``backbone.json``; return the manifest, or the first thing wrong with it."""
    return _parse(data, BackboneManifest)


def dumps(value: Struct) -> bytes:
    """Write a struct as the canonical JSON of this project: indented, with a final newline."""
    raw = msgspec.json.format(msgspec.json.encode(value), indent=2)
    return raw + b"\n"


def json_schema(kind: Literal["expert", "backbone"]) -> dict[str, Any]:
    """Return the JSON Schema (2020-12) of a manifest."""
    return msgspec.json.schema(ExpertManifest if kind == "expert" else BackboneManifest)


def _parse(data: bytes, kind: type[M]) -> M | Violation:
    """Decode twice: json finds keys that stand twice, msgspec is strict about the rest."""
    if len(data) > MAX_BYTES:
        found = f"{len(data):,} bytes"
        return _not_json(f"at most {MAX_BYTES:,} bytes", found, "Shorten the manifest.")
    if (parts := sum(data.count(sign) for sign in (b"{", b"[", b":"))) > MAX_PARTS:
        return _not_json(f"at most {MAX_PARTS:,} parts", f"{parts:,}", "Shorten the manifest.")
    try:
        json.loads(data, object_pairs_hook=_no_duplicates)
        return msgspec.json.decode(data, type=kind)
    except msgspec.ValidationError as e:
        return _violation(str(e), kind)
    except (ValueError, RecursionError) as e:  # UnicodeDecodeError and DecodeError are ValueErrors
        return _not_json("a JSON object", str(e), "Rebuild the package.")


def _not_json(expected: str, found: str, hint: str) -> Violation:
    return Violation("manifest_json", "manifest", expected, found, hint)


def _no_duplicates(pairs: list[tuple[str, Any]]) -> None:
    """Refuse a key that stands twice; what an object holds is msgspec's to read."""
    seen: set[str] = set()
    for key, _ in pairs:
        if key in seen:
            raise ValueError(f"the key {key!r} stands twice")
        seen.add(key)


def _violation(message: str, kind: type[Struct]) -> Violation:
    """Turn msgspec's sentence into field, expected and found."""
    what, _, path = message.partition(" - at `")
    field = re.sub(r"^key` in `", "", path).rstrip("`").lstrip("$.") or "manifest"
    if m := re.fullmatch(r"Object contains unknown field `(.*)`", what):
        hint = f"{suggest(m[1], kind.__struct_fields__)}Remove the key, or upgrade redhost."
        return Violation("manifest_unknown_key", _inside(field, m[1]), "no such key", m[1], hint)
    if m := re.fullmatch(r"Object missing required field `(.*)`", what):
        return _wrong(_inside(field, m[1]), "a value", "nothing")
    if m := re.fullmatch(r"Expected `?(.*?)`?, got `?(.*?)`?", what):
        return _wrong(field, m[1], m[2])
    if m := re.fullmatch(r"Expected (.*)", what):
        return _wrong(field, m[1].replace(NO_FINAL_NEWLINE, ""), "another value")
    return _wrong(field, "a value of the schema", what)


def _inside(field: str, key: str) -> str:
    return key if field == "manifest" else f"{field}.{key}"


def _wrong(field: str, expected: str, found: str) -> Violation:
    return Violation("manifest_field", field, expected, found, "Correct the manifest.")
