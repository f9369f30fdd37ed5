"""The expert's side of the bus: which tensors it ships, and whether it fits a backbone.

A check is a function that yields a `Violation` for whatever is wrong, and its line in
`check_compatible`; those of a manifest by itself are in `fields`.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping

from .errors import ContractError, short
from .forms import FORMS, Shapes
from .integrity import TensorInfo
from .manifest import BUS_API, BackboneManifest, ExpertManifest
from .violations import Violation, listed

__all__ = [
    "TAP",
    "VALUE",
    "bus_violation",
    "check_compatible",
    "classes_in",
    "expected_tensors",
    "is_builtin",
]

TAP = re.compile(r"final|\d+|[A-Za-z_]\w*(\.\w+)+")
"""Where an expert may read and write: at the end, or at a block by number or name."""

VALUE = "value"
"""The one label of a backbone that answers numbers, and of its experts."""


def is_builtin(form: str) -> bool:
    """Tell whether the form is one of the host's own; a plugin's is ``dist:name``."""
    return ":" not in form


def expected_tensors(manifest: ExpertManifest, *, classes: int | None) -> Shapes:
    """Return name → shape of every tensor the expert's weights must hold, exactly.

    Args:
        manifest: The expert's manifest.
        classes: C of the backbone; needed for an expert that writes logits only.

    Returns:
        The shapes, empty for a plugin's form: its tensors are the plugin's own business.

    Raises:
        ContractError: If the expert writes logits and ``classes`` is None.
    """
    d, space = manifest.reads.width, manifest.writes.space
    if not is_builtin(manifest.form):
        return {}
    if space == "logits" and classes is None:
        raise ContractError(
            f"expert {manifest.id!r} writes logits", expected="the number of classes", found="none"
        )
    out = {"hidden": d, "labels": len(manifest.labels), "logits": classes or 0}[space]
    return FORMS[manifest.form].shapes(space, width=d, rank=manifest.rank, out=out)


def classes_in(manifest: ExpertManifest, header: Mapping[str, TensorInfo]) -> int | None:
    """Return the C that the weights of an expert writing logits were made for, if any."""
    if manifest.writes.space != "logits" or not is_builtin(manifest.form):
        return None
    rows = header.get(FORMS[manifest.form].written("logits"))
    return rows.shape[0] if rows is not None and rows.shape else None


def check_compatible(
    expert: ExpertManifest, backbone: BackboneManifest, *, classes: int | None = None
) -> tuple[Violation, ...]:
    """Check that an expert fits a backbone.

    Args:
        expert: The manifest of a valid expert.
        backbone: The backbone at hand.
        classes: What `classes_in` found in the weights, where they are at hand.

    Returns:
        Everything that does not fit, the most telling first; empty when all does.
    """
    return (
        *bus_violation(expert.bus_api, who="the expert"),
        *_fingerprint(expert, backbone),
        *_width(expert, backbone),
        *_vocabulary(expert, backbone),
        *_taps(expert),
        *_known_labels(expert, backbone, classes),
    )


def bus_violation(bus_api: str, *, who: str) -> tuple[Violation, ...]:
    """Return a violation when this host's bus lies outside the range."""
    from packaging.specifiers import SpecifierSet

    if SpecifierSet(bus_api).contains(BUS_API):
        return ()
    hint = f"Upgrade with 'pip install -U redhost', or install an older version of {who}."
    found = f"bus API {BUS_API} on this host"
    return (Violation("bus_api", "bus_api", f"bus API {bus_api}", found, hint),)


def _fingerprint(expert: ExpertManifest, backbone: BackboneManifest) -> Iterator[Violation]:
    wanted = expert.backbone
    if wanted.fingerprint != backbone.fingerprint:
        yield Violation(
            "backbone_mismatch",
            "backbone.fingerprint",
            f"{short(wanted.fingerprint)} ({wanted.name})",
            f"{short(backbone.fingerprint)} ({backbone.id})",
            f"Retrain it on this backbone, or install the build for {short(backbone.fingerprint)}.",
        )


def _width(expert: ExpertManifest, backbone: BackboneManifest) -> Iterator[Violation]:
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
    generates = backbone.task == "generation"
    if generates != bool(expert.reads.causal):
        expected = "a causal expert: the backbone generates" if generates else "no causal expert"
        found = "causal" if expert.reads.causal else "one vector for a whole text"
        yield Violation("causal_mismatch", "reads.causal", expected, found, hint)
    elif generates and expert.writes.vocabulary != backbone.tokenizer:
        found = short(str(expert.writes.vocabulary))
        yield Violation(
            "vocabulary_mismatch", "writes.vocabulary", short(backbone.tokenizer), found, hint
        )


def _taps(expert: ExpertManifest) -> Iterator[Violation]:
    taps = {"reads.tap": expert.reads.tap, "writes.tap": expert.writes.tap}
    for field, tap in taps.items():
        if not TAP.fullmatch(tap):
            expected = "'final', a block's number, or its name such as 'layers.2'"
            yield Violation("tap_unknown", field, expected, repr(tap), "Correct the manifest.")
    if expert.writes.tap == "final":
        return
    if expert.writes.space != "hidden" or expert.reads.tap == "final":
        expected = "the space 'hidden' and a reads.tap of its own for a block to write to"
        found = f"space {expert.writes.space!r}, reads.tap {expert.reads.tap!r}"
        yield Violation("tap_order", "writes.tap", expected, found, "Correct the manifest.")


def _known_labels(
    expert: ExpertManifest, backbone: BackboneManifest, classes: int | None
) -> Iterator[Violation]:
    if expert.writes.space == "labels":
        return
    known = set(backbone.labels)
    if unknown := [label for label in expert.labels if label not in known]:
        expected = f"labels of backbone {backbone.id!r}, which knows {len(known)}"
        hint = "Write to the space 'labels' to bring labels of its own."
        yield Violation("labels_unknown", "labels", expected, listed(unknown), hint)
    if classes not in {None, len(backbone.labels)}:
        expected = f"{len(backbone.labels)} rows, the classes of backbone {backbone.id!r}"
        hint = "Retrain it on this backbone."
        yield Violation("weights_tensors", "logits", expected, str(classes), hint)
