"""The manifests ``expert.json`` and ``backbone.json``: a closed schema of one version.

An unknown key is a violation and is never ignored, because the host might miss its meaning. The
structs below *are* the schema; `redhost schema` prints them. A manifest of another version is
refused because of that version, before any of its keys is reported as unknown.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from importlib import metadata
from typing import Annotated, Any, Literal, NamedTuple, TypeVar

import msgspec
from msgspec import UNSET, Meta, Struct, UnsetType

from ..errors import suggest
from .checked import Checked, Refused, Violation, checked, refuse, unique_keys
from .forms import DEFAULT_TASK, FINAL, FORMS, INSIDE, PLUGIN_FORMS, SPACES, TASKS, SpaceSpec

BUS_API, BUS_RANGE = "1.0", ">=1,<2"
"""The version of this host's bus, and the range that manifests written here name, which has it."""

MAX_BYTES = 4 * 2**20
"""Largest manifest in bytes: 100,000 labels of forty characters."""

MAX_PARTS = 200_000
"""Most brackets and colons in a manifest, so that decoding takes at most 64 MiB of memory."""

NO_FINAL_NEWLINE = r"(?!\\n)"  # Python's `$` alone also matches before a final newline
Id = Annotated[str, Meta(pattern=r"^[a-z0-9][a-z0-9._-]{0,63}$(?!\n)")]
Sha256 = Annotated[str, Meta(pattern=r"^[0-9a-f]{64}$(?!\n)")]
_HOST_VERSION = r"\d{1,9}(\.\d{1,9}){0,3}"
HostVersion = Annotated[str, Meta(pattern=rf"^{_HOST_VERSION}$(?!\n)")]
FileName = Annotated[str, Meta(pattern=r"^[A-Za-z0-9_][A-Za-z0-9._-]{0,99}$(?!\n)")]
Count = Annotated[int, Meta(ge=0, lt=2**48)]
Word = Annotated[str, Meta(max_length=1000)]
Text = Annotated[str, Meta(max_length=100_000)]
VersionRange = Annotated[str, Meta(max_length=100)]
Width = Annotated[int, Meta(ge=1, le=65536)]
Positive = Annotated[float, Meta(gt=0)]
FormName = Annotated[
    str,
    Meta(pattern=rf"^({'|'.join((*FORMS, *PLUGIN_FORMS))}|[a-z0-9._-]+:[A-Za-z0-9._-]+)$(?!\n)"),
]
Activation = Literal["gelu", "identity", "relu", "silu", "tanh"]
PoolingMode = Literal["first", "last", "max", "mean", "mean-sqrt", "weighted-mean"]
Space = Literal["hidden", "labels", "logits"]
CardKind = Literal["none", "statistics", "texts", "vectors"]
TensorName = Annotated[str, Meta(pattern=r"^[A-Za-z0-9_.]{1,200}$(?!\n)")]
Shape = Annotated[tuple[Annotated[int, Meta(ge=0, lt=2**48)], ...], Meta(max_length=8)]
Share = Annotated[float, Meta(gt=0, lt=1)]
Labels = Annotated[tuple[Word, ...], Meta(max_length=100_000)]


class _Closed(Struct, frozen=True, forbid_unknown_fields=True):
    """Base of every part of a manifest: immutable, keyword-only, no unknown keys."""


class BackboneRef(_Closed, frozen=True, kw_only=True):
    """The backbone an expert was trained on, by content.

    Attributes:
        name: Its id, for messages.
        fingerprint: Its identity by content: see `BackboneManifest`.
    """

    name: Id
    fingerprint: Sha256


class Reads(_Closed, frozen=True, kw_only=True):
    """The expert's input: the bus vector z at a tap.

    Attributes:
        tap: ``final``, the end of the trunk, or a block by number or name.
        width: D, the backbone's width.
        causal: True if it reads the state of every token rather than one vector for the whole
            text; otherwise the key is absent.
    """

    tap: Word = "final"
    width: Width
    causal: bool | UnsetType = UNSET


class Writes(_Closed, frozen=True, kw_only=True):
    """The expert's output.

    Attributes:
        space: ``hidden`` states, the backbone's ``logits``, or ``labels`` of its own.
        tap: ``final``, the bus, or a block of the trunk by number or name.
        vocabulary: The digest of the tokenizer whose next tokens it was trained to predict, if it
            is causal; otherwise the key is absent.
    """

    space: Space
    tap: Word = "final"
    vocabulary: Sha256 | UnsetType = UNSET

    @property
    def spec(self) -> SpaceSpec:
        """What it means to write to its space."""
        return SPACES[self.space]


class FileRef(_Closed, frozen=True, kw_only=True):
    """A file next to the manifest.

    Attributes:
        file: Its name.
        sha256: The sha256 of its bytes.
    """

    file: FileName
    sha256: Sha256


class RowsRef(FileRef, frozen=True, kw_only=True):
    """A JSON-lines file next to the manifest.

    Attributes:
        file: Its name.
        sha256: The sha256 of its bytes.
        rows: Its number of lines.
    """

    rows: Count


class Noise(_Closed, frozen=True, kw_only=True):
    """Noise in a card's sums: they are (ε, δ)-differentially private, as declared by the author.

    Attributes:
        epsilon: ε.
        delta: δ.
        clip: The length to which vectors were clipped before they were added up.
    """

    epsilon: Positive
    delta: Annotated[float, Meta(gt=0, lt=1)]
    clip: Positive


class SpanRule(_Closed, frozen=True, kw_only=True):
    """How spans of a label are found from the probabilities of words (`redhost-spans`).

    Attributes:
        threshold: b: the probability from which a word is evidence for a span.
        cost: c: the cost of each span, in nats, which joins words to their neighbours.
    """

    threshold: Share
    cost: Annotated[float, Meta(ge=0, le=1000)] = 0.0


class CardRef(_Closed, frozen=True, kw_only=True):
    """The routing card: rows of the domain that the expert never trained on, or answers as if not.

    Attributes:
        kind: ``texts`` with labels, bus ``vectors`` z with labels, ``statistics`` (per label the
            count, Σz, and Σzzᵀ over all), or ``none``.
        file: Its file; null if there is none.
        sha256: The sha256 of that file's bytes.
        fit: The number of rows that routers are trained on.
        gate: The number of rows that compositions are judged on.
        noise: For ``statistics`` only: the noise in its sums, if they are not exact.
    """

    kind: CardKind
    file: FileName | None = None
    sha256: Sha256 | None = None
    fit: Count = 0
    gate: Count = 0
    noise: Noise | UnsetType = UNSET


class CanaryRef(FileRef, frozen=True, kw_only=True):
    """A few bus vectors with the Δ that the author computed; recomputed on attach.

    Attributes:
        file: A safetensors file next to the manifest.
        sha256: The sha256 of its bytes.
        tolerance: The largest allowed difference of a recomputed Δ.
    """

    tolerance: Positive


class Ported(FileRef, frozen=True, kw_only=True):
    """How a ported expert reads its new backbone: z of the old backbone is estimated as A z + c.

    Attributes:
        file: The ``expert.json`` that its author wrote, byte for byte; `weights` are its weights.
        sha256: The sha256 of that file's bytes.
        digest: The digest of the package that was ported.
        width: D of the backbone it was trained on.
        map: A (D of the old backbone, D) and c (D of the old backbone), a safetensors file.
    """

    digest: Sha256
    width: Width
    map: FileRef


class Training(_Closed, frozen=True, kw_only=True):
    """How the weights were trained; informative, never executed.

    Attributes:
        data: The digest of the training data.
        seed: The random seed.
        epochs: Passes over the data.
        metrics: Measured values, by name.
        versions: Versions of the libraries used, by name.
        note: Any other information.
    """

    data: Word
    seed: Annotated[int, Meta(ge=-(2**63), le=2**63 - 1)]
    epochs: Count
    metrics: dict[str, float] = {}
    versions: dict[str, str] = {}
    note: Text = ""


class ExpertManifest(_Closed, frozen=True, kw_only=True):
    """``expert.json``: the static half of an expert's contract.

    Attributes:
        schema: The version of this schema.
        id: Its name on the bus; the entry point has the same.
        bus_api: The versions of the bus it works with, e.g. ``>=1,<2``.
        backbone: The backbone it was trained on.
        form: ``residual``, ``linear``, ``mlp``, or a plugin's own: ``lora`` for an adapter inside
            the blocks, or ``PLUGIN:NAME``.
        reads: Its input.
        writes: Its output.
        rank: R, the width of its inner layer; 0 for ``linear``, the form's own for a plugin's.
        activation: σ between its two layers; unused for ``linear``.
        norm_bound: An ε that ‖Δ‖ never exceeds, if its author promises one; checked on the canary's
            rows.
        off_domain: Root mean square of ‖W_c Δ‖ on the backbone's background card, measured again on
            attach.
        temperature: T of softmax(Δ / T), or of sigmoid(Δ / T), if it writes ``labels``; fitted by
            the author.
        labels: The labels it may answer.
        domain: The inputs it is for, as a sentence for people.
        weights: Its tensors, a safetensors file.
        card: Its routing card.
        canary: Rows and results that it must reproduce.
        training: How it was trained.
        license: An SPDX expression.
        tensors: The shape of every tensor of a plugin's form, all of floats, so that any host can
            check them without the plugin; absent for built-in forms, whose shapes are known.
        files: The further files of a plugin's form, file name → sha256; tensors in them are floats.
        thresholds: For an expert that answers any number of labels of its own: the probability from
            which it answers with each label, in the order of `labels`; fitted by the author.
        span_rules: For an expert that answers spans: how those of each label are found, in the
            order of `labels`; fitted by the author. If absent, the words of a span are those that
            reach the thresholds.
        ported: Its origin, if it was ported from another backbone.
        question: The name of the question it answers: it competes only with the experts of this
            question. If absent, the default question.
        min_host: The oldest redhost that it works with, if that matters.
    """

    schema: Literal["redhost.expert/1"] = "redhost.expert/1"
    id: Id
    bus_api: VersionRange
    backbone: BackboneRef
    form: FormName
    reads: Reads
    writes: Writes
    rank: Count
    activation: Activation
    norm_bound: Positive | None = None
    off_domain: Annotated[float, Meta(ge=0)] | None = None
    temperature: Positive = 1.0
    labels: Labels
    domain: Text
    weights: FileRef
    card: CardRef
    canary: CanaryRef
    training: Training
    license: Word
    tensors: Annotated[dict[TensorName, Shape], Meta(min_length=1)] | UnsetType = UNSET
    files: Annotated[dict[FileName, Sha256], Meta(min_length=1, max_length=64)] | UnsetType = UNSET
    thresholds: Annotated[tuple[Share, ...], Meta(min_length=1)] | UnsetType = UNSET
    span_rules: Annotated[tuple[SpanRule, ...], Meta(min_length=1)] | UnsetType = UNSET
    ported: Ported | UnsetType = UNSET
    question: Id | UnsetType = UNSET
    min_host: HostVersion | UnsetType = UNSET

    @property
    def makers(self) -> tuple[str, ...]:
        """The names of what makes it, in order: its form, and `INSIDE` if it acts at a block."""
        at_end = self.reads.tap == self.writes.tap == FINAL
        return (self.form,) if at_end else (self.form, INSIDE)


class Base(_Closed, frozen=True, kw_only=True):
    """The source of the trunk's tensors.

    Attributes:
        kind: ``carried``, an ordinary Hugging Face folder in the package itself; ``dist``, such a
            folder in another installed distribution; ``hub``; or ``file``, a GGUF file on this
            machine.
        id: The hub's name, the file's path, or ``DISTRIBUTION/FOLDER``.
        revision: The commit on the hub, or the distribution's version, as ``==0.1.0``.
        files: The files of a folder, file name → sha256.
    """

    kind: Literal["carried", "dist", "file", "hub"]
    id: Word = ""
    revision: Word = ""
    files: dict[FileName, Sha256] = {}


class Norm(_Closed, frozen=True, kw_only=True):
    """The bus norm: z = LayerNorm(h), no learned affine.

    Attributes:
        kind: The kind of norm.
        eps: The number that is added to the variance.
    """

    kind: Literal["layernorm"] = "layernorm"
    eps: Positive = 1e-5


class Features(_Closed, frozen=True, kw_only=True):
    """The parts of h, if it is more than the last states: concatenated, each normalised.

    Attributes:
        layers: The layers whose states are pooled: 0 for those below the first block, l for those
            after block l.
        tokens: The number of entries that token counts are hashed to; 0 for none.
    """

    layers: Annotated[tuple[Annotated[int, Meta(ge=0, le=9999)], ...], Meta(min_length=1)]
    tokens: Annotated[int, Meta(ge=0, le=65536)] = 0


class DenseRef(FileRef, frozen=True, kw_only=True):
    """A dense layer after pooling, σ(W h + b): a safetensors file with ``weight`` and ``bias``.

    Attributes:
        activation: The name of σ.
    """

    activation: Activation


class BackboneManifest(_Closed, frozen=True, kw_only=True):
    """``backbone.json``: the identity of a backbone, by content.

    Attributes:
        schema: The version of this schema.
        id: Its name; the entry point has the same.
        bus_api: The versions of the bus it works with, e.g. ``>=1,<2``.
        base: The source of its trunk.
        delta: The tensors that the base stage changed, a safetensors file.
        classifier: The shared classifier W_c, a safetensors file; null if experts have labels of
            their own.
        task: What it and its experts answer: one of several labels, any number of them, spans, the
            next token, or a number.
        resolution: For regression: the smallest difference that matters.
        labels: The labels of the classifier, in the order of its rows.
        width: D, the width of h.
        pooling: How the states of a text become one h: the ``first``, the ``last``, their
            ``mean``, its product with the root of their number (``mean-sqrt``), the mean in which
            state t counts t times (``weighted-mean``), or the largest number of each dimension
            (``max``).
        dense: The dense layers that follow the pooling of the last states, if any.
        features: The parts of h; absent if it is the last states alone.
        max_tokens: The length at which texts are truncated; null for the model's longest input.
        norm: The bus norm.
        tokenizer: The digest of the tokenizer's rules.
        fingerprint: The digest over tensors, configuration, tokenizer, pooling with its dense
            layers, and norm, which experts are bound to.
        background: The background card: unlabelled texts that experts leave alone.
        evaluation: Held-out rows of text, label and domain that are never trained on.
        training: How the base stage was trained, if there was one.
        license: An SPDX expression.
        min_host: The oldest redhost that it works with, if that matters.
    """

    schema: Literal["redhost.backbone/1"] = "redhost.backbone/1"
    id: Id
    bus_api: VersionRange
    base: Base
    delta: FileRef | None = None
    classifier: FileRef | None = None
    task: Annotated[str, Meta(min_length=1, examples=[*TASKS])] = DEFAULT_TASK
    resolution: Positive = 1.0
    labels: Labels = ()
    width: Width
    pooling: PoolingMode
    dense: Annotated[tuple[DenseRef, ...], Meta(min_length=1, max_length=8)] | UnsetType = UNSET
    features: Features | UnsetType = UNSET
    max_tokens: Annotated[int, Meta(ge=1, lt=2**48)] | None = None
    norm: Norm
    tokenizer: Sha256
    fingerprint: Sha256
    background: RowsRef | None = None
    evaluation: RowsRef | None = None
    training: Training | None = None
    license: Word
    min_host: HostVersion | UnsetType = UNSET


M = TypeVar("M", ExpertManifest, BackboneManifest)


class Part(NamedTuple):
    """A file that a manifest names.

    Attributes:
        role: Its role in the package, each role once: ``weights``, ``base/config.json``.
        file: Its plain name.
        sha256: The sha256 of its bytes.
    """

    role: str
    file: str
    sha256: str


def parts_of(manifest: ExpertManifest | BackboneManifest) -> tuple[Part, ...]:
    """Return every file next to a manifest, in the order of the package's digest."""
    fields = (
        *("weights", "ported", "card", "canary"),
        "delta",
        "classifier",
        "background",
        "evaluation",
    )
    named = ((role, getattr(manifest, role, None)) for role in fields)
    parts = [Part(role, ref.file, ref.sha256) for role, ref in named if ref and ref.file]
    if isinstance(manifest, ExpertManifest) and manifest.ported:
        fitted = manifest.ported.map
        parts.append(Part("ported/map", fitted.file, fitted.sha256))
    if isinstance(manifest, BackboneManifest):
        layers = enumerate(manifest.dense or ())
        parts += [Part(f"dense/{n}", ref.file, ref.sha256) for n, ref in layers]
        role, listed = "base", manifest.base.files
    else:
        role, listed = "files", manifest.files or {}
    return (*parts, *(Part(f"{role}/{name}", name, listed[name]) for name in sorted(listed)))


def parse_expert(data: bytes) -> Checked[ExpertManifest]:
    """Read ``expert.json``; return the manifest, or its first violation."""
    return _parse(data, ExpertManifest)


def parse_backbone(data: bytes) -> Checked[BackboneManifest]:
    """Read ``backbone.json``; return the manifest, or its first violation."""
    return _parse(data, BackboneManifest)


def dumps(value: Struct) -> bytes:
    """Write a struct as the canonical JSON of this project: indented, with a final newline."""
    return msgspec.json.format(msgspec.json.encode(value), indent=2) + b"\n"


@checked
def _parse(data: bytes, kind: type[M]) -> M:
    """Decode twice: json finds duplicate keys, msgspec is strict about the rest."""
    if len(data) > MAX_BYTES:
        most = f"at most {MAX_BYTES:,} bytes"
        raise _not_json(most, f"{len(data):,} bytes", "Shorten the manifest.")
    if (parts := sum(data.count(sign) for sign in (b"{", b"[", b":"))) > MAX_PARTS:
        raise _not_json(f"at most {MAX_PARTS:,} parts", f"{parts:,}", "Shorten the manifest.")
    try:
        json.loads(data, object_pairs_hook=unique_keys)
        refuse(_for_another_host(msgspec.json.decode(data, type=_Needs), kind))
        return msgspec.json.decode(data, type=kind)
    except msgspec.ValidationError as e:
        raise Refused(_violation(str(e), kind)) from e
    except (ValueError, RecursionError) as e:  # UnicodeDecodeError and DecodeError are ValueErrors
        raise _not_json("a JSON object", str(e), "Rebuild the package.") from e


def _not_json(expected: str, found: str, hint: str) -> Refused:
    return Refused(Violation("manifest_json", "manifest", expected, found, hint))


class _Needs(Struct):
    """What a manifest of any version requires of a host."""

    schema: Any = None
    min_host: Any = None


# Two threads that decode a struct for the first time at once end the process (msgspec 0.22 fills in
# what it knows of a type after others can see it), so that is done as this module is imported.
for _struct in (ExpertManifest, BackboneManifest, _Needs):
    msgspec.json.Decoder(_struct)


def _for_another_host(needs: _Needs, kind: type[Struct]) -> Iterator[Violation]:
    """Report a manifest for another host, before any of its keys is reported as unknown."""
    hint = "Upgrade with 'pip install -U redhost', or install an older version of the package."
    schema, expected = str(needs.schema), str(kind.__struct_defaults__[0])
    if needs.schema is not None and schema != expected:
        later = re.fullmatch(rf"{re.escape(expected[:-1])}([2-9]|[1-9]\d{{1,8}})", schema)
        yield (
            Violation("manifest_newer", "schema", expected, schema, hint)
            if later
            else wrong_field("schema", expected, schema)
        )
    min_host = str(needs.min_host)
    if re.fullmatch(_HOST_VERSION, min_host):
        from packaging.version import Version

        here = metadata.version("redhost")
        if Version(here) < Version(min_host):
            yield Violation(
                "manifest_newer", "min_host", f"redhost {min_host}", f"redhost {here}", hint
            )


def _violation(message: str, kind: type[Struct]) -> Violation:
    """Turn msgspec's message into field, expected and found."""
    what, _, path = message.partition(" - at `")
    field = re.sub(r"^key` in `", "", path).rstrip("`").lstrip("$.") or "manifest"
    if m := re.fullmatch(r"Object contains unknown field `(.*)`", what):
        hint = f"{suggest(m[1], kind.__struct_fields__)}Remove the key, or upgrade redhost."
        return Violation("manifest_unknown_key", _inside(field, m[1]), "no such key", m[1], hint)
    if m := re.fullmatch(r"Object missing required field `(.*)`", what):
        return wrong_field(_inside(field, m[1]), "a value", "nothing")
    if m := re.fullmatch(r"Expected `?(.*?)`?, got `?(.*?)`?", what):
        return wrong_field(field, m[1], m[2])
    if m := re.fullmatch(r"Expected (.*)", what):
        return wrong_field(field, m[1].replace(NO_FINAL_NEWLINE, ""), "another value")
    return wrong_field(field, "a value of the schema", what)


def _inside(field: str, key: str) -> str:
    return key if field == "manifest" else f"{field}.{key}"


def wrong_field(field: str, expected: str, found: str) -> Violation:
    """Return the violation of a field that is not as expected."""
    return Violation("manifest_field", field, expected, found, "Correct the manifest.")
