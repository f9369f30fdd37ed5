"""Bits per byte: what receipts and evaluations say of text, and when they refuse."""

from __future__ import annotations

import math

import msgspec
import pytest
import torch
from redhost_generate.tokens import byte_counts

import redhost
from redhost.core.composition.gates import more_bits
from redhost.core.composition.refusal import accepted
from redhost.core.evaluation.evaluate import evaluate
from redhost.core.evaluation.judge import bits_per_byte
from redhost.core.receipt import Bits
from redhost.core.types import Row


def test_bits_are_nats_over_bytes_by_domain() -> None:
    rows = [Row(text="", label="0", domain=d) for d in ("b", "a", "a", None)]
    nats = torch.tensor([1.0, 2.0, 3.0, 100.0]) * math.log(2)
    assert bits_per_byte(nats, rows, {"a": 10, "b": 4}) == pytest.approx({"a": 0.5, "b": 0.25})


def test_a_receipt_tells_bits_beside_the_accuracy_of_next_tokens(outcome, composed) -> None:
    bits = outcome.receipt.bits
    assert bits.before is None and set(bits.after) == set(bits.oracle) == set(composed.bus.ids)
    for domain, card in composed.cards.items():
        gate = [r.text for r in card.rows if r.part == "gate"]
        assert bits.bytes[domain] == sum(byte_counts(composed.backbone.trunk, gate))
    assert all(bits.after[d] < 1.3 * bits.oracle[d] for d in bits.after)


def test_bits_of_a_receipt_are_those_of_the_bus(outcome, composed) -> None:
    domain = composed.bus.ids[0]
    gate = [r.text for r in composed.cards[domain].rows if r.part == "gate"]
    rows = composed.backbone.unit_rows([Row(text=t, label="") for t in gate])
    with torch.inference_mode():
        p, _ = composed.bus(composed.backbone.encode(gate))
    target = torch.tensor([int(r.label) for r in rows])
    evaluated = float(-p.gather(1, target[:, None]).double().log().sum()) / math.log(2)
    expected = evaluated / outcome.receipt.bits.bytes[domain]
    assert outcome.receipt.bits.after[domain] == pytest.approx(expected, rel=1e-5)


def bits(before: float, after: float) -> Bits:
    return Bits(before={"a": before}, after={"a": after}, oracle={"a": 1.0}, bytes={"a": 8})


@pytest.mark.parametrize(
    ("after", "tolerance", "harm"),
    [(2.039, None, False), (2.041, None, True), (2.041, 3.0, False), (2.061, 3.0, True)],
)
def test_more_bits_than_the_tolerance_are_harm(after, tolerance, harm) -> None:
    refusal = more_bits(bits(2.0, after), tolerance=tolerance)
    if not harm:
        assert refusal is None
        return
    with pytest.raises(redhost.errors.HarmError, match="domain 'a' would take"):
        accepted(refusal)


def test_what_nobody_had_before_cannot_be_harmed() -> None:
    assert more_bits(msgspec.structs.replace(bits(1.0, 9.0), before=None), tolerance=0.0) is None


def test_evaluate_reads_tokens_and_tells_bits_by_system(composed, rows_of) -> None:
    rows = [
        Row(text=r.text, label="", domain=name) for name in composed.bus.ids for r in rows_of(name)
    ]
    evaluated = evaluate(composed, rows, encode=composed.backbone.encode)
    assert evaluated.rows == len(composed.backbone.unit_rows(rows)) > len(rows)
    assert set(evaluated.bits) == set(evaluated.table)
    best = {d: min(evaluated.bits[s][d] for s in ("routed", "oracle")) for d in composed.bus.ids}
    assert all(best[d] < evaluated.bits["backbone"][d] for d in composed.bus.ids)
    shares = [len(t.encode()) for t in (r.text for r in rows)]
    mean = sum(
        evaluated.bits["routed"][r.domain] * n for r, n in zip(rows, shares, strict=True)
    ) / sum(shares)
    assert evaluated.bits["routed"]["overall"] == pytest.approx(mean)


def test_rows_of_no_domain_count_overall(composed, rows_of) -> None:
    rows = [Row(text=r.text, label="") for r in rows_of("tales", 4)]
    evaluated = evaluate(composed, rows, encode=composed.backbone.encode)
    assert evaluated.bits["routed"].keys() == {"overall"} and evaluated.domains == {}
    assert "oracle" not in (evaluated.bits or {})  # whose row each is, nobody knows
