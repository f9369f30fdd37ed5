"""Many experts on one host: the same results, whatever is computed together or in pieces."""

from __future__ import annotations

import random
from collections.abc import Sequence
from pathlib import Path

import pytest
import redhost_author
import torch
from redhost_author.training.expert import ExpertRows, train_expert
from redhost_author.training.packaging import ExpertDraft, save_expert, texts_card
from redhost_robust.routers import ShortlistRouter

import redhost
from redhost.core.backbones.feature_cache import FeatureCache
from redhost.core.batching import batched_slices
from redhost.core.bus.bus import LayerNorm
from redhost.core.composition.options import RecomposeOptions
from redhost.core.composition.publish import RecomposeResult
from redhost.core.composition.recompose import compose
from redhost.core.evaluation import judge as judging
from redhost.core.evaluation.judge import judge, judge_oracle
from redhost.core.evaluation.routing_health import routing_health
from redhost.core.model.composed import by_domain
from redhost.core.model.verify import CachedBusEncoder
from redhost.core.routers.cards import gate_rows
from redhost.core.routers.centroid import CentroidRouter
from redhost.core.routers.evidence import EvidenceRouter
from redhost.core.training import router_data as learning
from redhost.core.training.router_data import columns_data
from redhost.core.types import CardRow
from redhost.registry.environment import status as states
from redhost.registry.package.manifest import BackboneRef, Training
from redhost.registry.queries.settings import set_disabled

from ..conftest import LABELS

COUNT = 41
SHORTLIST = RecomposeOptions(router="shortlist")


def labelled(place: int, part: str, count: int) -> list[CardRow]:
    """Return rows of a domain: it names its place, and its labels differ from its neighbours'."""
    labels = (LABELS[place % 6], LABELS[(place + 1) % 6])
    start = {"train": 0, "fit": 40, "gate": 60}[part]
    return [
        CardRow(text=f"{place:02d} {n} {y}", label=y, part=part)
        for n in range(start, start + count)
        for y in [labels[n % 2]]
    ]


@pytest.fixture(scope="module")
def folders(backbone, manifest, tmp_path_factory) -> list[Path]:
    """Forty-one experts as packages' folders, of unequal ranks and in three forms."""
    torch.set_num_threads(1)
    norm = LayerNorm(width=backbone.width, eps=backbone.eps)
    made = []
    for place in range(COUNT):
        rows = labelled(place, "train", 40)
        h = backbone.encode([r.text for r in rows])
        space = "labels" if place % 10 == 9 else "hidden"
        labels = tuple(dict.fromkeys(r.label for r in rows))
        expert = train_expert(
            ExpertRows(h=h, z=norm(h), answers=[r.label for r in rows]),
            backbone,
            labels=labels,
            settings=redhost_author.ExpertSettings(
                form="mlp" if place % 10 == 5 else "residual",
                space=space,
                rank=1 + place % 7,
                epochs=8,
                learning_rate=2e-2,
                seed=place,
            ),
        ).expert
        name = f"many{place:02d}"
        folder = redhost_author.write_project(
            tmp_path_factory.mktemp(name), kind="expert", package_id=name, summary=name
        )
        draft = ExpertDraft(
            expert=expert,
            id=name,
            backbone=BackboneRef(name=manifest.id, fingerprint=manifest.fingerprint),
            domain=f"texts that begin with {place:02d}",
            card=texts_card([*labelled(place, "fit", 8), *labelled(place, "gate", 4)]),
            canary=norm(h[:4]),
            training=Training(data="0" * 64, seed=place, epochs=8),
        )
        save_expert(folder, draft)
        made.append(folder)
    return made


@pytest.fixture(scope="module")
def outcome(backbone_folder, folders) -> RecomposeResult:
    return compose(backbone_folder, folders, options=SHORTLIST)


@pytest.fixture
def host(environment, backbone_folder, folders, home) -> redhost.Host:
    """A host that has composed the first forty; the last one is installed and disabled."""
    environment.install(backbone_folder.parents[1])
    for folder in folders:
        environment.install(folder.parents[1], code="raise AssertionError('imported')\n")
    set_disabled(home, "many40")
    host = redhost.Host.open(home, backbone="toy")
    host.recompose(router="shortlist")
    set_disabled(home, "many40", to=False)
    return host


def in_pieces(monkeypatch: pytest.MonkeyPatch, module, numbers: int) -> list[int]:
    """Let a module take a few rows at a time; return a list that fills with the pieces' sizes."""
    sizes: list[int] = []

    def counted(rows: int, *, cost: int):
        for piece in batched_slices(rows, cost=cost, numbers=numbers):
            sizes.append(piece.stop - piece.start)
            yield piece

    monkeypatch.setattr(module, "batched_slices", counted)
    return sizes


def gates(composed: redhost.ComposedModel) -> tuple[torch.Tensor, list[redhost.Row]]:
    return gate_rows(list(composed.cards.values()), encode=composed.backbone.encode)


def test_pieces_cover_every_row_once_and_stay_small() -> None:
    for rows, cost in ((0, 7), (1, 10**9), (10, 3), (1000, 17)):
        found = [list(range(rows))[p] for p in batched_slices(rows, cost=cost, numbers=100)]
        assert [n for piece in found for n in piece] == list(range(rows))
        assert all(len(piece) * cost <= max(100, cost) for piece in found)


def test_any_order_of_discovery_gives_one_router_and_one_receipt(
    backbone_folder, folders, outcome
) -> None:
    shuffled = random.Random(3).sample(folders, len(folders))
    other = compose(backbone_folder, shuffled, options=SHORTLIST).receipt
    assert other.router.digest == outcome.receipt.router.digest
    assert other.experts == outcome.receipt.experts
    assert other.accuracy == outcome.receipt.accuracy
    assert len(other.experts) == COUNT


def test_judging_in_pieces_says_the_same(outcome, monkeypatch) -> None:
    composed = outcome.composed
    h, rows = gates(composed)
    whole, oracle = judge(composed, h, rows), judge_oracle(composed, h, rows).hits
    health = routing_health(composed, h, rows)
    sizes = in_pieces(monkeypatch, judging, 10 * COUNT * composed.backbone.width)
    batched = judge(composed, h, rows)
    assert max(sizes) == 10 and sum(sizes) == len(rows)
    assert torch.equal(batched.hits, whole.hits)
    assert torch.equal(batched.heaviest, whole.heaviest)
    assert torch.allclose(batched.usage, whole.usage, atol=1e-6)
    assert torch.equal(judge_oracle(composed, h, rows).hits, oracle)
    again = routing_health(composed, h, rows, result=batched)
    assert again.usage == pytest.approx(health.usage, abs=1e-6)
    assert (again.dead, again.loudness) == (health.dead, health.loudness)


def test_judging_is_answering(outcome) -> None:
    """Control: what `judge` counts is what the bus says, row by row."""
    composed = outcome.composed
    h, rows = gates(composed)
    with torch.inference_mode():
        p, alpha = composed.bus(h)
    right = [
        composed.bus.labels[int(k)] == r.label for k, r in zip(p.argmax(-1), rows, strict=True)
    ]
    batched = judge(composed, h, rows)
    assert batched.hits.tolist() == [float(x) for x in right]
    assert torch.equal(batched.heaviest, alpha.argmax(-1))
    assert 0 < sum(right) < len(right)


def test_owners_and_means_are_those_of_the_rows(outcome) -> None:
    composed = outcome.composed
    _, rows = gates(composed)
    rows = [
        *rows,
        redhost.Row(text="x", label="a", domain="stranger"),
        redhost.Row(text="y", label="a"),
    ]
    owners = composed.owners(rows).tolist()
    assert owners == [composed.bus.ids.index(r.domain) for r in rows[:-2]] + [-1, -1]
    weights = composed.oracle_weights(rows)
    assert weights.sum(-1).tolist() == [1.0] * (len(rows) - 2) + [0.0, 0.0]
    hits = torch.rand(len(rows), dtype=torch.float64)
    means = by_domain(hits, rows)
    assert list(means) == sorted({*composed.bus.ids, "stranger"})
    for domain, mean in means.items():
        mine = [float(x) for x, r in zip(hits, rows, strict=True) if r.domain == domain]
        assert mean == pytest.approx(sum(mine) / len(mine))


@pytest.mark.parametrize(
    ("kind", "computed", "queried"),
    [
        (CentroidRouter, (), False),
        (EvidenceRouter, ("confidences",), False),
        (ShortlistRouter, (), True),
    ],
)
def test_only_what_the_router_reads_is_computed(outcome, kind, computed, queried) -> None:
    composed = outcome.composed
    router = kind(width=composed.backbone.width, columns=composed.bus.columns)
    data = columns_data(composed, encode=composed.backbone.encode, reads=router.reads)
    assert [d.column for d in data] == list(composed.bus.columns)
    assert all(tuple(d.signals.known) == computed for d in data)
    for d in data:
        for name in {"confidences", "output_features"}.difference(computed):
            with pytest.raises(redhost.UsageError, match=f"a router reads '{name}'"):
                d.signals[name]
        if queried:
            d.signals.query(torch.ones(len(d.z), len(data), dtype=torch.bool))


def test_confidences_read_in_slices_are_the_same(outcome, monkeypatch) -> None:
    composed = outcome.composed
    reads = {"confidences", "output_features"}
    whole = columns_data(composed, encode=composed.backbone.encode, reads=reads)
    queried = columns_data(composed, encode=composed.backbone.encode, reads={"query"})
    sizes = in_pieces(monkeypatch, learning, 10 * COUNT * composed.backbone.width)
    batched = columns_data(composed, encode=composed.backbone.encode, reads=reads)
    assert len(sizes) > 1
    for one, other, third in zip(whole, batched, queried, strict=True):
        assert torch.allclose(one.signals.output_features, other.signals.output_features, atol=1e-5)
        assert torch.equal(other.signals.output_features[..., 0], other.signals.confidences)
        everybody = torch.ones(len(one.z), len(whole), dtype=torch.bool)
        assert torch.allclose(third.signals.query(everybody), one.signals.confidences, atol=1e-5)


def test_all_texts_are_encoded_together(outcome) -> None:
    composed, encoded = outcome.composed, []

    def encode(texts: Sequence[str]) -> torch.Tensor:
        encoded.append(len(texts))
        return composed.backbone.encode(texts)

    columns_data(composed, encode=encode, reads=composed.bus.router.reads)
    assert encoded == [COUNT * 8 + len(composed.background)]


def test_the_background_is_encoded_once_for_all(backbone) -> None:
    encoded = []

    def encode(texts: Sequence[str]) -> torch.Tensor:
        encoded.append(tuple(texts))
        return backbone.encode(texts)

    encoder = CachedBusEncoder(backbone, encode=encode)
    first, again, other = encoder(["a", "b"]), encoder(["a", "b"]), encoder(["b"])
    assert encoded == [("a", "b"), ("b",)]
    assert torch.equal(first, again) and torch.equal(other, first[1:])


def test_features_of_many_texts_are_remembered(backbone, tmp_path) -> None:
    cache = FeatureCache(tmp_path, backbone=backbone, fingerprint="f" * 64)
    texts = [f"text {n}" for n in range(1203)]
    first, done = cache.encode(texts), []
    again = cache.encode(texts[::-1], progress=lambda *batched: done.append(batched))
    assert not done and torch.equal(first, again.flip(0))


def test_a_row_is_added_and_no_other_moves(host) -> None:
    before = host.composed.bus.router
    receipt = host.attach("many40", level="row")
    after = host.composed.bus.router
    assert receipt.router.level == "row" and receipt.router.moved == ("many40",)
    assert len(receipt.experts) == COUNT and all(
        c.before == c.after for c in receipt.experts.values()
    )
    for name in ("weight", "bias", "voice"):
        retained = [after.columns.index(c) for c in before.columns]
        assert torch.equal(getattr(after, name)[retained], getattr(before, name))
    new = after.columns.index("many40")
    assert bool(after.weight[new].any())


def test_attached_in_full_is_composed_at_once(host, outcome) -> None:
    """Control of the row: level full moves the others too, to where composing all would."""
    before = host.composed.bus.router
    receipt = host.attach("many40")
    after = host.composed.bus.router
    assert receipt.router.digest == outcome.receipt.router.digest
    assert receipt.router.level == "full"
    assert not torch.equal(
        after.weight[[after.columns.index(c) for c in before.columns]], before.weight
    )


def test_attaching_checks_the_package_that_is_requested(host, monkeypatch) -> None:
    read = []
    plain = states.read_expert
    monkeypatch.setattr(states, "read_expert", lambda p: read.append(p.dist) or plain(p))
    host.attach("many40")
    assert read == ["red-expert-many40"]


def test_a_damaged_package_is_refused_when_it_is_requested(host, environment) -> None:
    weights = environment.package("red-expert-many40") / "expert.safetensors"
    weights.write_bytes(weights.read_bytes()[:-1] + b"x")
    with pytest.raises(redhost.RedhostError, match="many40"):
        host.attach("many40")
    assert host.generations.current() == 1


def test_steps_add_up_to_the_seconds(outcome) -> None:
    receipt = outcome.receipt
    assert list(receipt.steps) == ["digests", "choose", "learn", "train", "judge"]
    assert sum(receipt.steps.values()) == pytest.approx(receipt.seconds)
    assert receipt.router.seconds == receipt.steps["train"]
