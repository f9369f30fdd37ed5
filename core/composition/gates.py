"""What gate rows show: the accuracy of a composition, and whether a domain loses by it."""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial

import msgspec
import torch
from torch import Tensor

from ...registry.package.checked import Violation
from ..bus.evidence import confidence_of
from ..evaluation.judge import EvaluationResult, Scores, bits_per_byte, judge, judge_oracle
from ..evaluation.routing_health import routing_health
from ..model.composed import ComposedModel, answers_labels, by_domain
from ..model.conformal import Calibration, calibrate
from ..receipt import Accuracy, Bits, Comparison, ExcessHarm, Health
from ..routers.base import ColumnData
from ..routers.cards import background_texts, gate_rows
from ..types import Row, percent
from .harm import GateAnswers, excess_harm, updated_members
from .options import RecomposeOptions
from .prepare import RecomposeInputs
from .refusal import Code, Refusal

HARM_HINT = "Nothing was changed. Another --router may do better; --accept goes on even so."
"""For every command that composes; `recompose`, `add` and `remove` have both options."""

TRY_HINT = (
    "Nothing was changed. Another --router may do better, 'redhost add WHEEL --try' says which; "
    "--accept goes on even so."
)
"""For a newcomer."""

LOUDEST = 1000
"""Largest ratio of an expert's RMS ‖W_cΔ‖, in logits, to the larger of the backbone's RMS and the
median of the other experts'. Range experts and those that the suite trains have 0.3 to 1.4."""

SOME = 64
"""Gate rows, and background rows, on which this is measured."""

NOISE = 1.645
"""Standard errors of the excess, and of what is taken, that are excused: one-sided 5 %."""

COPIED, OVERLAP, TAKEN = 0.1, 0.3, 0.1
"""From these values on a newcomer shows a member's card, its rows belong to a member's domain (less
one standard error), or it takes rows that the reference keeps (less `NOISE` standard errors), and
the reference's fall is no excuse (`core.composition.harm`). Of 110 honest newcomers beside their
neighbours three had such an overlap where others lost by them; a third of a domain's rows among a
newcomer's gives .4 to .8, before the error."""

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


def judge_composition(
    inputs: RecomposeInputs,
    options: RecomposeOptions,
    model: ComposedModel,
    data: Sequence[ColumnData],
) -> Gates | Refusal:
    """Measure a new composition, and refuse it if a domain loses more than the tolerance.

    Args:
        inputs: The parts, and the current composition.
        options: The tolerance, and whether falls are accepted; they are then counted anew.
        model: The new composition.
        data: The data of its cards, by column.

    Raises:
        UsageError: If it is to decline, and does not answer labels.
    """
    if options.decline:
        answers_labels(model, "whole texts")
    gates = judge_gates(inputs, model, data, decline=bool(options.decline))
    if isinstance(gates, Refusal):
        return gates
    if options.accept:
        return replace(gates, accuracy=msgspec.structs.replace(gates.accuracy, fallen={}))
    refusal = harm(gates.accuracy, tolerance=options.tolerance)
    if refusal is None and gates.bits is not None:
        refusal = more_bits(gates.bits, tolerance=options.tolerance)
    return refusal or gates


def judge_gates(
    inputs: RecomposeInputs,
    model: ComposedModel,
    data: Sequence[ColumnData] = (),
    *,
    decline: bool = False,
) -> Gates | Refusal:
    """Measure the new composition and the current one on the gate rows of the available cards.

    Args:
        inputs: The parts, and the current composition.
        model: The new composition.
        data: The data of its cards, by column.
        decline: Whether it is to decline unfamiliar texts.

    Returns:
        The results; a refusal if they would mean nothing, because an expert drowns out the others.
    """
    cards, previous = [e.card for e in inputs.candidates.experts.values()], inputs.previous
    h, rows = gate_rows(cards, encode=inputs.encode, backbone=inputs.backbone)
    if not rows:
        return Gates(accuracy=Accuracy(before=None, after={}, overall=None, oracle=None, rows={}))
    texts = background_texts(inputs.background, model.bus.ids)[:SOME]
    if loud := too_loud(model, h, inputs.encode(texts)):
        return loud
    score = partial(calibrate, decline=decline) if decline or model.bus.task.one_label else None
    result = judge(model, h, rows, calibrate=score, cards=True)
    oracle, before = judge_oracle(model, h, rows), _judge_previous(inputs)
    accuracy = _accuracy(inputs, model, rows, result, oracle)
    if before is not None:
        new = GateAnswers(model=model, rows=rows, result=result)
        shared = by_domain(before.result.hits, before.rows)
        excess = excess_harm(before, new, data, h)
        accuracy = msgspec.structs.replace(accuracy, before=shared, excess=excess)
        # An update's losses in its own domain are its author's: counting begins with the new build.
        stay = sorted({*shared}.difference(updated_members(before.model, model)))
        fallen = {d: _fallen_since(accuracy, d, previous.fallen.get(d, 0.0)) for d in stay}
        accuracy = msgspec.structs.replace(accuracy, fallen=fallen)
    was = before.result if before else None
    health = routing_health(model, h, rows, previous=previous.model, result=result, before=was)
    given_up = _given_up(previous.model, model) if previous.model else ()
    health = msgspec.structs.replace(
        health, warnings=(*health.warnings, *_far_below(accuracy), *given_up)
    )
    if result.nats is None or oracle.nats is None:
        return Gates(accuracy=accuracy, health=health, calibration=result.calibration)
    unit, trunk = inputs.backbone.task.unit, inputs.backbone.trunk
    texts_of = {card.column: [r.text for r in card.rows if r.part == "gate"] for card in cards}
    sizes = {column: sum(unit.byte_counts(trunk, texts)) for column, texts in texts_of.items()}
    nats = was.nats if was else None
    bits = Bits(
        before=None if nats is None else bits_per_byte(nats, before.rows if before else (), sizes),
        after=bits_per_byte(result.nats, rows, sizes),
        oracle=bits_per_byte(oracle.nats, rows, sizes),
        bytes=sizes,
    )
    return Gates(accuracy=accuracy, bits=bits, health=health)


def _accuracy(
    inputs: RecomposeInputs,
    model: ComposedModel,
    rows: Sequence[Row],
    result: EvaluationResult,
    oracle: Scores,
) -> Accuracy:
    """Return the accuracy of a composition by domain, and on former cards."""
    former = _judge_former(inputs, model)
    return Accuracy(
        before=None if inputs.previous.model is None else {},
        after=by_domain(result.hits, rows),
        overall=float(result.hits.mean()),
        oracle=float(oracle.hits.mean()),
        rows=dict(sorted(Counter(str(r.domain) for r in rows).items())),
        own=by_domain(oracle.hits, rows),
        withdrawn={i: card for i, card in former.items() if i not in model.bus.ids},
        updated={i: card for i, card in former.items() if i in model.bus.ids},
    )


def _far_below(accuracy: Accuracy) -> Iterator[str]:
    """Yield a warning for each domain that is answered far worse than by its own expert."""
    for domain, alone in accuracy.own.items():
        after, rows = accuracy.after[domain], accuracy.rows[domain]
        if alone - after > max(FAR, 2 / rows) + 1e-9:
            yield (
                f"far below its own expert: {domain!r} has {after:.3f} of {rows} gate rows right, "
                f"its expert alone {alone:.3f}. Try another --router ('redhost sweep --data FILE' "
                "compares them), or a card with more rows."
            )


def _judge_previous(inputs: RecomposeInputs) -> GateAnswers | None:
    """Judge the current composition, if any, on the gate rows of the domains that both have."""
    previous, encode = inputs.previous.model, inputs.encode_previous
    if previous is None or encode is None:
        return None
    h, rows = gate_rows(
        [e.card for i, e in inputs.candidates.experts.items() if i in previous.bus.ids],
        encode=encode,
        backbone=previous.backbone,
        vectors=previous.fingerprint == inputs.files.manifest.fingerprint,
    )
    score = partial(calibrate, decline=False) if previous.bus.task.one_label else None
    if not rows:
        return None
    result = judge(previous, h, rows, calibrate=score, cards=True)
    return GateAnswers(model=previous, rows=rows, result=result)


def _judge_former(inputs: RecomposeInputs, model: ComposedModel) -> dict[str, Comparison]:
    """Judge both compositions on the former cards of experts that were withdrawn or updated."""
    previous, encode = inputs.previous.model, inputs.encode_previous
    if previous is None or encode is None:
        return {}
    # What an author chooses to show in a new card is not what users had: the former card is.
    updated = updated_members(previous, model)
    cards = [previous.cards[i] for i in previous.bus.ids if i not in model.bus.ids or i in updated]
    one_backbone = previous.fingerprint == model.fingerprint
    # A label that is given up is wrong on all its rows, and says nothing of the other labels.
    gone = set(previous.bus.labels).difference(model.bus.labels)
    old, old_rows = gate_rows(cards, encode=encode, backbone=previous.backbone)
    new, rows = gate_rows(
        cards, encode=inputs.encode, backbone=inputs.backbone, vectors=one_backbone
    )
    if not old_rows or not rows:
        return {}
    hits = judge(previous, old, old_rows, cards=True).hits
    before = by_domain(hits, _still_answered(old_rows, updated, gone))
    hits, rows = judge(model, new, rows).hits, _still_answered(rows, updated, gone)
    after, counts = by_domain(hits, rows), Counter(r.domain for r in rows)
    return {i: Comparison(before=before[i], after=x, rows=counts[i]) for i, x in after.items()}


def _still_answered(rows: Sequence[Row], updated: Collection[str], gone: set[str]) -> list[Row]:
    """Return rows without a domain, which nobody counts, for labels that an update gave up."""
    return [
        msgspec.structs.replace(r, domain=None) if r.domain in updated and r.label in gone else r
        for r in rows
    ]


def _given_up(previous: ComposedModel, model: ComposedModel) -> Iterator[str]:
    """Yield a warning for each update that lacks labels of the build before."""
    for i in updated_members(previous, model):
        labels = previous.bus.answered_by(previous.bus.columns.index(i))
        if gone := sorted({*labels}.difference(model.bus.labels)):
            yield (
                f"labels given up: {i!r} no longer answers {', '.join(map(repr, gone))}. If that "
                "is not meant: 'redhost rollback', and ask its author."
            )


def too_loud(model: ComposedModel, h: Tensor, background: Tensor) -> Refusal | None:
    """Return a refusal if an expert's output drowns out the other experts and the backbone.

    That is, if its ‖Δ‖, in logits, is not finite, or more than `LOUDEST` times the larger of the
    backbone's and the median of the other experts'.

    Experts with labels of their own do not affect the others' answers, and are not checked.

    Args:
        model: The composition.
        h: Features of gate rows, ``(G, D)``.
        background: Features of background rows, outside every domain, ``(N, D)``.
    """
    # Rows stand card by card: those at even distances are of every domain.
    h = torch.cat([h[:: -(-len(h) // SOME)], background])
    bus, factor = model.bus, model.bus.ensemble.readout_factor
    shared = [k for k in range(len(bus.ids)) if k not in bus.own]
    if factor is None or len(shared) < 2:  # noqa: PLR2004
        return None
    with torch.inference_mode():
        z, parts = bus.norm(h), bus.ensemble.parts
        norms = {k: confidence_of(parts[k], bus.ensemble.delta(z, k), factor) for k in shared}
        readout = float((h[:, : factor.shape[1]] @ factor.T).square().sum(-1).mean().sqrt())
    loudness = {k: float(e.double().square().mean().sqrt()) for k, e in norms.items()}
    for k in shared:
        most = max(readout, statistics.median(loudness[j] for j in shared if j != k))
        # Not `>`: a NaN has to be refused as well.
        if not loudness[k] <= LOUDEST * most:
            return _refusal(
                Code.NOT_COMPUTABLE,
                f"expert {bus.ids[k]!r} drowns out the others",
                expected=f"‖Δ‖ of at most {LOUDEST * most:.4g}, {LOUDEST} times what they say",
                found=f"{loudness[k]:.4g}",
                hint="Ask its author for a new build.",
            )
    return None


def _fallen_since(accuracy: Accuracy, domain: str, fallen: float) -> float:
    """Return what a domain lost since its expert came, beyond what newcomers are excused.

    Args:
        accuracy: Before and after, by domain.
        domain: The domain.
        fallen: The same up to the current composition.
    """
    lost = (accuracy.before or {})[domain] - accuracy.after[domain]
    excess = accuracy.excess.get(domain)
    # A gain is not reduced by the excuse: it makes good earlier falls in full.
    if excess is not None and lost > 0:
        lost = max(0.0, lost - max(excess.reference, 0.0) - NOISE * excess.error)
    return max(0.0, fallen + lost)


def harm(accuracy: Accuracy, *, tolerance: float | None) -> Refusal | None:
    """Return a refusal if a domain of both compositions falls by more than the tolerance (law 3).

    Args:
        accuracy: Before and after, by domain.
        tolerance: In points. None is one point or two gate rows, whichever is larger; where the
            reference's fall is excused, `NOISE` standard errors are added, up to three points or
            three gate rows.
    """
    return next(_harms(accuracy, tolerance), None)


def _harms(accuracy: Accuracy, tolerance: float | None) -> Iterator[Refusal]:
    """Yield a refusal for each domain that falls by more than the tolerance.

    An update is judged on the rows of its former card too: those of the new one are its author's
    choice. A newcomer, or a member whose package changed, is refused by name if it

        shows rows of a member's card under other labels              copied ≥ `COPIED`
        takes rows because of the row count it claims                 claimed > allowed
        brings rows of a domain that loses by it                      overlap − blur ≥ `OVERLAP`,
                                                                      max(fall, mass) > allowed

    The last is harm, and no hijack, where the fall is allowed less the mass's standard error.
    Otherwise a domain is excused the fall of the reference (discriminants from the same cards).
    There is no excuse if newcomers take high-confidence right answers that the reference keeps.
    Falls that are not excused add up over generations, until the domain's own expert changes or
    somebody accepts: many small ones are one large one.
    """
    for domain, x in _most_lost_first(accuracy):
        before, after, rows = x.before, x.after, x.rows
        allowed = max(0.01, 2 / rows) if tolerance is None else tolerance / 100
        # What is excused below is excused once; the sum over generations has the plain tolerance.
        least, fallen = allowed, accuracy.fallen.get(domain, 0.0)
        excess, fall, code = accuracy.excess.get(domain), before - after, Code.HARM
        # Rows of a member's domain: those of a neighbour can be separated from it.
        claims = excess is not None and excess.overlap - excess.blur >= OVERLAP
        if excess is not None:
            yield from _lies(domain, excess, allowed=allowed)
            if claims:
                # Few gate rows may stay right by luck while their probability already goes.
                fall = max(fall, excess.mass)
                code = Code.HIJACK if fall - excess.mass_error > allowed else code
            elif excess.taken < TAKEN + NOISE * (TAKEN * (1 - TAKEN) / rows) ** 0.5:
                # What any classifier of these cards would lose, and noise: of 165 honest newcomers
                # two points or rows let in 156, three 159, no end 160.
                most = max(0.03, 3 / rows) if tolerance is None else 0.0
                allowed += max(excess.reference, 0.0) + min(NOISE * excess.error, most)
        # Falls are multiples of one row: one that equals the tolerance must not fail by rounding.
        if fall <= allowed + 1e-9:
            yield from _drift(domain, fallen, fall=before - after, allowed=least, rows=rows)
            continue
        card = "former" if x is accuracy.updated.get(domain) else "new"
        yield _refusal(
            code,
            f"domain {domain!r} would fall by {100 * fall:.1f} points"
            f"{' of the mean probability of the right label' if fall > before - after else ''}",
            expected=f"at most {100 * allowed:.1f} points on {rows} gate rows"
            f"{f' of its {card} card' if domain in accuracy.updated else ''}",
            found=f"accuracy {before:.3f} before, {after:.3f} after{_why(excess)}",
        )


def _refusal(
    code: Code, problem: str, *, expected: str, found: str, hint: str = HARM_HINT
) -> Refusal:
    """Return a refusal; harm may be less under another router."""
    violation = Violation(code.value, problem, expected, found, hint)
    return Refusal(code=code, violations=(violation,), retry=code.is_harm)


def _most_lost_first(accuracy: Accuracy) -> list[tuple[str, Comparison]]:
    """Return both compositions' domains, largest loss first, then those of former cards."""
    rows = accuracy.rows
    both = [
        (d, Comparison(before=before, after=accuracy.after[d], rows=rows[d]))
        for d, before in (accuracy.before or {}).items()
    ]

    def lost(item: tuple[str, Comparison]) -> float:
        excess = accuracy.excess.get(item[0])
        return max(item[1].before - item[1].after, excess.mass if excess else 0.0)

    # What an update takes from others is the graver fault, and is named first.
    return [*sorted(both, key=lost, reverse=True), *accuracy.updated.items()]


def _lies(domain: str, excess: ExcessHarm, *, allowed: float) -> Iterator[Refusal]:
    """Refuse a newcomer that relabels rows of a card, or gains rows by the row count it claims."""
    if excess.copied >= COPIED:
        yield _refusal(
            Code.HIJACK,
            f"a newcomer's card shows rows of domain {domain!r} under other labels",
            expected=f"less than {COPIED:.0%} of its rows on another's card",
            found=f"{percent(excess.copied)}{_why(excess)}",
        )
    if excess.claimed > allowed + 1e-9:
        yield _refusal(
            Code.HIJACK,
            f"domain {domain!r} would lose {100 * excess.claimed:.1f} points to the number of rows "
            "that a newcomer's card claims",
            expected=f"at most {100 * allowed:.1f} beside one with as many as any member",
            found=f"{100 * excess.fall:.1f} points in all",
        )


def _drift(
    domain: str, fallen: float, *, fall: float, allowed: float, rows: int
) -> Iterator[Refusal]:
    """Refuse what makes a domain fall by more than the tolerance, a little each time."""
    if fall > 0 and fallen > allowed + 1e-9:
        yield _refusal(
            Code.HARM,
            f"domain {domain!r} would have fallen by {100 * fallen:.1f} points, a little each time",
            expected=f"at most {100 * allowed:.1f} points since its expert came, on {rows} rows",
            found=f"{100 * fall:.1f} points this time",
        )


def _why(excess: ExcessHarm | None) -> str:
    """Return what is known of newcomers, to follow the figures of a domain that falls."""
    if excess is None:
        return ""
    return (
        f"; the cards alone lose {100 * excess.reference:.1f}, "
        f"excess {100 * excess.excess:.1f} ± {100 * excess.error:.1f}; "
        f"newcomers' rows overlap {excess.overlap:.2f} ± {excess.blur:.2f} (of {OVERLAP} allowed), "
        f"{100 * excess.taken:.1f} points of sure answers go to them (of {100 * TAKEN:.0f})"
    )


def more_bits(bits: Bits, *, tolerance: float | None) -> Refusal | None:
    """Return a refusal if a domain of both compositions takes more bits than the tolerance allows.

    Args:
        bits: Before and after, by domain.
        tolerance: In percent; None is two percent, because every newcomer costs the others
            something: the router has to separate one more domain.
    """
    allowed = 0.02 if tolerance is None else tolerance / 100
    for domain, before in (bits.before or {}).items():
        after = bits.after[domain]
        if after > before * (1 + allowed) + 1e-9:
            return _refusal(
                Code.HARM,
                f"domain {domain!r} would take {100 * (after / before - 1):.1f} % more bits",
                expected=f"at most {100 * allowed:.1f} % more on its gate passages",
                found=f"{before:.3f} bits per byte before, {after:.3f} after",
            )
    return None
