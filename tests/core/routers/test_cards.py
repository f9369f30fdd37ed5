"""Cards: what a router may learn, from rows, vectors or sums alone."""

from __future__ import annotations

import msgspec
import pytest
import safetensors.torch
import torch

import redhost
from redhost.core.routers.cards import background_data, column_data, gate_rows, read_card
from redhost.core.types import parse_rows
from redhost.registry.errors import CardError, UsageError
from redhost.registry.package.manifest import CardRef, ExpertManifest
from redhost.registry.package.readers import read_expert

D = 16


@pytest.fixture
def manifest(expert_folders) -> ExpertManifest:
    files = read_expert({p.name: p.read_bytes() for p in expert_folders["red"].iterdir()}).unwrap(
        "it"
    )
    return files.manifest


def with_card(manifest: ExpertManifest, kind: str, **fields: object) -> ExpertManifest:
    card = CardRef(kind=kind, file=None if kind == "none" else "card", sha256=None, **fields)
    return msgspec.structs.replace(manifest, card=card)


def encode_z(texts) -> torch.Tensor:
    return torch.stack([torch.full((D,), float(len(t))) for t in texts])


def no_texts(texts) -> torch.Tensor:
    assert not texts
    return torch.empty(0, D)


def texts_card() -> bytes:
    rows = [("a", "a", "fit"), ("bb", "b", "fit"), ("ccc", "a", "gate")]
    return redhost.authoring.write_rows(
        redhost.authoring.CardRow(text=t, label=y, part=p) for t, y, p in rows
    )


def test_a_texts_card_teaches_from_fit_and_is_evaluated_on_gate(manifest) -> None:
    card = read_card(with_card(manifest, "texts", fit=2, gate=1), {"card": texts_card()})
    data = column_data(card, encode_z=encode_z, seed=0)
    assert data.column == "red" and data.z[:, 0].tolist() == [1.0, 2.0]
    assert data.statistics.labels == ("a", "b")
    h, rows = gate_rows([card], encode=encode_z)
    assert [(r.text, r.label, r.domain) for r in rows] == [("ccc", "a", "red")]
    assert h[:, 0].tolist() == [3.0]


def test_a_card_with_other_counts_than_stated_is_refused(manifest) -> None:
    with pytest.raises(CardError, match="fit rows: expected 5, found 2"):
        read_card(with_card(manifest, "texts", fit=5, gate=1), {"card": texts_card()})


def test_a_card_with_labels_not_in_the_manifest_is_refused(manifest) -> None:
    strange = msgspec.structs.replace(manifest, labels=("a",))
    with pytest.raises(CardError, match="found b"):
        read_card(with_card(strange, "texts", fit=2, gate=1), {"card": texts_card()})


def test_a_vectors_card_needs_no_encoding(manifest) -> None:
    z = torch.randn(3, D)
    data = safetensors.torch.save({"fit_z": z, "fit_label": torch.tensor([0, 1, 1])})
    card = read_card(with_card(manifest, "vectors", fit=3), {"card": data})
    learnt = column_data(card, encode_z=lambda _: pytest.fail("encoded"), seed=0)
    assert torch.equal(learnt.z, z)
    assert learnt.statistics.counts.tolist() == [1.0, 2.0]
    assert gate_rows([card], encode=no_texts)[1] == []


def test_a_statistics_card_is_drawn_from_with_a_seed_of_its_own(manifest) -> None:
    rows = torch.randn(40, D)
    s = redhost.plugins.Statistics.of_rows(rows, ["ab"[n % 2] for n in range(40)])
    data = safetensors.torch.save({"counts": s.counts, "sums": s.sums, "scatter": s.scatter})
    card = read_card(with_card(manifest, "statistics", fit=40), {"card": data})
    one, again = (column_data(card, encode_z=encode_z, seed=3) for _ in range(2))
    other = column_data(card, encode_z=encode_z, seed=4)
    assert torch.equal(one.z, again.z) and not torch.equal(one.z, other.z)
    torch.testing.assert_close(one.statistics.sums, s.sums)


def test_what_is_drawn_for_one_column_does_not_depend_on_the_others(manifest) -> None:
    rows = torch.randn(40, D)
    s = redhost.plugins.Statistics.of_rows(rows, ["ab"[n % 2] for n in range(40)])
    data = safetensors.torch.save({"counts": s.counts, "sums": s.sums, "scatter": s.scatter})
    cards = [
        read_card(
            with_card(msgspec.structs.replace(manifest, id=name), "statistics", fit=40),
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
def test_a_card_that_lacks_a_tensor_is_refused_by_its_name(manifest, kind) -> None:
    data = safetensors.torch.save({"other": torch.zeros(1)})
    with pytest.raises(CardError, match=r"card of expert 'red': found no tensor '(fit_z|counts)'"):
        read_card(with_card(manifest, kind, fit=1), {"card": data})


def test_a_texts_card_without_fit_rows_cannot_teach(manifest) -> None:
    rows = redhost.authoring.write_rows(
        [redhost.authoring.CardRow(text="a", label="a", part="gate")]
    )
    card = read_card(with_card(manifest, "texts", fit=0, gate=1), {"card": rows})
    with pytest.raises(CardError, match="has no fit rows"):
        column_data(card, encode_z=no_texts, seed=0)


def test_a_vectors_card_may_bring_the_sums_of_all_rows(manifest) -> None:
    rows = torch.randn(40, D)
    labels = ["ab"[n % 2] for n in range(40)]
    everything = redhost.plugins.Statistics.of_rows(rows, labels)
    file = redhost.authoring.vectors_card(
        fit_z=rows[:4],
        fit_labels=labels[:4],
        gate_h=rows[4:8],
        gate_labels=labels[4:8],
        labels=manifest.labels,
        eps=1e-5,
        statistics=everything,
    )
    assert file.data is not None
    card = read_card(with_card(manifest, "vectors", fit=4, gate=4), {"card": file.data})
    data = column_data(card, encode_z=no_texts, seed=0)
    assert torch.equal(data.z, rows[:4])
    assert data.statistics.labels == manifest.labels and float(data.statistics.counts.sum()) == 40
    torch.testing.assert_close(data.statistics.scatter.float(), everything.scatter.float())


def test_a_none_card_cannot_teach_a_router(manifest) -> None:
    card = read_card(with_card(manifest, "none"), {})
    with pytest.raises(CardError, match="expert 'red' ships no routing card"):
        column_data(card, encode_z=encode_z, seed=0)


def test_the_backbone_column_learns_from_what_is_nobodys_domain() -> None:
    rows = [
        redhost.authoring.BackgroundRow(text="x"),
        redhost.authoring.BackgroundRow(text="yy", domain="red"),
    ]
    both = background_data(rows, column="backbone", composed=["green"], encode_z=encode_z)
    one = background_data(rows, column="backbone", composed=["red"], encode_z=encode_z)
    assert both is not None and len(both.z) == 2
    assert one is not None and one.z[:, 0].tolist() == [1.0]
    assert background_data(rows[1:], column="b", composed=["red"], encode_z=encode_z) is None


def test_a_bad_row_is_named_by_its_line() -> None:
    data = b'{"text": "a", "label": "b", "part": "fit"}\n\n{"text": 3}\n'
    with pytest.raises(UsageError, match="the card, line 3: expected a JSON object with text"):
        parse_rows(data, redhost.authoring.CardRow, source="the card")


def test_a_vectors_card_is_evaluated_on_features_it_gives_back(manifest) -> None:
    gate_h = 3 * torch.randn(4, D) + 1
    file = redhost.authoring.vectors_card(
        fit_z=torch.randn(2, D),
        fit_labels=["a", "b"],
        gate_h=gate_h,
        gate_labels=["a"] * 4,
        labels=manifest.labels,
        eps=1e-5,
    )
    card = read_card(with_card(manifest, "vectors", fit=2, gate=4), {"card": file.data})
    h, rows = gate_rows([card], encode=no_texts)
    torch.testing.assert_close(h, gate_h)
    assert [r.label for r in rows] == ["a"] * 4
    assert gate_rows([card], encode=no_texts, vectors=False)[1] == []


def test_a_statistics_card_refuses_to_give_single_rows_away() -> None:
    z = torch.randn(9, D)
    with pytest.raises(CardError, match="at least 5 rows of each label, found fewer of b"):
        redhost.authoring.statistics_card(z, ["a"] * 5 + ["b"] * 4, labels=["a", "b"])
    file = redhost.authoring.statistics_card(z, ["a"] * 9, labels=["a"])
    tensors = safetensors.torch.load(file.data)
    torch.testing.assert_close(tensors["sums"][0], z.sum(0))
