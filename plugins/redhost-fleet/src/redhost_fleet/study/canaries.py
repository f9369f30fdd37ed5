"""Canaries of real experts on real posts: new versions of one team's expert, good and bad.

Five teams' experts on 20 Newsgroups are production. Each canary differs by a change to one team's
training rows, or by the router. Both versions answer the later posts once. These are then labelled
in a thousand orders, and each order is evaluated as `redhost fleet judge` does.
"""

from __future__ import annotations

import hashlib
import math
import random
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec
import redhost_author
from red_lab.progress import Bar
from red_lab.text.corpora import CORPORA
from red_lab.text.desk import Desk, open_desk
from redhost_serve.drift import RecentMoments

import redhost
from redhost_fleet.documents import Comparison
from redhost_fleet.rollout import Limits, decide
from redhost_fleet.study.rollouts import LOOK, summary

__all__ = ["CANARIES", "measure"]

TEAM = "computers"
"""The team whose expert is new."""

FEW = 16

Rows = Sequence[redhost.Row]


def _draw(row: redhost.Row, share: float) -> bool:
    """Return whether a row is in a random fraction of all rows, drawn by its text's hash."""
    drawn = hashlib.blake2b(f"canary {row.text}".encode(), digest_size=8).digest()
    return int.from_bytes(drawn) < share * 2**64


def _nine_tenths(rows: Rows) -> list[redhost.Row]:
    return [r for r in rows if not _draw(r, 0.1)]


def _few(rows: Rows) -> list[redhost.Row]:
    """Keep only `FEW` rows of a label."""
    left, chosen = Counter[str](), list[redhost.Row]()
    for row in sorted(rows, key=lambda r: hashlib.sha256(r.text.encode()).digest()):
        left[row.label] += 1
        if left[row.label] <= FEW:
            chosen.append(row)
    return chosen


def _confused(rows: Rows) -> list[redhost.Row]:
    """Swap the labels of half of the rows of two labels."""
    first, second = sorted({r.label for r in rows})[:2]
    other = {first: second, second: first}
    return [
        redhost.Row(text=r.text, label=other.get(r.label, r.label)) if _draw(r, 0.5) else r
        for r in rows
    ]


def _mislabelled(rows: Rows) -> list[redhost.Row]:
    """Give two rows in five the team's next label."""
    labels = sorted({r.label for r in rows})
    following = dict(zip(labels, labels[1:] + labels[:1], strict=True))
    return [
        redhost.Row(text=r.text, label=following[r.label]) if _draw(r, 0.4) else r for r in rows
    ]


CANARIES: Mapping[str, tuple[Callable[[Rows], list[redhost.Row]] | None, str]] = {
    "the same rows less one in ten": (_nine_tenths, "auto"),
    f"{FEW} rows of a label": (_few, "auto"),
    "two rows in five under the next label": (_mislabelled, "auto"),
    "two labels mixed up in half of their rows": (_confused, "auto"),
    "router `statistics` in place of the default": (None, "statistics"),
}
"""Description → the change to the team's rows, and the router."""


def measure(
    *, rollouts: int, labels: int, seed: int, work: Path, validation: bool
) -> dict[str, Any]:
    """Evaluate each canary in many orders of the same labelled posts.

    Args:
        rollouts: Number of orders.
        labels: Maximum number of labels of each.
        seed: Seed of the orders.
        work: The folder for packages and features.
        validation: Take all rows from the training file.
    """
    desk = open_desk(CORPORA["newsgroups"], encoder="minilm", work=work, validation=validation)
    folders = {team: _author(desk, team, rows) for team, rows in _learnt(desk).items()}
    production = desk.compose(list(folders.values())).composed
    texts, right = [r.text for r in desk.test], [r.label for r in desk.test]
    before = production.answer(texts)
    rows, bar = list[dict[str, Any]](), Bar("canaries", total=len(CANARIES))
    for name, (change, kind) in CANARIES.items():
        new = dict(folders)
        if change is not None:
            new[TEAM] = _author(desk, TEAM, change(_learnt(desk)[TEAM]), where="canary")
        after = desk.compose(list(new.values()), kind=kind).composed.answer(texts)
        outcomes = _outcomes(before, after, right)
        rows.append({"kind": name, **_rollouts(outcomes, rollouts, labels, f"{seed} {name}")})
        bar.update(len(rows))
    limits = Limits()
    return {
        "posts": len(texts),
        "accuracy": sum(a.label == y for a, y in zip(before, right, strict=True)) / len(right),
        "rollouts": rollouts,
        "labels": labels,
        "look": LOOK,
        "limits": {"alarm": limits.alarm, "miss": limits.miss, "margin": limits.margin},
        "rows": rows,
        "drift": _drift(desk, production),
    }


def _learnt(desk: Desk) -> dict[str, list[redhost.Row]]:
    """Return every team's rows."""
    labels = {y: team for team, some in desk.corpus.teams.items() for y in some}
    by_team: dict[str, list[redhost.Row]] = {team: [] for team in desk.corpus.teams}
    for row in desk.learn:
        by_team[labels[row.label]].append(row)
    return by_team


def _author(desk: Desk, team: str, rows: Rows, *, where: str = "production") -> Path:
    splits = redhost_author.split_rows(list(rows))
    return desk.author(team, splits, where=f"fleet-{where}", form="linear")


def _outcomes(
    before: Sequence[redhost.Answer], after: Sequence[redhost.Answer], right: Sequence[str]
) -> list[tuple[str, str]]:
    """Return each text's expert, and ``better``, ``worse`` or ``same``."""
    found = []
    for a, b, y in zip(before, after, right, strict=True):
        was, now = a.label == y, b.label == y
        outcome = "same" if was == now else "better" if now else "worse"
        found.append((max(a.weights, key=a.weights.__getitem__), outcome))
    return found


def _rollouts(
    outcomes: Sequence[tuple[str, str]], rollouts: int, labels: int, seed: str
) -> dict[str, Any]:
    draw, ended = random.Random(seed), list[tuple[str, int]]()  # noqa: S311  (no secret)
    experts = len({expert for expert, _ in outcomes}) + 1
    for _ in range(rollouts):
        ended.append(_rollout(draw.sample(outcomes, min(labels, len(outcomes))), experts))
    count = Counter(outcome for _, outcome in outcomes)
    return {
        "better": count["better"] / len(outcomes),
        "worse": count["worse"] / len(outcomes),
        **summary(ended),
    }


def _rollout(order: Sequence[tuple[str, str]], experts: int) -> tuple[str, int]:
    """Label texts in an order; return the canary's outcome and the number of labels."""
    counts: dict[str, Counter[str]] = {}
    for n, (expert, outcome) in enumerate(order, start=1):
        counts.setdefault(expert, Counter())[outcome] += 1
        if n % LOOK == 0:
            found = {expert: Comparison(**some) for expert, some in counts.items()}
            if (decision := decide(found, experts=experts)).action != "hold":
                return decision.action, n
    return "hold", len(order)


def _drift(desk: Desk, model: redhost.ComposedModel) -> list[dict[str, Any]]:
    """Return the drift by team of the cards' own rows, of later posts, and of other texts."""
    sources = {
        "rows that teams learn from": [r.text for r in desk.learn],
        "posts that came later": [r.text for r in desk.test],
        **desk.corpus.outside(),
    }
    rows = list[dict[str, Any]]()
    for name, texts in sources.items():
        recent = RecentMoments(most=math.inf)
        model.answer(texts, observe=recent.observer(model))
        drift = {i: msgspec.structs.asdict(d) for i, d in recent.drift().items()}
        rows.append({"texts": name, "count": len(texts), "drift": drift})
    return rows
