"""Cards: what a router may learn, from rows, vectors or sums alone."""

from __future__ import annotations

from dataclasses import replace
from hashlib import sha256
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest
import safetensors.torch
import torch
from redhost_author.training.packaging import statistics_card, vectors_card
from redhost_spans.words import Words

import redhost
from redhost.core.bus.layout import FeatureLayout, FeatureSegment
from redhost.core.bus.task import CLASSIFICATION
from redhost.core.routers.cards import (
    BACKED,
    Card,
    background_data,
    column_data,
    gate_rows,
    read_card,
)
from redhost.core.routers.domain_statistics import Statistics
from redhost.core.types import BackgroundRow, CardRow, parse_rows, write_rows
from redhost.registry.errors import CardError, UsageError
from redhost.registry.package.manifest import CardRef, ExpertManifest
from redhost.registry.package.readers import read_expert
from redhost.registry.package.rules import MAX_ROWS

D = 16
NO_GATE = {
    "gate_z": torch.zeros(0, D),
    "gate_label": torch.zeros(0, dtype=torch.int64),
    "gate_shift": torch.zeros(0, 1),
    "gate_scale": torch.zeros(0, 1),
}
"""What a card of vectors without gate rows has of them."""


@pytest.fixture
def expert_manifest(expert_folders) -> ExpertManifest:
    files = read_expert({p.name: p.read_bytes() for p in expert_folders["red"].iterdir()}).unwrap(
        "it"
    )
    return files.manifest


def with_card(manifest: ExpertManifest, kind: str, **fields: object) -> ExpertManifest:
    card = CardRef(kind=kind, file=None if kind == "none" else "card", sha256=None, **fields)
    return msgspec.structs.replace(manifest, card=card)


def upper(square: torch.Tensor) -> torch.Tensor:
    """Return the rows of the upper triangle, ``(D (D + 1) / 2,)``."""
    return square[tuple(torch.triu_indices(*square.shape))]


def encode_z(texts) -> torch.Tensor:
    return torch.stack([torch.full((D,), float(len(t))) for t in texts])


def no_texts(texts) -> torch.Tensor:
    assert not texts
    return torch.empty(0, D)


def texts_card() -> bytes:
    rows = [("a", "a", "fit"), ("bb", "b", "fit"), ("ccc", "a", "gate")]
    return write_rows(CardRow(text=t, label=y, part=p) for t, y, p in rows)


def test_a_texts_card_teaches_from_fit_and_is_evaluated_on_gate(expert_manifest) -> None:
    card = read_card(with_card(expert_manifest, "texts", fit=2, gate=1), {"card": texts_card()})
    data = column_data(card, encode_z=encode_z, seed=0)
    assert data.column == "red" and data.z[:, 0].tolist() == [1.0, 2.0]
    assert data.statistics.labels == ("a", "b")
    h, rows = gate_rows([card], encode=encode_z)
    assert [(r.text, r.label, r.domain) for r in rows] == [("ccc", "a", "red")]
    assert h[:, 0].tolist() == [3.0]


def refused(manifest: ExpertManifest, data: bytes) -> CardError:
    with pytest.raises(CardError) as found:
        read_card(manifest, {"card": data})
    assert "expert 'red'" in found.value.problem
    return found.value


@pytest.mark.parametrize(
    ("fit", "gate", "found"), [(5, 1, ("5", "2")), (2, 3, ("3", "1")), (1, 1, ("1", "2"))]
)
def test_a_card_with_other_counts_than_stated_is_refused(expert_manifest, fit, gate, found) -> None:
    error = refused(with_card(expert_manifest, "texts", fit=fit, gate=gate), texts_card())
    assert (error.expected, error.found) == found
    assert ("fit rows" in error.problem) == (found[1] == "2")


def test_a_card_with_labels_not_in_the_manifest_is_refused(expert_manifest) -> None:
    narrow = msgspec.structs.replace(
        with_card(expert_manifest, "texts", fit=5, gate=0), labels=("a",)
    )
    rows = [CardRow(text="t", label=y, part="fit") for y in "aedcb"]
    error = refused(narrow, write_rows(rows))
    assert (error.expected, error.found) == ("labels of its manifest", "b, c, d")


def test_a_row_that_is_none_is_the_authors_fault(expert_manifest) -> None:
    """Named by its line; it is not a usage error of the user who installed the expert."""
    error = refused(with_card(expert_manifest, "texts", fit=2, gate=1), texts_card() + b"{}\n")
    assert "line 4" in error.problem and "text, label, part" in error.expected
    assert "`text`" in error.found


def test_cards_of_numbers_are_read_as_numbers(expert_manifest) -> None:
    """One class of rows, whose answers are the numbers; what is none is refused."""
    numbers = redhost.plugins.make_task("regression")
    valued = msgspec.structs.replace(expert_manifest, labels=("value",))
    rows = write_rows(CardRow(text=y, label=y, part="fit") for y in ("1", "25"))
    card = read_card(with_card(valued, "texts", fit=2), {"card": rows}, task=numbers)
    assert column_data(card, encode_z=encode_z, seed=0).statistics.labels == ("value",)
    with pytest.raises(CardError) as caught:
        read_card(
            with_card(valued, "texts", fit=2), {"card": rows.replace(b"25", b"x")}, task=numbers
        )
    assert caught.value.found == "'x'"
    vectors = vectors_card(
        fit_z=torch.randn(2, D),
        fit_labels=["1", "2.5"],
        gate_h=torch.randn(1, D),
        gate_labels=["7"],
        labels=valued.labels,
        eps=1e-5,
        task=numbers,
    )
    made = with_card(valued, "vectors", fit=2, gate=1)
    card = read_card(made, {"card": vectors.data}, task=numbers)
    assert (card.kind, card.labels, card.gate_labels) == ("vectors", ("1.0", "2.5"), ("7.0",))
    assert column_data(card, encode_z=no_texts, seed=0).statistics.labels == ("value",)


def test_a_vectors_card_needs_no_encoding(expert_manifest) -> None:
    z = torch.randn(3, D)
    data = safetensors.torch.save({"fit_z": z, "fit_label": torch.tensor([0, 1, 1]), **NO_GATE})
    card = read_card(with_card(expert_manifest, "vectors", fit=3), {"card": data})
    learnt = column_data(card, encode_z=lambda _: pytest.fail("encoded"), seed=0)
    assert torch.equal(learnt.z, z) and learnt.column == "red"
    assert learnt.statistics.counts.tolist() == [1.0, 2.0]
    assert learnt.statistics.labels == expert_manifest.labels[:2]
    assert gate_rows([card], encode=no_texts)[1] == []


def test_a_statistics_card_is_drawn_from_with_a_seed_of_its_own(expert_manifest) -> None:
    rows = torch.randn(40, D)
    s = Statistics.of_rows(rows, ["ab"[n % 2] for n in range(40)])
    data = safetensors.torch.save({"counts": s.counts, "sums": s.sums, "scatter": upper(s.scatter)})
    card = read_card(with_card(expert_manifest, "statistics", fit=40), {"card": data})
    one, again = (column_data(card, encode_z=encode_z, seed=3) for _ in range(2))
    other = column_data(card, encode_z=encode_z, seed=4)
    assert torch.equal(one.z, again.z) and not torch.equal(one.z, other.z)
    torch.testing.assert_close(one.statistics.sums, s.sums)
    # The seed is of the card's name too, and what was drawn before is drawn again.
    own = int.from_bytes(sha256(b"3\0red").digest()[:7], "big")
    drawn, _ = s.sample(rows=256, generator=torch.Generator().manual_seed(own))
    assert torch.equal(one.z, drawn) and one.column == "red"


def test_sums_are_added_up_in_double_precision_however_they_were_saved(expert_manifest) -> None:
    z = torch.randn(40, D)
    file = statistics_card(z, ["ab"[n % 2] for n in range(40)], labels="ab")
    two = msgspec.structs.replace(expert_manifest, labels=("a", "b"))
    card = read_card(with_card(two, "statistics", fit=40), {"card": file.data})
    s = column_data(card, encode_z=no_texts, seed=0).statistics
    assert {x.dtype for x in (s.counts, s.sums, s.scatter)} == {torch.float64}
    assert torch.equal(s.scatter, s.scatter.T)
    torch.testing.assert_close(s.scatter, z.double().T @ z.double(), rtol=1e-6, atol=1e-5)
    assert (card.kind, s.labels, s.counts.tolist()) == ("statistics", ("a", "b"), [20.0, 20.0])


def test_sums_that_no_rows_can_have_are_refused(expert_manifest) -> None:
    s = Statistics.of_rows(torch.randn(40, D), ["ab"[n % 2] for n in range(40)])
    tensors = {"counts": s.counts, "sums": s.sums, "scatter": upper(s.scatter)}
    tensors["scatter"][0] -= 200.0  # a sum of squares below zero
    error = refused(
        with_card(expert_manifest, "statistics", fit=40), safetensors.torch.save(tensors)
    )
    assert error.expected and error.found and error.hint


def test_what_is_drawn_for_one_column_does_not_depend_on_the_others(expert_manifest) -> None:
    rows = torch.randn(40, D)
    s = Statistics.of_rows(rows, ["ab"[n % 2] for n in range(40)])
    data = safetensors.torch.save({"counts": s.counts, "sums": s.sums, "scatter": upper(s.scatter)})
    cards = [
        read_card(
            with_card(msgspec.structs.replace(expert_manifest, id=name), "statistics", fit=40),
            {"card": data},
        )
        for name in ("red", "green", "blue")
    ]

    def drawn(options) -> dict[str, torch.Tensor]:
        return {c.column: column_data(c, encode_z=encode_z, seed=3).z for c in options}

    one, other = drawn(cards), drawn(cards[::-1])
    assert all(torch.equal(one[name], other[name]) for name in one)
    assert not torch.equal(one["red"], one["green"])


@pytest.mark.parametrize("kind", ["vectors", "statistics"])
def test_a_card_that_lacks_a_tensor_is_refused_by_its_name(expert_manifest, kind) -> None:
    data = safetensors.torch.save({"other": torch.zeros(1)})
    with pytest.raises(CardError, match=r"card of expert 'red': found no tensor '(fit_z|counts)'"):
        read_card(with_card(expert_manifest, kind, fit=1), {"card": data})


def test_a_texts_card_without_fit_rows_cannot_teach(expert_manifest) -> None:
    rows = write_rows([CardRow(text="a", label="a", part="gate")])
    card = read_card(with_card(expert_manifest, "texts", fit=0, gate=1), {"card": rows})
    with pytest.raises(CardError, match="card of expert 'red' has no fit rows"):
        column_data(card, encode_z=no_texts, seed=0)


def test_a_vectors_card_may_bring_the_sums_of_all_rows(expert_manifest) -> None:
    rows = torch.randn(40, D)
    labels = ["ab"[n % 2] for n in range(40)]
    everything = Statistics.of_rows(rows, labels)
    file = vectors_card(
        fit_z=rows[:4],
        fit_labels=labels[:4],
        gate_h=rows[4:8],
        gate_labels=labels[4:8],
        labels=expert_manifest.labels,
        eps=1e-5,
        statistics=everything,
    )
    assert file.data is not None
    card = read_card(with_card(expert_manifest, "vectors", fit=4, gate=4), {"card": file.data})
    data = column_data(card, encode_z=no_texts, seed=0)
    assert torch.equal(data.z, rows[:4])
    assert (
        data.statistics.labels == expert_manifest.labels
        and float(data.statistics.counts.sum()) == 40
    )
    torch.testing.assert_close(data.statistics.scatter.float(), everything.scatter.float())


def test_a_none_card_cannot_teach_a_router(expert_manifest) -> None:
    for bare in (with_card(expert_manifest, "none"), nameless(expert_manifest)):
        card = read_card(bare, {})
        with pytest.raises(CardError) as caught:
            column_data(card, encode_z=encode_z, seed=0)
        error = caught.value
        assert (card.kind, error.found) == ("none", "none") and "expert 'red'" in error.problem
        assert error.expected == "texts, vectors or statistics" and "disable" in error.hint


def nameless(manifest: ExpertManifest) -> ExpertManifest:
    return msgspec.structs.replace(manifest, card=CardRef(kind="texts"))


def test_the_backbone_column_learns_from_what_is_nobodys_domain() -> None:
    rows = [
        BackgroundRow(text="x"),
        BackgroundRow(text="yy", domain="red"),
    ]
    both = background_data(rows, column="backbone", composed=["green"], encode_z=encode_z)
    one = background_data(rows, column="backbone", composed=["red"], encode_z=encode_z)
    assert both is not None and len(both.z) == 2
    assert (both.column, both.statistics.labels) == ("backbone", ("",))
    assert both.statistics.counts.tolist() == [2.0]
    assert one is not None and one.z[:, 0].tolist() == [1.0]
    assert background_data(rows[1:], column="b", composed=["red"], encode_z=encode_z) is None


def test_a_bad_row_is_named_by_its_line() -> None:
    data = b'{"text": "a", "label": "b", "part": "fit"}\n\n{"text": 3}\n'
    with pytest.raises(UsageError, match="the card, line 3: expected a JSON object with text"):
        parse_rows(data, CardRow, source="the card")


def test_a_vectors_card_is_evaluated_on_features_it_gives_back(expert_manifest) -> None:
    gate_h = 3 * torch.randn(4, D) + 1
    file = vectors_card(
        fit_z=torch.randn(2, D),
        fit_labels=["a", "b"],
        gate_h=gate_h,
        gate_labels=["a"] * 4,
        labels=expert_manifest.labels,
        eps=1e-5,
    )
    card = read_card(with_card(expert_manifest, "vectors", fit=2, gate=4), {"card": file.data})
    h, rows = gate_rows([card], encode=no_texts)
    torch.testing.assert_close(h, gate_h)
    assert {(r.text, r.label, r.domain) for r in rows} == {("", "a", "red")} and len(rows) == 4
    assert gate_rows([card], encode=no_texts, vectors=False)[1] == []


def test_gate_rows_of_texts_stand_before_those_of_vectors_and_may_be_wider(expert_manifest) -> None:
    """What other experts read beside h is not known of a row whose text stayed at home."""
    gate_h = torch.randn(1, D).half()
    file = vectors_card(
        fit_z=torch.randn(2, D).half(),
        fit_labels=["a", "b"],
        gate_h=gate_h,
        gate_labels=["b"],
        labels=expert_manifest.labels,
        eps=1e-5,
    )
    cards = [
        read_card(with_card(expert_manifest, "vectors", fit=2, gate=1), {"card": file.data}),
        read_card(with_card(expert_manifest, "texts", fit=2, gate=1), {"card": texts_card()}),
    ]
    assert cards[0].z is not None and cards[0].z.dtype == torch.float32

    def wide(texts) -> torch.Tensor:
        return torch.nn.functional.pad(encode_z(texts).repeat(2, 1), (0, 3), value=1.0)

    def twice(rows) -> list[redhost.Row]:
        return [r for r in rows for _ in range(2)]

    segment = FeatureSegment(key="s", width=3, normalised=False, compute=None)
    layout = FeatureLayout(width=D, segments=(segment,))
    backbone: Any = SimpleNamespace(unit_rows=twice, layout=layout)
    h, rows = gate_rows(cards, encode=wide, backbone=backbone)
    assert [(r.text, r.label) for r in rows] == [("ccc", "a"), ("ccc", "a"), ("", "b")]
    assert (h.shape, h.dtype) == ((3, D + 3), torch.float32)
    torch.testing.assert_close(h[2, :D], gate_h[0].float(), atol=0.02, rtol=0.02)
    assert h[:2, D:].eq(1).all() and h[2, D:].eq(0).all()


def test_texts_of_several_rows_each_are_one_class(expert_manifest) -> None:
    """Where text is generated: a row is a token, and which answer was whose is not known."""
    card = read_card(with_card(expert_manifest, "texts", fit=2, gate=1), {"card": texts_card()})
    data = column_data(card, encode_z=lambda texts: encode_z(texts).repeat(2, 1), seed=0)
    assert (data.statistics.labels, data.statistics.counts.tolist()) == (("",), [4.0])


def test_a_statistics_card_refuses_to_give_single_rows_away() -> None:
    z = torch.randn(9, D)
    with pytest.raises(CardError, match="at least 5 rows of each label, found fewer of b"):
        statistics_card(z, ["a"] * 5 + ["b"] * 4, labels=["a", "b"])
    file = statistics_card(z, ["a"] * 9, labels=["a"])
    tensors = safetensors.torch.load(file.data)
    torch.testing.assert_close(tensors["sums"][0], z.sum(0))


def shown_beside_sums(
    manifest: ExpertManifest, shown: torch.Tensor, summed: torch.Tensor
) -> tuple[ExpertManifest, bytes]:
    """Return a card of vectors with rows of two labels in turn and the sums of others."""
    one_hot = torch.nn.functional.one_hot(torch.arange(len(summed)) % 2).float()
    tensors = {
        "fit_z": shown,
        "fit_label": torch.arange(len(shown)) % 2,
        **NO_GATE,
        "counts": one_hot.sum(0),
        "sums": one_hot.T @ summed,
        "scatter": upper(summed.T @ summed),
    }
    return with_card(manifest, "vectors", fit=len(shown)), safetensors.torch.save(tensors)


@pytest.mark.parametrize(
    ("shown", "gate", "refused"),
    [(50, 0, False), (49, 0, True), (40, 9, True), (3, MAX_ROWS, False)],
)
def test_a_number_of_rows_is_vouched_for_by_those_shown(
    expert_manifest, shown, gate, refused
) -> None:
    """Or a card would have all the weight it says it has."""
    z = torch.randn(BACKED * 50, D, generator=torch.Generator().manual_seed(0))
    file = vectors_card(
        fit_z=z[:shown],
        fit_labels=["ab"[n % 2] for n in range(shown)],
        gate_h=z[:gate],
        gate_labels=["ab"[n % 2] for n in range(gate)],
        labels=("a", "b"),
        eps=1e-5,
        statistics=Statistics.of_rows(z, ["ab"[n % 2] for n in range(len(z))]),
    )
    manifest = with_card(expert_manifest, "vectors", fit=shown, gate=gate)
    if not refused:
        assert read_card(manifest, {"card": file.data}).statistics is not None
        return
    with pytest.raises(CardError, match=f"sums of at most {BACKED} times as many rows"):
        read_card(manifest, {"card": file.data})


@pytest.mark.parametrize("rows", [3, 5, 12, 400])
def test_sums_of_the_rows_shown_are_taken_however_few(expert_manifest, rows) -> None:
    for seed in range(20):
        z = torch.randn(rows, D, generator=torch.Generator().manual_seed(seed))
        z[::2] += 1
        manifest, data = shown_beside_sums(expert_manifest, z[: max(2, rows // 4)], z)
        assert read_card(manifest, {"card": data}).statistics is not None


@pytest.mark.parametrize("kind", ["another's", "moved", "labels swapped"])
def test_sums_of_other_rows_than_are_shown_are_refused(expert_manifest, kind) -> None:
    """A card with its own rows and another expert's sums would attract that expert's texts."""
    z = torch.randn(200, D, generator=torch.Generator().manual_seed(0))
    z[::2] += 1
    other = {
        "another's": torch.randn(200, D, generator=torch.Generator().manual_seed(1)) - 0.5,
        "moved": z + 0.3,
        "labels swapped": z.roll(1, 0),
    }
    manifest, data = shown_beside_sums(expert_manifest, z[:64], other[kind])
    with pytest.raises(CardError) as caught:
        read_card(manifest, {"card": data})
    assert "means" in str(caught.value.found)


def test_rows_keep_their_labels_where_the_sums_have_no_others(expert_manifest) -> None:
    card = read_card(with_card(expert_manifest, "texts", fit=2, gate=1), {"card": texts_card()})
    assert column_data(card, encode_z=encode_z, seed=0).labels == ("a", "b")
    z = torch.randn(3, D, generator=torch.Generator().manual_seed(0))
    for known, labels in ((("a", "b", "a"), ("a", "b")), (("a", "a", "a"), ())):
        sums = Statistics.of_rows(z, known)
        data = column_data(replace(card, statistics=sums), encode_z=encode_z, seed=0)
        assert data.labels == labels


def test_gates_use_as_many_words_without_a_label_as_there_are_with_one() -> None:
    labels = ("none", "a", "none", "none")
    rows = tuple(CardRow(text="x" * n, label=y, part="gate") for n, y in enumerate(labels, 1))
    card = Card(column="red", kind="texts", rows=rows)
    given = (card, replace(card, task=replace(CLASSIFICATION, unit=Words())))
    (every, _), (h, used) = (gate_rows([card], encode=encode_z) for card in given)
    assert every[:, 0].tolist() == [1.0, 2.0, 3.0, 4.0]
    assert h[:, 0].tolist() == [1.0, 2.0] and [r.label for r in used] == ["none", "a"]
