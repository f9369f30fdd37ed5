"""Who gets in: honest newcomers to a composition, and newcomers that take what is another's.

The teams of a corpus, and the same labels dealt anew, so that no threshold was set on what is
judged here. Experts are solved linear heads; composing and refusing are the product's.
"""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import safetensors.torch
import torch
from torch import Tensor

import redhost
from red_lab.text.corpora import dealt
from red_lab.text.desk import Desk, join

__all__ = ["HIJACKS", "by_kind", "deal_joins"]

SCALE = 20
"""How many times too many rows a card claims, or too loud an expert is."""

Tensors = dict[str, Tensor]


def deal_joins(desk: Desk, deal: int) -> list[dict[str, Any]]:
    """Let every team of a deal join the others: as it is, and in each way that is none of its own.

    Returns:
        A record for each: who joined whom and how, whether it was let in, and what was reason.
    """
    teams = dealt(desk.corpus, deal)
    where = f"{desk.corpus.name}-deal-{deal}"
    settings = redhost.authoring.ExpertSettings(form="linear", space="labels")
    folders = {
        team: desk.author(team, rows, where=where, settings=settings)
        for team, rows in desk.split(teams, desk.learn).items()
    }
    found = []
    for n, team in enumerate(teams):
        others = {t: folder for t, folder in folders.items() if t != team}
        host = _Host(desk, others, {t: teams[t] for t in others})
        found.append(host.joined(folders[team], kind="honest"))
        victim = list(others)[n % len(others)]
        for kind, forge in HIJACKS.items():
            forged = _forged(folders[team], folders[victim], forge)
            found.append(host.joined(forged, kind=kind))
    return [{"deal": deal, **one} for one in found]


class _Host:
    """Who is there when a newcomer comes.

    Args:
        desk: The corpus.
        members: Packages by team.
        labels: The teams' labels.
    """

    def __init__(
        self, desk: Desk, members: Mapping[str, Path], labels: Mapping[str, Sequence[str]]
    ) -> None:
        self.desk, self.members = desk, members
        team = {y: t for t, some in labels.items() for y in some}
        self.test = [
            redhost.Row(text=r.text, label=r.label, domain=team[r.label])
            for r in desk.test
            if r.label in team
        ]
        self.before = desk.compose(list(members.values())).composed
        self.right = self._right(self.before)

    def joined(self, folder: Path, *, kind: str) -> dict[str, Any]:
        """Let one join, and return what came of it; `fall` is the worst team's on test rows."""
        packages, reason, fall = [*self.members.values(), folder], "", None
        try:
            result = join(self.desk, packages, previous=self.before)
        except redhost.RedhostError as e:
            accepted, reason = False, e.reason
        else:
            accepted = not result.receipt.left_out
            reason = "; ".join(x.reason for x in result.receipt.left_out)
        if accepted:
            right = self._right(result.composed)
            fall = max(self.right[t] - right[t] for t in self.members)
        return {
            "team": folder.name,
            "kind": kind,
            "accepted": accepted,
            "fall": fall,
            "reason": reason,
        }

    def _right(self, composed: redhost.ComposedModel) -> dict[str, float]:
        """Return each team's accuracy on its test rows."""
        return composed.accuracy(self.desk.h(self.test), self.test)


def _forged(own: Path, victim: Path, forge: Callable[[Tensors, Tensors], Tensors]) -> Path:
    """Return a copy of a package whose card is forged from a victim's, with digests that agree."""
    project = own.parents[1].parent / f"{own.parents[1].name}-forged"
    shutil.rmtree(project, ignore_errors=True)
    folder = project / "src" / own.name
    shutil.copytree(own.parents[1], project)
    manifest = json.loads((folder / "expert.json").read_text("utf-8"))
    card = folder / manifest["card"]["file"]
    tensors = forge(_card(own), _card(victim))
    card.write_bytes(safetensors.torch.save({k: v.contiguous() for k, v in tensors.items()}))
    manifest["card"] |= {
        "sha256": hashlib.sha256(card.read_bytes()).hexdigest(),
        "fit": len(tensors["fit_z"]),
        "gate": len(tensors["gate_z"]),
    }
    (folder / "expert.json").write_text(json.dumps(manifest), "utf-8")
    return folder


def _card(folder: Path) -> Tensors:
    return dict(safetensors.torch.load((folder / "card.safetensors").read_bytes()))


def _rows(own: Tensors, victim: Tensors) -> Tensors:
    """Show another's rows, and its sums, under labels of one's own."""
    return _sums(own, victim) | _shown(own, victim)


def _shown(own: Tensors, victim: Tensors) -> Tensors:
    """Return another's rows under labels of one's own."""
    labels = len(own["counts"])
    vectors = {k: victim[k] for k in ("fit_z", "gate_z", "gate_shift", "gate_scale")}
    return vectors | {k: victim[k] % labels for k in ("fit_label", "gate_label")}


def _sums(own: Tensors, victim: Tensors) -> Tensors:
    """Show one's own rows and claim another's sums; labels too many are of one row, its mean."""
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
    """Claim another's sums beside one's own, and show rows of both."""
    claimed = _sums(own, victim)
    both = {k: own[k] + claimed[k] for k in ("counts", "sums", "scatter")}
    half = {k: torch.cat([own[k][::2], _shown(own, victim)[k][::2]]) for k in _ROWS}
    return own | both | half


def _heavy(own: Tensors, victim: Tensors) -> Tensors:
    """Claim many times as many rows as there are, a third of them another's."""
    mixed = _added(own, victim)
    return mixed | {k: mixed[k] * SCALE for k in ("counts", "sums", "scatter")}


def _moved(own: Tensors, victim: Tensors) -> Tensors:
    """Claim sums whose every label has the mean of another's rows."""
    mean = victim["sums"].sum(0) / victim["counts"].sum()
    shift = mean - own["sums"].sum(0) / own["counts"].sum()
    sums = own["sums"] + own["counts"][:, None] * shift
    total, rows = own["sums"].sum(0), own["counts"].sum()
    scatter = own["scatter"] + torch.outer(total, shift) + torch.outer(shift, total)
    return own | {"sums": sums, "scatter": scatter + rows * torch.outer(shift, shift)}


_ROWS = ("fit_z", "fit_label", "gate_z", "gate_label", "gate_shift", "gate_scale")

HIJACKS: Mapping[str, Callable[[Tensors, Tensors], Tensors]] = {
    "another's rows and sums": _rows,
    "another's sums": _sums,
    "another's rows and sums beside its own": _added,
    "twenty times as many, another's among them": _heavy,
    "its sums moved to another's mean": _moved,
}


def by_kind(
    found: Sequence[Mapping[str, Any]],
) -> Iterator[tuple[str, int, Sequence[float]]]:
    """Yield kind, how many tried, and the falls by those that were let in."""
    for kind in ("honest", *HIJACKS):
        some = [x for x in found if x["kind"] == kind]
        yield kind, len(some), [x["fall"] for x in some if x["accepted"]]
