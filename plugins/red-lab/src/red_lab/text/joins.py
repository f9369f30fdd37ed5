"""Acceptance of newcomers: honest ones, and hijacks, which claim another expert's domain.

Teams get a corpus's labels by a random deal, so that no threshold was tuned on the evaluated cases.
Experts, router and refusal are the product's defaults. Members are loaded once for each deal. Every
newcomer is composed once, accepted or not, and the gate is evaluated afterwards.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec
import redhost_author
from redhost_author.training.data import DataSplits
from torch import Tensor

import redhost
from red_lab.text.corpora import dealt
from red_lab.text.desk import Desk, inputs_of
from red_lab.text.forgeries import HIJACKS, forged
from redhost.core.composition.gates import harm
from redhost.core.composition.options import RecomposeOptions
from redhost.core.composition.prepare import Previous, RecomposeInputs
from redhost.core.composition.publish import RecomposeResult
from redhost.core.composition.recompose import compose_parts
from redhost.core.composition.refusal import accepted
from redhost.core.model.build import LoadedExpert

__all__ = ["EACH", "HONEST", "JOINING", "KINDS", "deal_joins", "tried"]

JOINING: Mapping[str, int] = {"newsgroups": 2, "newswire": 5}
"""Corpora whose labels are dealt again for newcomers → the first deal that is evaluated: the rule
that refuses newcomers was tuned on earlier deals. Mixed sources differ in kind and are left out."""

EACH = 3
"""Number of hijacks that each team tries; the kinds are taken in turn."""

HONEST = "its own rows, sums and counts (honest)"

OTHERS = "other rows from another team's domain"
"""The one hijack without a forged package: an expert trained honestly, on another's domain."""

KINDS = (*HIJACKS, OTHERS)


def deal_joins(desk: Desk, deal: int) -> list[dict[str, Any]]:
    """Let every team of a deal join the others: honestly, and as hijacks.

    Args:
        desk: The corpus.
        deal: The number of the assignment of labels to teams.

    Returns:
        A record of each attempt: the deal, the team, the kind, whether it was accepted, the reason,
        and the fall in accuracy of the member that loses most.
    """
    teams = dealt(desk.corpus, deal)
    where = f"{desk.corpus.name}-deal-{deal}"
    rows = desk.split(teams, desk.learn)
    folders = {team: desk.author(team, rows[team], where=where) for team in teams}
    everyone = inputs_of(desk, list(folders.values()))
    h = everyone.encode([r.text for r in desk.test])
    found = list[dict[str, Any]]()
    for n, team in enumerate(teams):
        members = {t: labels for t, labels in teams.items() if t != team}
        host = _Host(desk, everyone, members, h)
        victim = list(members)[(n + deal) % len(members)]
        found.append(host.joined(folders[team], kind=HONEST))
        for kind in tried(deal, n, teams=len(teams)):
            if kind == OTHERS:
                renamed = _renamed(desk, teams[victim])
                # In this form, for what members read is laid out once for all teams.
                newcomer = desk.author(team, renamed, where=f"{where}-others", form="words")
            else:
                newcomer = forged(folders[team], folders[victim], kind)
            found.append(host.joined(newcomer, kind=kind))
    return [{"deal": deal, **one} for one in found]


def tried(deal: int, team: int, *, teams: int) -> list[str]:
    """Return the kinds of hijacks that a team of a deal tries, of so many teams."""
    first = (team + teams * deal) * EACH
    return [KINDS[k % len(KINDS)] for k in range(first, first + EACH)]


def _renamed(desk: Desk, labels: Sequence[str]) -> DataSplits:
    """Return texts of some labels that no team was trained on, under new label names."""
    return redhost_author.split_rows(
        [redhost.Row(text=r.text, label=f"my {r.label}") for r in desk.test if r.label in labels]
    )


class _Host:
    """A composition of members that a newcomer joins.

    Args:
        desk: The corpus.
        everyone: The parts of all teams.
        labels: The members' labels, by team.
        h: h̃ of the test rows, ``(N, …)``.
    """

    def __init__(
        self,
        desk: Desk,
        everyone: RecomposeInputs,
        labels: Mapping[str, Sequence[str]],
        h: Tensor,
    ) -> None:
        self.desk, self.members = desk, labels
        team = {y: t for t, some in labels.items() for y in some}
        at = [n for n, r in enumerate(desk.test) if r.label in team]
        self.h, tested = h[at], (desk.test[n] for n in at)
        self.test = [msgspec.structs.replace(r, domain=team[r.label]) for r in tested]
        alone = _of(everyone, {t: everyone.candidates.experts[t] for t in labels})
        before = _composed(alone).composed
        self.right = before.accuracy(self.h, self.test)
        self.alone = dataclasses.replace(
            alone, previous=Previous(model=before), encode_previous=alone.encode
        )

    def joined(self, folder: Path, *, kind: str) -> dict[str, Any]:
        """Compose a newcomer; return the outcome."""
        reason, fall = "", None
        try:
            newcomer = inputs_of(self.desk, [folder]).candidates.experts
            result = _composed(_of(self.alone, {**self.alone.candidates.experts, **newcomer}))
            right = result.composed.accuracy(self.h, self.test)
            fall = max(self.right[t] - right[t] for t in self.members)
            accepted(harm(result.receipt.accuracy, tolerance=None))
        except redhost.RedhostError as e:
            reason = e.reason
        return {
            "team": folder.name,
            "kind": kind,
            "accepted": not reason,
            "fall": fall,
            "reason": reason,
        }


def _of(inputs: RecomposeInputs, experts: Mapping[str, LoadedExpert]) -> RecomposeInputs:
    """Return the parts of some experts."""
    some = {i: experts[i] for i in sorted(experts)}
    candidates = dataclasses.replace(inputs.candidates, experts=some)
    return dataclasses.replace(inputs, candidates=candidates)


def _composed(inputs: RecomposeInputs) -> RecomposeResult:
    """Compose with the default router, whatever its gates find; they are looked at afterwards."""
    return accepted(compose_parts(inputs, RecomposeOptions(router="auto", accept=True)))
