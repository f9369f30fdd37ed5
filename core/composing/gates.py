"""What gate rows say: how good a composition is, and whether a domain loses by it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from ...registry.errors import HarmError
from ..answering.composed import Composed, by_domain
from ..generate.bits import bits_per_byte
from ..generate.spelling import byte_counts
from ..learning.cards import gate_rows
from ..measuring.judge import Judged, Told, judge, judge_oracle
from ..measuring.routing_health import routing_health
from ..receipt import Accuracy, Bits, Health
from ..rows import Row
from .bench import Bench

__all__ = ["Gates", "judge_gates", "refuse_bits", "refuse_harm"]

HARM_HINT = "Nothing was changed. Another --router may do better; --accept goes on even so."
"""For every command that composes: `recompose`, `add` and `remove` have both options."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Gates:
    """What the gate rows of the cards at hand say.

    Attributes:
        accuracy: Of the new composition and of the current one.
        bits: Bits per byte of both, where text is generated.
        health: Of the routes; None without gate rows.
    """

    accuracy: Accuracy
    bits: Bits | None = None
    health: Health | None = None


def judge_gates(bench: Bench, composed: Composed) -> Gates:
    """Measure the new composition and the current one on the gate rows of the cards at hand.

    Args:
        bench: The parts, and the current composition.
        composed: The new one.
    """
    cards = [a.card for a in bench.candidates.attached.values()]
    h, rows = gate_rows(cards, encode=bench.encode, unfold=bench.backbone.unfold)
    if not rows:
        return Gates(accuracy=Accuracy(before=None, after={}, overall=None, oracle=None, rows={}))
    judged, before = judge(composed, h, rows), _before(bench)
    oracle = judge_oracle(composed, h, rows)
    accuracy = Accuracy(
        before=None if before is None else before.accuracy,
        after=by_domain(judged.hits, rows),
        overall=float(judged.hits.mean()),
        oracle=float(oracle.hits.mean()),
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
    bits = _bits(bench, rows, judged=judged, oracle=oracle, before=before)
    return Gates(accuracy=accuracy, bits=bits, health=health)


@dataclass(frozen=True, kw_only=True, eq=False)
class _Before:
    """What the current composition does with the gate rows of the domains both have."""

    accuracy: dict[str, float]
    judged: Judged | None
    rows: Sequence[Row] = ()


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
    return _Before(accuracy=by_domain(judged.hits, rows), judged=judged, rows=rows)


def _bits(
    bench: Bench, rows: Sequence[Row], *, judged: Judged, oracle: Told, before: _Before | None
) -> Bits | None:
    """Return bits per byte of both compositions; None where no text is generated."""
    if judged.nats is None or oracle.nats is None:
        return None
    told = _gate_bytes(bench)
    earlier = None
    if before is not None and before.judged is not None and before.judged.nats is not None:
        earlier = bits_per_byte(before.judged.nats, before.rows, told)
    return Bits(
        before=earlier,
        after=bits_per_byte(judged.nats, rows, told),
        oracle=bits_per_byte(oracle.nats, rows, told),
        bytes=told,
    )


def _gate_bytes(bench: Bench) -> dict[str, int]:
    """Return the bytes of each card's gate passages."""
    trunk, cards = bench.backbone.trunk, {i: a.card for i, a in bench.candidates.attached.items()}
    return {
        i: sum(byte_counts(trunk, [r.text for r in card.rows if r.part == "gate"]))
        for i, card in cards.items()
    }


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
                hint=HARM_HINT,
            )


def refuse_bits(bits: Bits | None, *, tolerance: float | None) -> None:
    """Refuse when a domain of both compositions takes more bits, by more than the tolerance.

    Args:
        bits: Before and after, by domain; None where no text is generated.
        tolerance: In percent; None is two percent: whoever joins costs the others something, for
            a router has to tell one domain more apart.

    Raises:
        HarmError: If one does.
    """
    if bits is None:
        return
    allowed = 0.02 if tolerance is None else tolerance / 100
    for domain, before in (bits.before or {}).items():
        after = bits.after[domain]
        if after > before * (1 + allowed) + 1e-9:
            raise HarmError(
                f"domain {domain!r} would take {100 * (after / before - 1):.1f} % more bits",
                expected=f"at most {100 * allowed:.1f} % more on its gate passages",
                found=f"{before:.3f} bits per byte before, {after:.3f} after",
                hint=HARM_HINT,
            )
