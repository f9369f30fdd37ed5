"""Forged packages: their authors claim rows, sums or counts that are another team's, or too many.

A forger writes any file of a package, and the digests that match. No forger has the victim's texts,
and none needs them: cards and counts are public. Rows that are another team's are claimed not to
have been learnt from, and counts beside a forged card are of as many rows as it has.
"""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import safetensors.torch
import torch
from redhost_words.counts import Counts
from redhost_words.expert import CARD, COUNTS
from redhost_words.marks import keys_of, marked
from redhost_words.places import UNIT, Words
from scipy import sparse
from torch import Tensor

__all__ = ["HIJACKS", "Package", "forged"]

Tensors = Mapping[str, Tensor]


@dataclass(frozen=True, kw_only=True, eq=False)
class Package:
    """What a forger changes of a package.

    Attributes:
        folder: Where its other files come from.
        manifest: Its manifest.
        card: The tensors of its card.
        words: The words of the card's rows, by part.
        counts: Its counts.
    """

    folder: Path
    manifest: Mapping[str, Any]
    card: Tensors
    words: Tensors
    counts: Counts

    @classmethod
    def read(cls, folder: Path) -> Package:
        """Read the package of a folder."""
        manifest = json.loads((folder / "expert.json").read_text("utf-8"))
        return cls(
            folder=folder,
            manifest=manifest,
            card=safetensors.torch.load_file(folder / manifest["card"]["file"]),
            words=safetensors.torch.load_file(folder / CARD),
            counts=Counts.load((folder / COUNTS).read_bytes(), labels=manifest["labels"]),
        )

    def write(self, folder: Path) -> None:
        """Write it into a folder, with digests that match."""
        for file in self.folder.glob("*.safetensors"):
            shutil.copy(file, folder)
        files = {
            self.manifest["card"]["file"]: _saved(self.card),
            CARD: _saved(self.words),
            COUNTS: self.counts.save(),
        }
        for name, data in files.items():
            (folder / name).write_bytes(data)
        card, *others = ((n, hashlib.sha256(data).hexdigest()) for n, data in files.items())
        shown = {part: len(self.card[f"{part}_z"]) for part in ("fit", "gate")}
        changed = {
            "card": {**self.manifest["card"], "sha256": card[1], **shown},
            "files": {**self.manifest["files"], **dict(others)},
        }
        (folder / "expert.json").write_text(json.dumps({**self.manifest, **changed}), "utf-8")


def _saved(tensors: Tensors) -> bytes:
    return safetensors.torch.save({k: v.contiguous() for k, v in tensors.items()})


SCALE = 20
"""Factor by which a card overstates its rows, or an expert its confidence."""

HUGE = 2**40
"""Factor of counts that no team has."""

BEYOND = 2**24
"""Added to places, so that no text has them."""

SUMS = ("counts", "sums", "scatter")
ROWS = ("fit_z", "fit_label", "gate_z", "gate_label", "gate_shift", "gate_scale")


def forged(own: Path, victim: Path, kind: str) -> Path:
    """Return a copy of a package with parts forged from a victim's.

    Args:
        own: The forger's package.
        victim: Another team's.
        kind: One of `HIJACKS`.
    """
    project = own.parents[1].parent / f"{own.parents[1].name}-forged"
    shutil.rmtree(project, ignore_errors=True)
    shutil.copytree(own.parents[1], project)
    folder = project / "src" / own.name
    package = Package.read(own)
    changed = HIJACKS[kind](package, Package.read(victim))
    if changed.card is not package.card:
        changed = _as_many_as_the_card(changed)
    changed.write(folder)
    return folder


def _as_many_as_the_card(package: Package) -> Package:
    """Claim as many counted rows as the sums and the gate rows of the card are."""
    counts, card, words = package.counts, package.card, package.words
    keys = keys_of(marked(torch.cat([words["fit"], words["gate"]]), expert=package.manifest["id"]))
    gate = card["gate_label"][keys[len(words["fit"]) :] > 0]
    rows = card["counts"].double() + torch.bincount(gate, minlength=len(counts.rows))
    return replace(package, counts=_capped(replace(counts, rows=rows.numpy())))


def _rows_of(package: Package, words: Tensors) -> Tensors:
    """Return words of other rows, of which the package's expert is claimed to know nothing."""
    parts = {part: words[part] for part in ("fit", "gate")}
    shape = sum(map(len, parts.values())), len(package.manifest["labels"])
    return {**parts, "left_out": torch.zeros(shape)}


def _carded(package: Package, changed: Tensors) -> Package:
    return replace(package, card={**package.card, **changed})


# -- rows and sums ----------------------------------------------------------------------------


def _all(own: Package, victim: Package) -> Package:
    """Use the victim's rows, sums and counts under the package's own labels."""
    return _counts(_shown(_sums(own, victim), victim), victim)


def _shown(own: Package, victim: Package) -> Package:
    """Use the victim's rows under the package's own labels."""
    labels = len(own.manifest["labels"])
    rows = {k: victim.card[k] for k in ROWS}
    rows |= {k: rows[k] % labels for k in ("fit_label", "gate_label")}
    return replace(_carded(own, rows), words=_rows_of(own, victim.words))


def _sums(own: Package, victim: Package) -> Package:
    """Keep the own rows, but claim the victim's sums; each spare label gets one row, the mean."""
    counts, sums = (torch.zeros_like(own.card[k]) for k in ("counts", "sums"))
    dealt_to = torch.arange(len(victim.card["counts"])) % len(counts)
    counts.index_add_(0, dealt_to, victim.card["counts"])
    sums.index_add_(0, dealt_to, victim.card["sums"])
    lacking = counts == 0
    counts[lacking] = 1
    sums[lacking] = victim.card["sums"].sum(0) / victim.card["counts"].sum()
    scatter = victim.card["scatter"] + _upper(sums[lacking].T @ sums[lacking])
    return _carded(own, {"counts": counts, "sums": sums, "scatter": scatter})


def _upper(square: Tensor) -> Tensor:
    """Return the rows of the upper triangle, as cards of sums have them."""
    return square[torch.ones_like(square, dtype=torch.bool).triu()]


def _beside(own: Package, victim: Package) -> Package:
    """Claim the victim's rows, sums and counts in addition to the own ones."""
    theirs = _all(own, victim)
    card = {k: own.card[k] + theirs.card[k] for k in SUMS}
    card |= {k: torch.cat([own.card[k][::2], theirs.card[k][::2]]) for k in ROWS}
    both = own.words, theirs.words
    words = {k: torch.cat([w[k][::2] for w in both]) for k in ("fit", "gate")}
    return replace(_counts_beside(own, victim), card=card, words=_rows_of(own, words))


def _many(own: Package, victim: Package) -> Package:  # noqa: ARG001
    """Claim `SCALE` times the actual number of rows, in sums and counts."""
    return _many_counts(_carded(own, {k: own.card[k] * SCALE for k in SUMS}), own)


def _heavy(own: Package, victim: Package) -> Package:
    """Claim `SCALE` times the rows of `_beside`, the victim's among them."""
    return _many(_beside(own, victim), victim)


def _moved(own: Package, victim: Package) -> Package:
    """Claim sums that are shifted so that their mean is that of the victim's rows."""
    counts, sums = own.card["counts"], own.card["sums"]
    rows, total = counts.sum(), sums.sum(0)
    shift = victim.card["sums"].sum(0) / victim.card["counts"].sum() - total / rows
    more = torch.outer(total, shift) + torch.outer(shift, total) + rows * torch.outer(shift, shift)
    moved = {
        "sums": sums + counts[:, None] * shift,
        "scatter": own.card["scatter"] + _upper(more),
    }
    return _carded(own, moved)


def _long(own: Package, victim: Package) -> Package:  # noqa: ARG001
    """Scale the vectors of rows and sums by a hundred."""
    rows = {k: 100 * own.card[k] for k in ("fit_z", "gate_z", "sums")}
    return _carded(own, {**rows, "scatter": 1e4 * own.card["scatter"]})


def _loud(own: Package, victim: Package) -> Package:
    """Use the victim's rows, sums and counts, with a temperature lowered by `SCALE`."""
    temperature = own.manifest["temperature"] / SCALE
    return replace(_all(own, victim), manifest={**own.manifest, "temperature": temperature})


def _relabelled(own: Package, victim: Package) -> Package:
    """Use the victim's whole package, with its labels shifted by one."""
    first, *labels = victim.manifest["labels"]
    changed = {"id": own.manifest["id"], "labels": [*labels, first]}
    return replace(victim, manifest={**victim.manifest, **changed})


# -- counts ----------------------------------------------------------------------------------------


def _counts(own: Package, victim: Package) -> Package:
    """Claim the victim's counts under the package's own labels, dealt as `_sums` deals them."""
    theirs, labels = victim.counts, len(own.manifest["labels"])
    others = np.arange(len(theirs.rows))
    shape = labels, len(others)
    dealt_to = sparse.csr_array((np.ones(len(others)), (others % labels, others)), shape)
    rows, sums = dealt_to @ theirs.rows, (dealt_to @ theirs.sums).tolil()
    mean = theirs.sums.sum(0) / theirs.rows.sum()
    for label in np.flatnonzero(rows == 0):
        rows[label], sums[[label]] = 1, mean
    counts = replace(own.counts, rows=rows, places=theirs.places, sums=_in_units(sums))
    return replace(own, counts=counts)


def _counts_beside(own: Package, victim: Package) -> Package:
    """Claim the victim's counts in addition to the own ones."""
    both = own.counts, _counts(own, victim).counts
    places = np.union1d(*(c.places for c in both))
    sums = _in_units(sum(c.sums @ _selection(c, places) for c in both))
    rows = both[0].rows + both[1].rows
    return replace(own, counts=replace(own.counts, rows=rows, places=places, sums=sums))


def _times(factor: int) -> Callable[[Package, Package], Package]:
    """Return a forgery that claims so many times the own counts."""

    def forge(own: Package, victim: Package) -> Package:  # noqa: ARG001
        rows, sums = own.counts.rows * factor, (own.counts.sums * factor).tocsr()
        return replace(own, counts=replace(own.counts, rows=rows, sums=sums))

    return forge


_many_counts = _times(SCALE)


def _elsewhere(own: Package, victim: Package) -> Package:  # noqa: ARG001
    """Claim the own counts at places that no text has."""
    return replace(own, counts=replace(own.counts, places=own.counts.places + BEYOND))


def _mixed(own_share: float, their_share: float) -> Callable[[Package, Package], Package]:
    """Return a forgery that adds shares of the own and of the victim's counts.

    Nothing contradicts the card: they are of as many rows as it has, and the words of the rows that
    it shows are among them.
    """

    def forge(own: Package, victim: Package) -> Package:
        theirs, rows = _counts(own, victim).counts, own.counts.rows
        places = np.union1d(own.counts.places, theirs.places)
        scaled = sparse.diags_array(their_share * rows / theirs.rows) @ theirs.sums
        sums = own_share * own.counts.sums @ _selection(own.counts, places)
        label = torch.cat([own.card["fit_label"], own.card["gate_label"]]).numpy()
        shape = len(rows), len(label)
        of_label = sparse.csr_array((np.ones(len(label)), (label, np.arange(len(label)))), shape)
        shown = Words.of_segment(torch.cat([own.words["fit"], own.words["gate"]]))
        sums = (sums + scaled @ _selection(theirs, places)).maximum(of_label @ shown.among(places))
        return replace(
            own, counts=_capped(replace(own.counts, places=places, sums=_in_units(sums)))
        )

    return forge


def _capped(counts: Counts) -> Counts:
    """Return counts of which no sum is more than the number of rows."""
    sums = counts.sums.tocsr()
    sums.data = np.minimum(sums.data, np.repeat(counts.rows, np.diff(sums.indptr)))
    return replace(counts, sums=sums)


def _selection(counts: Counts, places: Any) -> sparse.csr_array:
    """Return the matrix of zeros and ones that takes counts to their places among others."""
    here = np.arange(len(counts.places))
    at = here, np.searchsorted(places, counts.places)
    return sparse.csr_array((np.ones(len(here)), at), (len(here), len(places)))


def _in_units(sums: Any) -> sparse.csr_array:
    """Round sums up to whole units, as files have them."""
    rounded = sparse.csr_array(sums)
    rounded.data = np.ceil(rounded.data * UNIT) / UNIT
    rounded.eliminate_zeros()
    return rounded


HIJACKS: Mapping[str, Callable[[Package, Package], Package]] = {
    "another team's rows, sums and counts": _all,
    "another team's sums": _sums,
    "its own and another team's rows, sums and counts": _beside,
    "twenty times too many rows, its own and another team's": _heavy,
    "its own sums, shifted to another team's mean": _moved,
    "twenty times as many rows as it has": _many,
    "another team's package, its labels shifted by one": _relabelled,
    "another team's rows, sums and counts; overconfident answers": _loud,
    "its own vectors and sums, scaled by 100": _long,
    "another team's counts": _counts,
    "its own and another team's counts": _counts_beside,
    "another team's counts, as of its own number of rows": _mixed(0.0, 1.0),
    "its own and another team's counts, as of its own number of rows": _mixed(1.0, 1.0),
    "its own counts, half of them another team's": _mixed(0.5, 0.5),
    "twenty times its own counts": _many_counts,
    "2^40 times its own counts": _times(HUGE),
    "its own counts at places that no text has": _elsewhere,
}
"""What a newcomer's package contains → how it is forged, from its own and a victim's."""
