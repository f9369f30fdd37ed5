"""What `redhost check --strict` asks of an expert that is to be published, beyond its contract."""

from __future__ import annotations

from collections.abc import Iterator

from redhost.registry.environment.installed import files_below
from redhost.registry.package.checked import Violation
from redhost.registry.package.discover import MANIFESTS, Package
from redhost.registry.package.manifest import ExpertManifest, parts_of

from .targets import Target

GATE_ROWS = 32
"""With fewer gate rows a loss of one row in thirty-two cannot be detected."""

ALLOWED = ("__init__.py", "py.typed", "README.md", "LICENSE")
"""Files that a published package may have besides those its manifest names."""


def strict_check(target: Target) -> tuple[Violation, ...]:
    """Return all that a published expert should have but this one lacks."""
    if target.files is None:
        return ()
    manifest = target.files.manifest
    return (
        *_backbone_lacks(target, manifest),
        *_manifest_lacks(manifest),
        *unnamed_files(target),
    )


def _backbone_lacks(target: Target, manifest: ExpertManifest) -> Iterator[Violation]:
    name, needs_norm = manifest.backbone.name, not manifest.writes.spec.own_labels
    if target.backbone is None:
        expected = f"backbone {name!r} installed, to check against"
        yield _lack("backbone", expected, "no backbone", f"pip install red-backbone-{name}")
    elif target.backbone.manifest.background and needs_norm and manifest.off_domain is None:
        yield _lack("off_domain", "measured on the background card", "none", "Train it again.")


def _manifest_lacks(manifest: ExpertManifest) -> Iterator[Violation]:
    card = manifest.card
    hint = "Set rows aside before training; 'redhost train-expert' does."
    if card.kind == "none":
        yield _lack("card", "a routing card, so that any host can route to it", "none", hint)
    elif card.kind != "statistics" and card.gate < GATE_ROWS:
        rows, hint = "rows", f"Train it on {8 * GATE_ROWS} rows or more: an eighth are set aside."
        if manifest.reads.causal:
            rows, hint = "passages", "Train it on more documents: an eighth are set aside."
        yield _lack(
            "card.gate", f"at least {GATE_ROWS} gate {rows}", f"{card.gate} gate {rows}", hint
        )
    if not manifest.domain.strip():
        yield _lack("domain", "a sentence that describes its inputs", "nothing", "Write one.")
    if not manifest.license.strip():
        yield _lack("license", "the license of the weights", "nothing", "Name one.")
    if not manifest.training.metrics:
        yield _lack("training.metrics", "how well it does", "nothing", "Measure it.")


def unnamed_files(target: Target) -> Iterator[Violation]:
    """Refuse files, in subfolders too, that neither the manifest nor `ALLOWED` names."""
    files, source = target.backbone if target.kind == "backbone" else target.files, target.source
    if files is None:
        return
    names = set(source) if not isinstance(source, Package) else set[str]()
    if isinstance(source, Package) and source.folder is not None:
        names = set(files_below(source.folder, limited=True))
    named = {MANIFESTS[target.kind], *(part.file for part in parts_of(files.manifest))}
    if unnamed := sorted(names - named - {*ALLOWED}):
        yield _lack(
            "package",
            "nothing but the files its manifest names",
            ", ".join(unnamed[:5]),
            "Move them out of the package's folder: all that lies there is published.",
        )


def _lack(field: str, expected: str, found: str, hint: str) -> Violation:
    return Violation("strict", field, expected, found, hint)
