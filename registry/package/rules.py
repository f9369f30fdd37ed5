"""Rules beyond the schema: a manifest is consistent, and an expert fits its backbone.

A rule is a function that yields a `Violation` for each fault. It is listed in `check_valid` or
`check_backbone`, which check one manifest alone, or in `check_compatible`, which checks an expert's
against its backbone's.
"""

from __future__ import annotations

import re
import unicodedata
from collections import Counter
from collections.abc import Collection, Iterator, Mapping
from functools import lru_cache

from ..errors import ContractError, short
from .checked import Violation, listed, violations_of
from .forms import FINAL, FORMS, TASKS, VALUE, Shapes
from .manifest import (
    BUS_API,
    BUS_RANGE,
    BackboneManifest,
    ExpertManifest,
    Features,
    parts_of,
    wrong_field,
)
from .safetensors_check import TensorInfo, sha256_hex

MAX_ROWS = 256
"""Most rows in each part of a card."""

TEMPERATURE = 1000.0
"""T lies between one over this and this; authors' fits are limited to 0.05 and 20."""

CARRIED = (
    *(".codes", ".jinja", ".json", ".model", ".safetensors"),
    *(".spm", ".tiktoken", ".tokenizer", ".txt"),
)
"""File types that a carried base, or a plugin's form, may contain: no code, no pickles."""

TAP = re.compile(r"final|\d+|[A-Za-z_]\w*(\.\w+)+")
"""Where an expert may read and write: at the end, or at a block by number or name."""


# -- shared by rules and readers ------------------------------------------------------------------


def expected_tensors(manifest: ExpertManifest, *, classes: int | None) -> Shapes:
    """Return name → shape of every tensor the expert's weights must hold, exactly.

    Args:
        manifest: The expert's manifest.
        classes: C of the backbone; needed only for an expert that writes logits.

    Returns:
        The shapes; for a plugin's form those in the manifest, or empty if it lists none.

    Raises:
        ContractError: If the expert writes logits and ``classes`` is None.
    """
    d = manifest.ported.width if manifest.ported else manifest.reads.width
    writes, form = manifest.writes, FORMS.get(manifest.form)
    if form is None:
        return manifest.tensors or {}
    if writes.spec.logits and classes is None:
        raise ContractError(
            f"expert {manifest.id!r} writes logits", expected="the number of classes", found="none"
        )
    out = writes.spec.width(hidden=d, labels=len(manifest.labels), classes=classes or 0)
    return form.shapes(writes.space, width=d, rank=manifest.rank, out=out)


def classes_in(manifest: ExpertManifest, header: Mapping[str, TensorInfo]) -> int | None:
    """Return the C that the weights of an expert writing logits were made for, if any."""
    form = FORMS.get(manifest.form)
    if not manifest.writes.spec.logits or form is None:
        return None
    rows = header.get(form.written("logits"))
    return rows.shape[0] if rows is not None and rows.shape else None


def package_digest(raw: bytes, manifest: ExpertManifest | BackboneManifest) -> str:
    """Return the sha256 over roles and hashes, a line each: the digest of a package's content.

    Args:
        raw: The bytes of the manifest.
        manifest: The parsed manifest.
    """
    lines = {"manifest": sha256_hex(raw)} | {p.role: p.sha256 for p in parts_of(manifest)}
    return sha256_hex("".join(f"{role}\0{sha}\n" for role, sha in lines.items()).encode())


def bus_violation(bus_api: str, package: str) -> tuple[Violation, ...]:
    """Return a violation when this host's bus lies outside the range."""
    if bus_api == BUS_RANGE or _has_bus(bus_api):  # parsing another takes longer than all else
        return ()
    hint = f"Upgrade with 'pip install -U redhost', or install an older version of {package}."
    return (
        Violation(
            "bus_api", "bus_api", f"bus API {bus_api}", f"bus API {BUS_API} on this host", hint
        ),
    )


@lru_cache(maxsize=64)
def _has_bus(bus_api: str) -> bool:
    from packaging.specifiers import SpecifierSet

    return SpecifierSet(bus_api).contains(BUS_API)


# -- one manifest: its fields agree ---------------------------------------------------------------


def check_valid(manifest: ExpertManifest) -> tuple[Violation, ...]:
    """Check that the fields of a manifest are consistent, which the schema cannot express."""
    return (
        *_agree(
            (
                "id",
                manifest.id != "backbone",
                "another id: the router's own column has this name",
                repr(manifest.id),
            ),
            (
                "temperature",
                1 / TEMPERATURE <= manifest.temperature <= TEMPERATURE,
                f"between {1 / TEMPERATURE:g} and {TEMPERATURE:g}",
                f"{manifest.temperature:g}",
            ),
        ),
        *_bus_range(manifest.bus_api),
        *_form(manifest),
        *_ported(manifest),
        *_causal(manifest),
        *_labels(manifest.labels, least=0 if manifest.reads.causal else 1),
        *_thresholds(manifest),
        *_card(manifest),
        *_file_names("expert.json", manifest),
    )


def check_backbone(manifest: BackboneManifest) -> tuple[Violation, ...]:
    """Check that a backbone's manifest is consistent, and that this host has its bus version."""
    return (
        *(tuple(_bus_range(manifest.bus_api)) or bus_violation(manifest.bus_api, "the backbone")),
        *_base(manifest),
        *_task(manifest),
        *_features(manifest),
        *_labels(manifest.labels, least=1 if manifest.classifier else 0),
        *_file_names("backbone.json", manifest),
    )


def _bus_range(bus_api: str) -> Iterator[Violation]:
    if bus_api == BUS_RANGE:
        return
    from packaging.specifiers import InvalidSpecifier, SpecifierSet

    try:
        SpecifierSet(bus_api)
    except InvalidSpecifier:
        yield wrong_field("bus_api", "a version range such as '>=1,<2'", repr(bus_api))


def _form(manifest: ExpertManifest) -> Iterator[Violation]:
    form, name = FORMS.get(manifest.form), f"the form {manifest.form!r}"
    # A plugin's form is not in `FORMS`; its rank and tensors are its own.
    if form and form.ranked != (manifest.rank > 0):
        yield wrong_field(
            "rank", f"{'at least 1' if form.ranked else '0'} for {name}", str(manifest.rank)
        )
    for key, listing in (("tensors", "shapes"), ("files", "names")):
        if form and getattr(manifest, key):
            yield wrong_field(key, f"no such key for {name}", listing)
    yield from _carried("files", manifest.files or ())


def _ported(manifest: ExpertManifest) -> Iterator[Violation]:
    """Check a ported expert: a map of z supports labels of its own; a plugin's form reads it."""
    reads, writes = manifest.reads, manifest.writes
    if manifest.ported:
        yield from _agree(
            (
                "writes.space",
                writes.spec.own_labels,
                "'labels' where it is ported",
                repr(writes.space),
            ),
            ("reads.tap", reads.tap == FINAL, "'final' where it is ported", repr(reads.tap)),
        )


def _causal(manifest: ExpertManifest) -> Iterator[Violation]:
    """Check a causal expert: it acts above the blocks, so that their KV cache is unaffected."""
    reads, writes, vocabulary = manifest.reads, manifest.writes, bool(manifest.writes.vocabulary)
    tap = next((tap for tap in sorted({reads.tap, writes.tap}) if tap != FINAL), FINAL)
    if reads.causal:
        yield from _agree(
            ("writes.vocabulary", vocabulary, "the digest of the tokenizer it tells", "nothing"),
            (
                "writes.space",
                writes.spec.states,
                "'hidden' for a causal expert",
                repr(writes.space),
            ),
            ("reads.tap", tap == FINAL, "'final' for a causal expert", repr(tap)),
            (
                "labels",
                not manifest.labels,
                "none for a causal expert: its answers are tokens",
                "some",
            ),
        )
    else:
        yield from _agree(
            ("reads.causal", not vocabulary, "true, since it names a vocabulary", "nothing")
        )


def _thresholds(manifest: ExpertManifest) -> Iterator[Violation]:
    """Check thresholds: one per own label; no sums on the card, which need one label per row."""
    writes, kind = manifest.writes, manifest.card.kind
    rules, given = len(manifest.span_rules or ()), len(manifest.thresholds or ())
    labels, sums = len(manifest.labels), "rows, or none, where a row has any number of labels"
    yield from _agree(
        ("span_rules", rules in {0, given}, "one for each threshold", f"{rules} for {given}")
    )
    if given:
        yield from _agree(
            (
                "thresholds",
                writes.spec.own_labels,
                "labels of its own to have them",
                repr(writes.space),
            ),
            ("thresholds", given == labels, "one for each label", f"{given} for {labels}"),
            ("card.kind", kind != "statistics", sums, repr(kind)),
        )


def _labels(labels: tuple[str, ...], *, least: int) -> Iterator[Violation]:
    twice = sorted(label for label, count in Counter(labels).items() if count > 1)
    # Otherwise two labels could print alike.
    odd = [label for label in labels if not unicodedata.is_normalized("NFC", label)]
    yield from _agree(
        ("labels", len(labels) >= least, "at least one label", "none"),
        ("labels", not twice, "every label once", f"{listed(twice)} twice"),
        (
            "labels",
            not odd,
            "labels in Unicode's composed form (NFC)",
            ascii(next(iter(odd), "")),
        ),
        ("labels", "" not in labels, "labels that are not empty", "''"),  # `label_sets.DECLINED`
    )


def _card(manifest: ExpertManifest) -> Iterator[Violation]:
    card = manifest.card
    if card.kind == "none":
        if card.file or card.sha256 or card.fit or card.gate:
            yield wrong_field("card", "no file and no rows for the kind 'none'", "some")
        return
    if card.noise and card.kind != "statistics":
        yield wrong_field("card.noise", "a card of the kind 'statistics'", repr(card.kind))
    if card.file is None or card.sha256 is None:
        yield wrong_field("card", f"a file and its sha256 for the kind {card.kind!r}", "none")
    hint = "Set aside other rows of the domain; a small sample is enough for a router."
    for part, rows in (("fit", card.fit), ("gate", card.gate)):
        if rows > MAX_ROWS:
            yield Violation(
                "card_rows", f"card.{part}", f"at most {MAX_ROWS} rows", str(rows), hint
            )
    if card.fit == 0:
        yield Violation("card_rows", "card.fit", "at least one row", "0", hint)


_BASES: Mapping[str, tuple[str, ...]] = {
    "carried": ("files",),
    "dist": ("id", "revision", "files"),
    "file": ("id",),
    "hub": ("id", "revision"),
}
"""Kind of a base → the fields that it needs."""


def _base(manifest: BackboneManifest) -> Iterator[Violation]:
    base = manifest.base
    for field in (f for f in _BASES[base.kind] if not getattr(base, f)):
        yield wrong_field(f"base.{field}", f"one for the kind {base.kind!r}", "none")
    if base.kind == "dist" and {"", ".."}.intersection(base.id.split("/")):
        yield wrong_field("base.id", "DISTRIBUTION/FOLDER, below the site folder", repr(base.id))
    yield from _carried("base.files", base.files)
    if base.files and "files" not in _BASES[base.kind]:
        yield wrong_field("base.files", f"none for the kind {base.kind!r}", "some")


def _carried(field: str, names: Collection[str]) -> Iterator[Violation]:
    if strange := sorted(name for name in names if not name.endswith(CARRIED)):
        yield wrong_field(field, f"only {', '.join(CARRIED)}", listed(strange))


def _task(manifest: BackboneManifest) -> Iterator[Violation]:
    spec = TASKS.get(manifest.task)
    if spec is None:
        return  # a plugin's: core asks the plugin
    if spec.labels and manifest.labels not in {(), spec.labels}:
        yield wrong_field(
            "labels", f"only {VALUE!r} where numbers are answered", listed(manifest.labels)
        )
    if not spec.classifier and (manifest.labels or manifest.classifier):
        what = "text is generated" if spec.generates else f"experts answer {spec.noun}"
        expected = f"no labels and no classifier where {what}"
        yield wrong_field("labels", expected, "some" if manifest.labels else "a file")


def _features(manifest: BackboneManifest) -> Iterator[Violation]:
    if not (manifest.features or manifest.dense):
        return
    features, spec = manifest.features or Features(layers=(0,)), TASKS.get(manifest.task)
    layers, states = features.layers, manifest.width - features.tokens
    shown, parts = ", ".join(map(str, layers)), 1 if manifest.dense else len(layers)
    if len(set(layers)) < len(layers) or states < 1 or states % parts:
        yield wrong_field(
            "features.layers",
            f"different layers that fill {manifest.width} numbers with the hashed tokens",
            shown,
        )
    if spec is not None and spec.unit != "text":
        expected = (
            "nothing where text is generated: its head reads the last states"
            if spec.generates
            else f"nothing where experts answer {spec.noun}"
        )
        yield wrong_field("features" if manifest.features else "dense", expected, shown)


def _file_names(
    manifest_file: str, manifest: ExpertManifest | BackboneManifest
) -> Iterator[Violation]:
    """Refuse two roles for one file, also on systems that ignore case (macOS, Windows)."""
    names = Counter([manifest_file, *(part.file.casefold() for part in parts_of(manifest))])
    for name in (name for name, count in names.items() if count > 1):
        yield wrong_field("file", "a file of its own for each part", f"{name!r} twice")


def check_question(expert: ExpertManifest, question: str | None) -> Iterator[Violation]:
    """Check that an expert answers the question of the composition that it is to join.

    Args:
        expert: Its manifest.
        question: The composition's question; None for the default question.
    """
    if (answered := expert.question or None) != question:
        hint = (
            f"Join it there: --question {answered}." if answered else "Join it without --question."
        )
        expected, given = (
            repr(q) if q else "none, the default question" for q in (question, answered)
        )
        yield Violation("question_mismatch", "question", expected, given, hint)


FieldRule = tuple[str, bool, str, str]
"""A field, whether it is as expected, what is expected, and what it is."""


def _agree(*rules: FieldRule) -> Iterator[Violation]:
    """Yield a violation for each rule that does not hold."""
    yield from (wrong_field(name, *facts) for name, holds, *facts in rules if not holds)


# -- an expert and its backbone -------------------------------------------------------------------


@violations_of
def check_compatible(
    expert: ExpertManifest, backbone: BackboneManifest, *, classes: int | None = None
) -> tuple[Violation, ...]:
    """Check that an expert fits a backbone.

    Args:
        expert: The manifest of a valid expert.
        backbone: The backbone in use.
        classes: The result of `classes_in` for the weights, if they are available.

    Returns:
        All violations, the most important first; empty if there are none.
    """
    return (
        *bus_violation(expert.bus_api, "the expert"),
        *_built_on(expert, backbone),
        *_vocabulary(expert, backbone),
        *_several(expert, backbone),
        *_taps(expert),
        *_known_labels(expert, backbone, classes),
    )


def _built_on(expert: ExpertManifest, backbone: BackboneManifest) -> Iterator[Violation]:
    trained_on = expert.backbone
    if trained_on.fingerprint != backbone.fingerprint:
        yield Violation(
            "backbone_mismatch",
            "backbone.fingerprint",
            f"{short(trained_on.fingerprint)} ({trained_on.name})",
            f"{short(backbone.fingerprint)} ({backbone.id})",
            f"Install the build for {short(backbone.fingerprint)}, carry it over with "
            "'redhost port', or retrain it on this backbone.",
        )
    if expert.reads.width != backbone.width:
        yield Violation(
            "width_mismatch",
            "reads.width",
            f"{backbone.width}, the bus of backbone {backbone.id!r}",
            str(expert.reads.width),
            "Retrain it on this backbone.",
        )


def _vocabulary(expert: ExpertManifest, backbone: BackboneManifest) -> Iterator[Violation]:
    hint = "Retrain it on this backbone."
    spec = TASKS.get(backbone.task)
    generates = bool(expert.reads.causal) if spec is None else spec.generates
    if generates != bool(expert.reads.causal):
        expected = "a causal expert: the backbone generates" if generates else "no causal expert"
        reads = "causal" if expert.reads.causal else "one vector for a whole text"
        yield Violation("causal_mismatch", "reads.causal", expected, reads, hint)
    elif generates and expert.writes.vocabulary != backbone.tokenizer:
        expected, written = short(backbone.tokenizer), short(str(expert.writes.vocabulary))
        yield Violation("vocabulary_mismatch", "writes.vocabulary", expected, written, hint)


def _several(expert: ExpertManifest, backbone: BackboneManifest) -> Iterator[Violation]:
    """Check that own labels have thresholds exactly if a row may have any number of labels."""
    spec, has_some = TASKS.get(backbone.task), bool(expert.thresholds)
    if spec is None or not expert.writes.spec.own_labels or spec.several == has_some:
        return
    expected = f"{'no ' if has_some else ''}thresholds: the task is {backbone.task!r}"
    yield wrong_field("thresholds", expected, "some" if has_some else "none")


def _taps(expert: ExpertManifest) -> Iterator[Violation]:
    taps = {"reads.tap": expert.reads.tap, "writes.tap": expert.writes.tap}
    for field, tap in taps.items():
        if not TAP.fullmatch(tap):
            expected = "'final', a block's number, or its name such as 'layers.2'"
            yield Violation("tap_unknown", field, expected, repr(tap), "Correct the manifest.")
    if expert.writes.tap == "final":
        return
    if not expert.writes.spec.states or expert.reads.tap == "final":
        expected = "the space 'hidden' and a reads.tap of its own for a block to write to"
        given = f"space {expert.writes.space!r}, reads.tap {expert.reads.tap!r}"
        yield Violation("tap_order", "writes.tap", expected, given, "Correct the manifest.")


def _known_labels(
    expert: ExpertManifest, backbone: BackboneManifest, classes: int | None
) -> Iterator[Violation]:
    if expert.writes.spec.own_labels:
        return
    labels = set(backbone.labels)
    if unknown := [label for label in expert.labels if label not in labels]:
        expected = f"some of the {len(labels)} labels of backbone {backbone.id!r}"
        hint = "Write to the space 'labels' to bring labels of its own."
        yield Violation("labels_unknown", "labels", expected, listed(unknown), hint)
    if classes not in {None, len(backbone.labels)}:
        expected = f"{len(backbone.labels)} rows, the classes of backbone {backbone.id!r}"
        hint = "Retrain it on this backbone."
        yield Violation("weights_tensors", "logits", expected, str(classes), hint)
