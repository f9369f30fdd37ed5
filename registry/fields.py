"""What a manifest's schema cannot say: that its fields agree with each other.

A check is a function that yields a `Violation` for whatever is wrong, and its line in `check_valid`
or, for a backbone, in `check_backbone`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from .contract import VALUE, bus_violation
from .forms import FORMS
from .manifest import BackboneManifest, ExpertManifest
from .violations import Violation, listed

__all__ = ["CARRIED", "MAX_ROWS", "check_backbone", "check_valid"]

MAX_ROWS = 256
"""At most this many rows of a card in each of its parts."""

CARRIED = (".jinja", ".json", ".model", ".safetensors", ".tiktoken", ".txt")
"""What a carried base may hold: tensors and vocabularies; neither code nor pickles."""


def check_valid(manifest: ExpertManifest) -> tuple[Violation, ...]:
    """Check what the schema cannot say: that the fields of a manifest agree with each other."""
    return (
        *_reserved(manifest.id),
        *_bus_range(manifest.bus_api),
        *_rank(manifest),
        *_causal(manifest),
        *_labels(manifest.labels, least=0 if manifest.reads.causal else 1),
        *_card(manifest),
        *_file_names(_expert_files(manifest)),
    )


def check_backbone(manifest: BackboneManifest) -> tuple[Violation, ...]:
    """Check that the fields of a backbone's manifest agree, and that this host speaks its bus."""
    return (
        *(
            tuple(_bus_range(manifest.bus_api))
            or bus_violation(manifest.bus_api, who="the backbone")
        ),
        *_base(manifest),
        *_task(manifest),
        *_labels(manifest.labels, least=1 if manifest.classifier else 0),
        *_file_names(_backbone_files(manifest)),
    )


def _bus_range(bus_api: str) -> Iterator[Violation]:
    from packaging.specifiers import InvalidSpecifier, SpecifierSet

    try:
        SpecifierSet(bus_api)
    except InvalidSpecifier:
        yield _field("bus_api", "a version range such as '>=1,<2'", repr(bus_api))


def _reserved(expert_id: str) -> Iterator[Violation]:
    if expert_id == "backbone":
        yield _field("id", "another id: the router's own column has this name", repr(expert_id))


def _rank(manifest: ExpertManifest) -> Iterator[Violation]:
    form, rank = FORMS.get(manifest.form), manifest.rank
    if form is None:  # a plugin's: what its rank means is the plugin's own business
        return
    if form.ranked != (rank > 0):
        wanted = "at least 1" if form.ranked else "0"
        yield _field("rank", f"{wanted} for the form {manifest.form!r}", str(rank))


def _causal(manifest: ExpertManifest) -> Iterator[Violation]:
    """An expert on tokens reads and writes above the blocks: their cache is nobody's business."""
    if not manifest.reads.causal:
        if manifest.writes.vocabulary:
            yield _field("reads.causal", "true, since it names a vocabulary", "nothing")
        return
    if not manifest.writes.vocabulary:
        yield _field("writes.vocabulary", "the digest of the tokenizer it tells", "nothing")
    if manifest.writes.space != "hidden":
        yield _field("writes.space", "'hidden' for a causal expert", repr(manifest.writes.space))
    if (taps := {manifest.reads.tap, manifest.writes.tap}) != {"final"}:
        yield _field("reads.tap", "'final' for a causal expert", repr(min(taps - {"final"})))
    if manifest.labels:
        yield _field("labels", "none for a causal expert: its answers are tokens", "some")


def _labels(labels: tuple[str, ...], *, least: int) -> Iterator[Violation]:
    if len(labels) < least:
        yield _field("labels", "at least one label", "none")
    if twice := sorted(label for label, count in Counter(labels).items() if count > 1):
        yield _field("labels", "every label once", f"{listed(twice)} twice")


def _card(manifest: ExpertManifest) -> Iterator[Violation]:
    card = manifest.card
    if card.kind == "none":
        if card.file or card.sha256 or card.fit or card.gate:
            yield _field("card", "no file and no rows for the kind 'none'", "some")
        return
    if card.file is None or card.sha256 is None:
        yield _field("card", f"a file and its sha256 for the kind {card.kind!r}", "none")
    hint = "Set aside other rows of the domain; a small sample is enough for a router."
    for part, rows in (("fit", card.fit), ("gate", card.gate)):
        if rows > MAX_ROWS:
            yield Violation(
                "card_rows", f"card.{part}", f"at most {MAX_ROWS} rows", str(rows), hint
            )
    if card.fit == 0:
        yield Violation("card_rows", "card.fit", "at least one row", "0", hint)


def _base(manifest: BackboneManifest) -> Iterator[Violation]:
    base = manifest.base
    if base.kind == "carried" and not base.files:
        yield _field("base.files", "the files of a carried base", "none")
    if strange := sorted(name for name in base.files if not name.endswith(CARRIED)):
        yield _field("base.files", f"only {', '.join(CARRIED)}", listed(strange))
    if base.kind != "carried" and (base.files or not base.id):
        yield _field("base", f"an id and no files for the kind {base.kind!r}", "others")
    if base.kind == "hub" and not base.revision:
        yield _field("base.revision", "a pinned revision", "none")


def _task(manifest: BackboneManifest) -> Iterator[Violation]:
    if manifest.task == "regression" and manifest.labels not in {(), (VALUE,)}:
        yield _field(
            "labels", f"only {VALUE!r} where numbers are answered", listed(manifest.labels)
        )
    if manifest.task == "generation" and (manifest.labels or manifest.classifier):
        found = "some" if manifest.labels else "a file"
        yield _field("labels", "no labels and no classifier where text is generated", found)


def _expert_files(manifest: ExpertManifest) -> list[str]:
    names = ["expert.json", manifest.weights.file, manifest.canary.file]
    return names + ([manifest.card.file] if manifest.card.file else [])


def _backbone_files(manifest: BackboneManifest) -> list[str]:
    parts = (manifest.delta, manifest.classifier, manifest.background, manifest.evaluation)
    return ["backbone.json", *(p.file for p in parts if p), *manifest.base.files]


def _file_names(names: list[str]) -> Iterator[Violation]:
    """Refuse two roles for one file, also where case is not kept (macOS, Windows)."""
    for name in (n for n, count in Counter(map(str.casefold, names)).items() if count > 1):
        yield _field("file", "a file of its own for each part", f"{name!r} twice")


def _field(field: str, expected: str, found: str) -> Violation:
    return Violation("manifest_field", field, expected, found, "Correct the manifest.")
