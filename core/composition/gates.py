"""What gate rows show: the accuracy of a composition, and whether a domain loses by it."""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial

import msgspec
import torch
from torch import Tensor

from ...registry.errors import CompositionError, HarmError, HijackError
from ..backbones.tokens import byte_counts
from ..bus.evidence import confidence_of
from ..evaluation.judge import EvaluationResult, bits_per_byte, judge, judge_oracle
from ..evaluation.routing_health import routing_health
from ..model.composed import ComposedModel, by_domain
from ..model.conformal import Calibration, calibrate, sets_possible
from ..receipt import Accuracy, Bits, ExcessHarm, Health
from ..routers.base import ColumnData
from ..routers.cards import background_texts, gate_rows
from ..types import Row
from .harm import GateAnswers, excess_harm
from .options import RecomposeInputs

HARM_HINT = "Nothing was changed. Another --router may do better; --accept goes on even so."
"""For every command that composes; `recompose`, `add` and `remove` have both options."""

TRY_HINT = (
    "Nothing was changed. Another --router may do better, 'redhost add --try' says which; --accept "
    "goes on even so."
)
"""For a newcomer."""

LOUDEST = 1000
"""Largest ratio of an expert's RMS ‖W_cΔ‖, in logits, to the larger of the backbone's RMS and the
median of the other experts'. Range experts and those that the suite trains have 0.3 to 1.4."""

SOME = 64
"""Gate rows, and background rows, on which this is measured."""

NOISE = 1.645
"""Standard errors by which an excess may exceed the tolerance: one-sided 5 %."""

COPIED, OVERLAP, TAKEN = 0.1, 0.2, 0.1
"""From these values on, a newcomer shows a member's card, its rows belong to a member's domain, or
it takes rows that were not confused, and the reference's fall is no excuse
(`core.composition.harm`). Of 40 honest newcomers to 20 Newsgroups 39 had at most 0, .16 and .05; a
third of a domain's rows among a newcomer's gives an overlap of .25 to .45."""

FAR = 0.1
"""A domain that is further than this below its own expert causes a warning; with few gate rows the
limit is two of them."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Gates:
    """The results on the gate rows of the available cards.

    Attributes:
        accuracy: Of the new composition and of the current one.
        bits: Bits per byte of both, for generation.
        health: Routing health; None without gate rows.
        calibration: Calibration scores; None if none can be used.
    """

    accuracy: Accuracy
    bits: Bits | None = None
    health: Health | None = None
    calibration: Calibration | None = None


def judge_gates(
    inputs: RecomposeInputs,
    model: ComposedModel,
    data: Sequence[ColumnData] = (),
    *,
    decline: bool = False,
) -> Gates:
    """Measure the new composition and the current one on the gate rows of the available cards.

    Args:
        inputs: The parts, and the current composition.
        model: The new composition.
        data: The data of its cards, by column.
        decline: Whether it is to decline unfamiliar texts.
    """
    cards = [e.card for e in inputs.candidates.experts.values()]
    h, rows = gate_rows(cards, encode=inputs.encode, unit_rows=inputs.backbone.unit_rows)
    if not rows:
        return Gates(accuracy=Accuracy(before=None, after={}, overall=None, oracle=None, rows={}))
    refuse_loud(model, h, inputs.encode(background_texts(inputs.background, model.bus.ids)[:SOME]))
    score = partial(calibrate, decline=decline) if decline or sets_possible(model.bus) else None
    result = judge(model, h, rows, calibrate=score, cards=True)
    oracle = judge_oracle(model, h, rows)
    before, shared = _judge_previous(inputs)
    accuracy = Accuracy(
        before=None if shared is None else by_domain(before.hits, shared) if before else {},
        after=by_domain(result.hits, rows),
        overall=float(result.hits.mean()),
        oracle=float(oracle.hits.mean()),
        rows=dict(sorted(Counter(str(r.domain) for r in rows).items())),
        own=by_domain(oracle.hits, rows),
    )
    if inputs.previous is not None and before is not None and shared is not None:
        old = GateAnswers(model=inputs.previous, rows=shared, result=before)
        new = GateAnswers(model=model, rows=rows, result=result)
        accuracy = msgspec.structs.replace(accuracy, excess=excess_harm(old, new, data, h))
    health = routing_health(model, h, rows, previous=inputs.previous, result=result, before=before)
    warnings = (*health.warnings, *_far_below(accuracy))
    health = msgspec.structs.replace(health, warnings=warnings)
    if result.nats is None or oracle.nats is None:
        return Gates(accuracy=accuracy, health=health, calibration=result.calibration)
    sizes, trunk = dict[str, int](), inputs.backbone.trunk
    for card in cards:
        sizes[card.column] = sum(
            byte_counts(trunk, [r.text for r in card.rows if r.part == "gate"])
        )
    nats = before.nats if before else None
    bits = Bits(
        before=None if nats is None else bits_per_byte(nats, shared or (), sizes),
        after=bits_per_byte(result.nats, rows, sizes),
        oracle=bits_per_byte(oracle.nats, rows, sizes),
        bytes=sizes,
    )
    return Gates(accuracy=accuracy, bits=bits, health=health)


def _far_below(accuracy: Accuracy) -> Iterator[str]:
    """Yield a warning for each domain that is answered far worse than by its own expert."""
    for domain, own in accuracy.own.items():
        after, rows = accuracy.after[domain], accuracy.rows[domain]
        if own - after > max(FAR, 2 / rows) + 1e-9:
            yield (
                f"far below its own expert: {domain!r} has {after:.3f} of {rows} gate rows right, "
                f"its expert alone {own:.3f}. Try another --router ('redhost sweep --data FILE' "
                "compares them), or a card with more rows."
            )


def _judge_previous(
    inputs: RecomposeInputs,
) -> tuple[EvaluationResult | None, Sequence[Row] | None]:
    """Judge the current composition, if any, on the gate rows of the domains that both have."""
    previous, encode = inputs.previous, inputs.encode_previous
    if previous is None or encode is None:
        return None, None
    h, rows = gate_rows(
        [e.card for i, e in inputs.candidates.experts.items() if i in previous.bus.ids],
        encode=encode,
        unit_rows=previous.backbone.unit_rows,
        vectors=previous.fingerprint == inputs.files.manifest.fingerprint,
    )
    score = partial(calibrate, decline=False) if sets_possible(previous.bus) else None
    return (judge(previous, h, rows, calibrate=score, cards=True) if rows else None), rows


def refuse_loud(model: ComposedModel, h: Tensor, background: Tensor) -> None:
    """Refuse an expert whose output drowns out the other experts and the backbone.

    Experts with labels of their own do not affect the others' answers, and are not checked.

    Args:
        model: The composition.
        h: Features of gate rows, ``(G, D)``.
        background: Features of background rows, outside every domain, ``(N, D)``.

    Raises:
        CompositionError: If an expert's ‖Δ‖, in logits, is not finite, or more than `LOUDEST` times
            the larger of the backbone's and the median of the other experts'.
    """
    h = torch.cat([h[:: -(-len(h) // SOME)], background])
    bus, factor = model.bus, model.bus.ensemble.readout_factor
    shared = [k for k in range(len(bus.ids)) if k not in bus.own]
    if factor is None or len(shared) < 2:  # noqa: PLR2004
        return
    with torch.inference_mode():
        z, parts = bus.norm(h), bus.ensemble.parts
        norms = {k: confidence_of(parts[k], bus.ensemble.delta(z, k), factor) for k in shared}
        own = float((h[:, : factor.shape[1]] @ factor.T).square().sum(-1).mean().sqrt())
    loudness = {k: float(e.double().square().mean().sqrt()) for k, e in norms.items()}
    for k in shared:
        most = max(own, statistics.median(loudness[j] for j in shared if j != k))
        if not loudness[k] <= LOUDEST * most:
            raise CompositionError(
                f"expert {bus.ids[k]!r} drowns out the others",
                expected=f"‖Δ‖ of at most {LOUDEST * most:.4g}, {LOUDEST} times what they say",
                found=f"{loudness[k]:.4g}",
                hint="Ask its author for a new build.",
            )


def refuse_harm(accuracy: Accuracy, *, tolerance: float | None) -> None:
    """Refuse when a domain of both compositions falls by more than the tolerance (law 3).

    A newcomer is refused by name if it

        shows rows of a member's card under other labels              copied ≥ `COPIED`
        takes rows because of the row count it claims                 claimed > allowed
        brings rows of a domain that loses by it                      overlap ≥ `OVERLAP` and
                                                                      max(fall, mass) > allowed

    Otherwise a domain is excused the fall of the reference (discriminants from the same cards).
    There is no excuse if newcomers take high-confidence right answers: the cards may have misled
    the reference.

    Args:
        accuracy: Before and after, by domain.
        tolerance: In points. None is one point or two gate rows, whichever is larger; where the
            reference's fall is excused, `NOISE` standard errors are added, up to two points or two
            gate rows.

    Raises:
        HijackError: If a newcomer brings what belongs to a member.
        HarmError: If a domain falls for another reason.
    """
    for domain, before in _most_lost_first(accuracy):
        after, rows = accuracy.after[domain], accuracy.rows[domain]
        allowed = max(0.01, 2 / rows) if tolerance is None else tolerance / 100
        excess, fall = accuracy.excess.get(domain), before - after
        claims = excess is not None and _claims(excess)
        if excess is not None:
            _refuse_lies(domain, excess, allowed=allowed)
            if claims:
                fall = max(fall, excess.mass)
            elif excess.taken < TAKEN:
                most = max(0.02, 2 / rows) if tolerance is None else 0.0
                allowed += max(excess.reference, 0.0) + min(NOISE * excess.error, most)
        if fall <= allowed + 1e-9:
            continue
        problem = f"domain {domain!r} would fall by {100 * fall:.1f} points"
        expected = f"at most {100 * allowed:.1f} points on {rows} gate rows"
        found = f"{before:.3f} before, {after:.3f} after{_why(excess)}"
        if claims:
            raise HijackError(problem, expected=expected, found=found, hint=HARM_HINT)
        raise HarmError(problem, expected=expected, found=found, hint=HARM_HINT)


def _most_lost_first(accuracy: Accuracy) -> list[tuple[str, float]]:
    """Return both compositions' domains with their accuracy before, largest loss first."""

    def lost(item: tuple[str, float]) -> float:
        excess = accuracy.excess.get(item[0])
        return max(item[1] - accuracy.after[item[0]], excess.mass if excess else 0.0)

    return sorted((accuracy.before or {}).items(), key=lost, reverse=True)


def _refuse_lies(domain: str, excess: ExcessHarm, *, allowed: float) -> None:
    """Refuse a newcomer that relabels rows of a card, or gains rows by the row count it claims.

    Raises:
        HijackError: If there is one.
    """
    if excess.copied >= COPIED:
        raise HijackError(
            f"a newcomer's card shows rows of domain {domain!r} under other labels",
            expected=f"less than {COPIED:.0%} of its rows on another's card",
            found=f"{excess.copied:.0%}{_why(excess)}",
            hint=HARM_HINT,
        )
    if excess.claimed > allowed + 1e-9:
        raise HijackError(
            f"domain {domain!r} would lose {100 * excess.claimed:.1f} points to the number of rows "
            "that a newcomer's card claims",
            expected=f"at most {100 * allowed:.1f} beside one with as many as any member",
            found=f"{100 * excess.fall:.1f} points in all",
            hint=HARM_HINT,
        )


def _claims(excess: ExcessHarm) -> bool:
    """Return whether the newcomers' rows belong to a domain of a member."""
    return excess.overlap >= OVERLAP


def _why(excess: ExcessHarm | None) -> str:
    """Return what is known of newcomers, to follow the figures of a domain that falls."""
    if excess is None:
        return ""
    return (
        f"; the cards alone lose {100 * excess.reference:.1f}, "
        f"excess {100 * excess.excess:.1f} ± {100 * excess.error:.1f}; "
        f"newcomers' rows overlap {excess.overlap:.2f} (of {OVERLAP} allowed), "
        f"{100 * excess.taken:.1f} points of sure answers go to them (of {100 * TAKEN:.0f})"
    )


def refuse_bits(bits: Bits, *, tolerance: float | None) -> None:
    """Refuse when a domain of both compositions takes more bits, by more than the tolerance.

    Args:
        bits: Before and after, by domain.
        tolerance: In percent; None is two percent, because every newcomer costs the others
            something: the router has to separate one more domain.

    Raises:
        HarmError: If a domain does.
    """
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
