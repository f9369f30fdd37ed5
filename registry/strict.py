"""What `redhost check --strict` asks beyond the contract: hosts run without it, people suffer."""

from __future__ import annotations

from collections.abc import Iterator

from .audit import Target
from .manifest import ExpertManifest
from .violations import Violation

__all__ = ["GATE_ROWS", "strict_check"]

GATE_ROWS = 32
"""Fewer gate rows cannot show a loss of one row in thirty-two."""

ALLOWED = ("__init__.py", "py.typed", "README.md", "LICENSE")


def strict_check(target: Target) -> tuple[Violation, ...]:
    """Return everything a published expert should have and this one lacks."""
    if target.files is None:
        return ()
    manifest = target.files.manifest
    return (
        *_backbone(target, manifest),
        *_card(manifest),
        *_told(manifest),
        *_strangers(target, manifest),
    )


def _backbone(target: Target, manifest: ExpertManifest) -> Iterator[Violation]:
    if target.backbone is None:
        yield _lack(
            "backbone",
            f"backbone {manifest.backbone.name!r} installed, to check against",
            "no backbone",
            f"pip install red-backbone-{manifest.backbone.name}",
        )
        return
    measurable = target.backbone.manifest.background and manifest.writes.space != "labels"
    if measurable and manifest.off_domain is None:
        yield _lack("off_domain", "measured on the background card", "none", "Train it again.")


def _card(manifest: ExpertManifest) -> Iterator[Violation]:
    card = manifest.card
    hint = "Set rows aside before training; 'redhost train-expert' does."
    if card.kind == "none":
        yield _lack("card", "a routing card, so that any host can route to it", "none", hint)
    elif card.kind != "statistics" and card.gate < GATE_ROWS:
        yield _lack("card.gate", f"at least {GATE_ROWS} gate rows", str(card.gate), hint)


def _told(manifest: ExpertManifest) -> Iterator[Violation]:
    if not manifest.domain.strip():
        yield _lack("domain", "a sentence on the inputs it knows", "nothing", "Write one.")
    if not manifest.license.strip():
        yield _lack("license", "the license of the weights", "nothing", "Name one.")
    if not manifest.training.metrics:
        yield _lack("training.metrics", "how well it does", "nothing", "Measure it.")


def _strangers(target: Target, manifest: ExpertManifest) -> Iterator[Violation]:
    named = {"expert.json", manifest.weights.file, manifest.canary.file, manifest.card.file}
    strange = sorted(n for n in target.names if n not in named and n not in ALLOWED)
    if strange:
        yield _lack(
            "package",
            "nothing but the files its manifest names",
            ", ".join(strange[:5]),
            "Leave it out: an expert is data.",
        )


def _lack(field: str, expected: str, found: str, hint: str) -> Violation:
    return Violation("strict", field, expected, found, hint)
