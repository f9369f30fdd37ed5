"""What a package discloses about its author's rows."""

from __future__ import annotations

from collections.abc import Mapping

from redhost.registry.package.manifest import ExpertManifest

DISCLOSED: Mapping[str, str] = {
    "words": "; counts by label of the words and pairs that two rows have, and with vectors all "
    "words of the rows shown"
}
"""What a package of a form discloses besides its card."""


def card_discloses(manifest: ExpertManifest) -> str:
    """Return what the card discloses about its author's rows to anyone who has the package."""
    card, width = manifest.card, manifest.reads.width
    if card.kind == "none":
        return f"no card{DISCLOSED.get(manifest.form, ': nothing of the rows')}"
    if card.kind == "texts":
        return (
            f"card of texts: {card.fit + card.gate} rows, word by word"
            f"{DISCLOSED.get(manifest.form, '')}"
        )
    if card.kind == "vectors":
        return (
            f"card of vectors: {card.fit + card.gate} rows as vectors, from which much of a text "
            f"can be inferred; its sums, if it has any, are exact{DISCLOSED.get(manifest.form, '')}"
        )
    if not card.noise:
        return (
            "card of sums, exact: all rows but one give the last by subtraction, and sums of fewer "
            f"than {width} rows reveal nearly all of them (--epsilon adds noise)"
            f"{DISCLOSED.get(manifest.form, '')}"
        )
    return (
        f"card of sums with noise: ({card.noise.epsilon:g}, {card.noise.delta:g})-differentially "
        "private for each row; the weights are those that were trained"
    )
