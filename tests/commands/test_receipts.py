"""A receipt for people: a line for each expert, until there are too many to read."""

from __future__ import annotations

import json

import msgspec
import pytest

from redhost.commands.common import print_json
from redhost.commands.receipts import SHOWN, print_receipt
from redhost.core.receipt import Accuracy, DigestChange, LeftOut, Receipt, RouterReceipt


def receipt(count: int, *, moved: str = "", left: int = 0) -> Receipt:
    """Return a receipt of some experts: e003 lost most, the last is new."""
    ids = [f"e{n:03d}" for n in range(count)]
    before = dict.fromkeys(ids[:-1], 0.5)
    after = dict.fromkeys(ids, 0.5) | {ids[0]: 0.75, ids[3]: 0.25}
    return Receipt(
        generation=2,
        parent=1,
        router=RouterReceipt(
            kind="shortlist",
            level="full",
            seconds=0.1,
            rows=8 * count,
            digest="d" * 64,
            columns=tuple(ids),
            moved=tuple(ids),
        ),
        backbone=DigestChange(before="b" * 64, after="b" * 64),
        experts={
            i: DigestChange(before="a" * 64, after=("c" if i == moved else "a") * 64) for i in ids
        },
        left_out=tuple(LeftOut(id=f"x{n}", code="backbone", reason="other") for n in range(left)),
        withdrawn=(),
        not_gated=(),
        accuracy=Accuracy(
            before=before,
            after=after,
            overall=0.5,
            oracle=0.9,
            rows=dict.fromkeys(ids, 8),
            own=dict.fromkeys(ids, 0.875),
        ),
        seconds=1.0,
        seed=0,
    )


def printed(capsys: pytest.CaptureFixture[str], made: Receipt) -> str:
    print_receipt(made)
    return capsys.readouterr().out


def test_a_member_that_is_not_installed_has_a_line(capsys) -> None:
    made = msgspec.structs.replace(receipt(4), drift={"e001": "missing"})
    assert "drift      e001: missing, composed from the store\n" in printed(capsys, made)


def test_a_few_experts_have_a_line_each(capsys) -> None:
    text = printed(capsys, receipt(SHOWN))
    assert all(f"e{n:03d}" in text for n in range(SHOWN))
    assert text.count("0.875") == SHOWN  # each expert's own accuracy, beside its domain's
    assert "--json" not in text


def test_many_experts_are_reported_in_a_line_with_those_to_look_at(capsys) -> None:
    text = printed(capsys, receipt(1000, moved="e500"))
    assert len(text.splitlines()) < 30
    assert "1000 experts, the weights of 999 unchanged" in text
    assert "1 domains gained, 1 lost, 997 as before" in text
    shown = [line for line in text.splitlines() if " e" in line or line.startswith("e")]
    for wanted in ("e500", "e999", "e003"):  # changed, new, lost most
        assert any(wanted in line for line in shown), wanted
    assert not any("e700" in line for line in shown)


def test_whatever_changed_is_never_hidden(capsys) -> None:
    """Control: the same receipt in which nothing changed says so."""
    assert "CHANGED" in printed(capsys, receipt(1000, moved="e700"))
    text = printed(capsys, receipt(1000))
    assert "CHANGED" not in text and "the weights of 1000 unchanged" in text


def test_many_left_out_are_counted(capsys) -> None:
    text = printed(capsys, receipt(2 + 2, left=SHOWN + 7))
    assert text.count("left out") == SHOWN + 1
    assert "7 more" in text


@pytest.mark.parametrize(
    ("ids", "line"),
    [
        (("a",), "left out   a: backbone_mismatch: other"),
        (("a", "b", "c"), "left out   3 experts for other backbones: a, b, c"),
    ],
)
def test_experts_for_other_backbones_have_one_line(capsys, ids, line) -> None:
    """An expert left out for another reason has a line of its own."""
    others = [LeftOut(id=i, code="backbone_mismatch", reason="other") for i in ids]
    broken = LeftOut(id="broken", code="card_rows", reason="too few")
    made = msgspec.structs.replace(receipt(4), left_out=(broken, *others))
    lines = [x for x in printed(capsys, made).splitlines() if x.startswith("left out")]
    assert lines == ["left out   broken: card_rows: too few", line]


def test_of_very_many_for_other_backbones_the_first_are_named(capsys) -> None:
    made = msgspec.structs.replace(
        receipt(4),
        left_out=tuple(
            LeftOut(id=f"x{n}", code="backbone_mismatch", reason="") for n in range(SHOWN + 7)
        ),
    )
    text = printed(capsys, made)
    assert f"x{SHOWN - 1}, and 7 more\n" in text and f"x{SHOWN}," not in text


def test_json_has_them_all(capsys) -> None:
    print_json(receipt(1000))
    assert len(json.loads(capsys.readouterr().out)["experts"]) == 1000
