"""What gate rows say: how good a composition is, and whether a domain loses by it."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

from ..registry.errors import HarmError
from .bench import Bench
from .cards import gate_rows
from .composed import Composed, by_domain
from .judge import Judged, judge, judge_oracle
from .receipt import Accuracy, Health
from .routing_health import routing_health

__all__ = ["judge_gates", "refuse_harm"]


def judge_gates(bench: Bench, composed: Composed) -> tuple[Accuracy, Health | None]:
    """Measure the new composition and the current one on the gate rows of the cards at hand.

    Args:
        bench: The parts, and the current composition.
        composed: The new one.

    Returns:
        The accuracies, and the health of the routes; None without gate rows.
    """
    cards = [a.card for a in bench.candidates.attached.values()]
    h, rows = gate_rows(cards, encode=bench.encode, unfold=bench.backbone.unfold)
    if not rows:
        return Accuracy(before=None, after={}, overall=None, oracle=None, rows={}), None
    judged, before = judge(composed, h, rows), _before(bench)
    accuracy = Accuracy(
        before=None if before is None else before.accuracy,
        after=by_domain(judged.hits, rows),
        overall=float(judged.hits.mean()),
        oracle=float(judge_oracle(composed, h, rows).mean()),
        rows=dict(sorted(Counter(str(r.domain) for r in rows).items())),
    )
    health = routing_health(
        composed,
        h,
        rows,
        previous=bench.previous,
        judged=judged,
        before=None if before is None else before.judged,
    )
    return accuracy, health


@dataclass(frozen=True, kw_only=True, eq=False)
class _Before:
    """What the current composition does with the gate rows of the domains both have."""

    accuracy: dict[str, float]
    judged: Judged | None


def _before(bench: Bench) -> _Before | None:
    """Judge the current composition on the domains that both have."""
    if bench.previous is None or bench.encode_previous is None:
        return None
    both = frozenset(bench.previous.bus.ids)
    shared = [a.card for i, a in bench.candidates.attached.items() if i in both]
    same = bench.previous.fingerprint == bench.fingerprint
    h, rows = gate_rows(
        shared,
        encode=bench.encode_previous,
        unfold=bench.previous.backbone.unfold,
        vectors=same,
    )
    if not rows:
        return _Before(accuracy={}, judged=None)
    judged = judge(bench.previous, h, rows)
    return _Before(accuracy=by_domain(judged.hits, rows), judged=judged)


def refuse_harm(accuracy: Accuracy, *, tolerance: float | None) -> None:
    """Refuse when a domain of both compositions falls by more than the tolerance (law 3).

    Args:
        accuracy: Before and after, by domain.
        tolerance: In points; None is one point or two gate rows, whichever is larger.

    Raises:
        HarmError: If one does.
    """
    for domain, before in (accuracy.before or {}).items():
        after, rows = accuracy.after[domain], accuracy.rows[domain]
        allowed = max(0.01, 2 / rows) if tolerance is None else tolerance / 100
        if before - after > allowed + 1e-9:
            raise HarmError(
                f"domain {domain!r} would fall by {100 * (before - after):.1f} points",
                expected=f"at most {100 * allowed:.1f} points on {rows} gate rows",
                found=f"{before:.3f} before, {after:.3f} after",
                hint="Publish even so with --accept, or find the cause with --dry-run --accept.",
            )
