"""Acceptance of newcomers: honest ones, and hijacks, which claim another expert's domain.

Teams are those of a corpus, or get its labels by a random deal, so that no threshold was tuned on
the evaluated cases. Experts are solved linear heads under the default's router on these texts;
composition and refusal are the product's. Members are loaded once for each deal. Every newcomer is
composed once, accepted or not, and the gate is evaluated afterwards.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec
import safetensors.torch
import torch
from torch import Tensor

import redhost
from red_lab.text.corpora import dealt
from red_lab.text.desk import Desk, inputs_of
from redhost.core.composition.gates import harm
from redhost.core.composition.options import RecomposeOptions
from redhost.core.composition.prepare import Previous, RecomposeInputs
from redhost.core.composition.publish import RecomposeResult
from redhost.core.composition.recompose import compose_parts
from redhost.core.composition.refusal import accepted
from redhost.core.model.build import LoadedExpert
from redhost.core.training.data import DataSplits

__all__ = ["HIJACKS", "by_kind", "deal_joins"]

KIND = "ridge"
"""The router kind that `recompose` chooses on these texts."""

SCALE = 20
"""Factor by which a card overstates its rows, or an expert its confidence."""

EACH = 2
"""Number of hijacks that each team tries; the kinds are taken in turn."""

OTHERS = "other rows of another's domain"
"""The one hijack without a forged card: an expert trained honestly, on another's domain."""

Tensors = dict[str, Tensor]
Package = tuple[dict[str, Any], Tensors]
"""A manifest and its card."""
Records = Sequence[Mapping[str, Any]]


def deal_joins(desk: Desk, deal: int, *, hijacks: int = EACH) -> list[dict[str, Any]]:
    """Let every team of a deal join the others: honestly, and as hijacks.

    Args:
        desk: The corpus.
        deal: The number of the assignment of labels to teams.
        hijacks: Number of hijacks that each team tries.

    Returns:
        A record of each attempt: the team, the kind, whether it was accepted, and the reason.
    """
    teams = dealt(desk.corpus, deal)
    where = f"{desk.corpus.name}-deal-{deal}"
    folders = {
        team: _authored(desk, team, rows, where=where)
        for team, rows in desk.split(teams, desk.learn).items()
    }
    everyone = inputs_of(desk, list(folders.values()))
    kinds, found = [*HIJACKS, OTHERS], list[dict[str, Any]]()
    for n, team in enumerate(teams):
        members = {t: labels for t, labels in teams.items() if t != team}
        host = _Host(desk, everyone, members)
        found.append(host.joined(folders[team], kind="honest"))
        victim = list(members)[(n + deal) % len(members)]
        for k in range(hijacks):
            kind = kinds[((n + len(teams) * deal) * hijacks + k) % len(kinds)]
            if kind == OTHERS:
                rows = _renamed(desk, teams[victim])
                newcomer = _authored(desk, team, rows, where=f"{where}-forged")
            else:
                newcomer = _forged(folders[team], folders[victim], HIJACKS[kind])
            found.append(host.joined(newcomer, kind=kind))
    return [{"deal": deal, **one} for one in found]


def _authored(desk: Desk, team: str, rows: DataSplits, *, where: str) -> Path:
    settings = redhost.authoring.ExpertSettings(form="linear", space="labels")
    return desk.author(team, rows, where=where, settings=settings)


def _renamed(desk: Desk, labels: Sequence[str]) -> DataSplits:
    """Return texts of some labels that no team was trained on, under new label names."""
    rows = [redhost.Row(text=r.text, label=f"my {r.label}") for r in desk.test if r.label in labels]
    return redhost.authoring.split_rows(rows)


class _Host:
    """A composition of members that a newcomer joins.

    Args:
        desk: The corpus.
        everyone: The parts of all teams.
        labels: The members' labels, by team.
    """

    def __init__(
        self, desk: Desk, everyone: RecomposeInputs, labels: Mapping[str, Sequence[str]]
    ) -> None:
        self.desk, self.members = desk, labels
        team = {y: t for t, some in labels.items() for y in some}
        self.test = [
            redhost.Row(text=r.text, label=r.label, domain=team[r.label])
            for r in desk.test
            if r.label in team
        ]
        alone = _of(everyone, {t: everyone.candidates.experts[t] for t in labels})
        before = _composed(alone).composed
        self.right = self._right(before)
        self.alone = dataclasses.replace(
            alone, previous=Previous(model=before), encode_previous=alone.encode
        )

    def joined(self, folder: Path, *, kind: str) -> dict[str, Any]:
        """Compose a newcomer; return the outcome. `fall` is the worst team's drop on test rows."""
        reason, fall, gates = "", None, dict[str, Any]()
        try:
            newcomer = inputs_of(self.desk, [folder]).candidates.experts
            result = _composed(_of(self.alone, {**self.alone.candidates.experts, **newcomer}))
            right = self._right(result.composed)
            fall = max(self.right[t] - right[t] for t in self.members)
            gates = msgspec.to_builtins(result.receipt.accuracy)
            accepted(harm(result.receipt.accuracy, tolerance=None))
        except redhost.RedhostError as e:
            reason = e.reason
        return {
            "team": folder.name,
            "kind": kind,
            "accepted": not reason,
            "fall": fall,
            "reason": reason,
            "gates": gates,
        }

    def _right(self, composed: redhost.ComposedModel) -> dict[str, float]:
        """Return each team's accuracy on its test rows."""
        return composed.accuracy(self.desk.h(self.test), self.test)


def _of(inputs: RecomposeInputs, experts: Mapping[str, LoadedExpert]) -> RecomposeInputs:
    """Return the parts of some experts."""
    some = {i: experts[i] for i in sorted(experts)}
    candidates = dataclasses.replace(inputs.candidates, experts=some)
    return dataclasses.replace(inputs, candidates=candidates)


def _composed(inputs: RecomposeInputs) -> RecomposeResult:
    return accepted(compose_parts(inputs, RecomposeOptions(router=KIND, accept=True)))


def _forged(own: Path, victim: Path, forge: Callable[[Package, Package], Package]) -> Path:
    """Return a copy of a package with parts forged from a victim's, and matching digests."""
    project = own.parents[1].parent / f"{own.parents[1].name}-forged"
    shutil.rmtree(project, ignore_errors=True)
    folder = project / "src" / own.name
    shutil.copytree(own.parents[1], project)
    manifest, tensors = forge(_read(own), _read(victim))
    if manifest["labels"] != _read(own)[0]["labels"]:  # then it uses the victim's weights
        for name in ("expert.safetensors", "canary.safetensors"):
            shutil.copy(victim / name, folder / name)
    card = folder / manifest["card"]["file"]
    card.write_bytes(safetensors.torch.save({k: v.contiguous() for k, v in tensors.items()}))
    manifest["card"] |= {
        "sha256": hashlib.sha256(card.read_bytes()).hexdigest(),
        "fit": len(tensors["fit_z"]),
        "gate": len(tensors["gate_z"]),
    }
    (folder / "expert.json").write_text(json.dumps(manifest), "utf-8")
    return folder


def _read(folder: Path) -> Package:
    manifest = json.loads((folder / "expert.json").read_text("utf-8"))
    card = (folder / manifest["card"]["file"]).read_bytes()
    return manifest, dict(safetensors.torch.load(card))


def _card(forge: Callable[[Tensors, Tensors], Tensors]) -> Callable[[Package, Package], Package]:
    """Return a forgery that changes only the card."""
    return lambda own, victim: (own[0], forge(own[1], victim[1]))


def _rows(own: Tensors, victim: Tensors) -> Tensors:
    """Use the victim's rows and sums under the package's own labels."""
    return _sums(own, victim) | _shown(own, victim)


def _shown(own: Tensors, victim: Tensors) -> Tensors:
    """Return the victim's rows under the package's own labels."""
    labels = len(own["counts"])
    vectors = {k: victim[k] for k in ("fit_z", "gate_z", "gate_shift", "gate_scale")}
    return vectors | {k: victim[k] % labels for k in ("fit_label", "gate_label")}


def _sums(own: Tensors, victim: Tensors) -> Tensors:
    """Keep the own rows, but claim the victim's sums; each spare label gets one row, the mean."""
    labels, others = len(own["counts"]), len(victim["counts"])
    dealt_to = torch.arange(others) % labels
    counts = torch.zeros_like(own["counts"]).index_add_(0, dealt_to, victim["counts"])
    sums = torch.zeros_like(own["sums"]).index_add_(0, dealt_to, victim["sums"])
    lacking = counts == 0
    counts[lacking] = 1
    sums[lacking] = victim["sums"].sum(0) / victim["counts"].sum()
    scatter = victim["scatter"] + sums[lacking].T @ sums[lacking]
    return own | {"counts": counts, "sums": sums, "scatter": scatter}


def _added(own: Tensors, victim: Tensors) -> Tensors:
    """Claim the victim's sums in addition to the own ones, with rows of both."""
    claimed = _sums(own, victim)
    both = {k: own[k] + claimed[k] for k in SUMS}
    half = {k: torch.cat([own[k][::2], _shown(own, victim)[k][::2]]) for k in ROWS}
    return own | both | half


def _many(own: Tensors, victim: Tensors) -> Tensors:  # noqa: ARG001
    """Claim `SCALE` times the actual number of rows."""
    return own | {k: own[k] * SCALE for k in SUMS}


def _heavy(own: Tensors, victim: Tensors) -> Tensors:
    """Claim `SCALE` times the rows of `_added`, the victim's among them."""
    return _many(_added(own, victim), victim)


def _moved(own: Tensors, victim: Tensors) -> Tensors:
    """Claim sums that are shifted so that their mean is that of the victim's rows."""
    mean = victim["sums"].sum(0) / victim["counts"].sum()
    shift = mean - own["sums"].sum(0) / own["counts"].sum()
    sums = own["sums"] + own["counts"][:, None] * shift
    total, rows = own["sums"].sum(0), own["counts"].sum()
    scatter = own["scatter"] + torch.outer(total, shift) + torch.outer(shift, total)
    return own | {"sums": sums, "scatter": scatter + rows * torch.outer(shift, shift)}


def _huge(own: Tensors, victim: Tensors) -> Tensors:  # noqa: ARG001
    """Scale the vectors of rows and sums by a hundred."""
    rows = {k: 100 * own[k] for k in ("fit_z", "gate_z", "sums")}
    return own | rows | {"scatter": 1e4 * own["scatter"]}


def _loud(own: Package, victim: Package) -> Package:
    """Use the victim's rows and sums, with a temperature lowered by `SCALE`."""
    return own[0] | {"temperature": own[0]["temperature"] / SCALE}, _rows(own[1], victim[1])


def _relabelled(own: Package, victim: Package) -> Package:
    """Use the victim's expert and card, with its labels shifted by one."""
    labels = victim[0]["labels"]
    theirs = {k: victim[0][k] for k in ("weights", "canary", "temperature", "card")}
    return own[0] | theirs | {"labels": [*labels[1:], labels[0]]}, victim[1]


SUMS = ("counts", "sums", "scatter")
ROWS = ("fit_z", "fit_label", "gate_z", "gate_label", "gate_shift", "gate_scale")

HIJACKS: Mapping[str, Callable[[Package, Package], Package]] = {
    "another's rows and sums": _card(_rows),
    "another's sums": _card(_sums),
    "another's rows and sums beside its own": _card(_added),
    "twenty times as many, another's among them": _card(_heavy),
    "its sums moved to another's mean": _card(_moved),
    "twenty times as many as its own": _card(_many),
    "another's rows and labels, each a place further": _relabelled,
    "another's rows and sums, loud": _loud,
    "its own, a hundred times as long": _card(_huge),
}


def by_kind(found: Records) -> Iterator[tuple[str, Records]]:
    """Yield each tried kind with its records, the honest one first."""
    for kind in ("honest", *HIJACKS, OTHERS):
        if some := [x for x in found if x["kind"] == kind]:
            yield kind, some
