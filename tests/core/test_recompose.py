"""Recompose, in memory: law 1, the systems beside the router, all orders of discovery."""

from __future__ import annotations

import itertools

import pytest
import torch

import redhost
from redhost.core.digests import tensor_digest


@pytest.fixture(scope="module")
def outcome(backbone_folder, expert_folders) -> redhost.Outcome:
    torch.set_num_threads(1)
    return redhost.compose(backbone_folder, list(expert_folders.values()))


@pytest.mark.parametrize("router", ["evidence", "statistics", "linear", "mlp", "centroid"])
def test_every_order_of_discovery_gives_one_router(backbone_folder, expert_folders, router) -> None:
    digests = {
        redhost.compose(
            backbone_folder, order, order=redhost.Order(router=router)
        ).receipt.router.digest
        for order in itertools.permutations(expert_folders.values())
    }
    assert len(digests) == 1


def test_nothing_requires_a_gradient_afterwards(outcome) -> None:
    composed = outcome.composed
    parameters = [*composed.bus.parameters(), *composed.backbone.trunk.model.parameters()]
    assert parameters and not any(p.requires_grad for p in parameters)


def test_the_receipts_digest_is_the_routers(outcome) -> None:
    assert outcome.receipt.router.digest == tensor_digest(outcome.composed.bus.router.state_dict())


def test_law_1_would_notice_a_router_that_moves_an_expert(
    backbone_folder, expert_folders, monkeypatch
) -> None:
    """The twin: training that touches an expert shows in the receipt."""
    from redhost.core import recompose as module

    plain = module._train

    def naughty(bench, order, router, data, *, progress):
        with torch.no_grad():
            bench.candidates.attached["red"].expert.V += 1e-3
        return plain(bench, order, router, data, progress=progress)

    monkeypatch.setattr(module, "_train", naughty)
    receipt = redhost.compose(backbone_folder, list(expert_folders.values())).receipt
    moved = {i for i, c in receipt.experts.items() if c.before != c.after}
    assert moved == {"red"} and receipt.backbone.before == receipt.backbone.after


def test_systems_are_what_their_names_say(outcome) -> None:
    composed = outcome.composed
    rows = composed.evaluation
    encode = composed.backbone.encode
    hits = redhost.hits_by_system(composed, rows, encode=encode)
    bus, h = composed.bus, encode([r.text for r in rows])
    z = bus.norm(h)
    labels = torch.tensor([bus.labels.index(r.label) for r in rows])

    def right(logits: torch.Tensor) -> torch.Tensor:
        return (logits.argmax(-1) == labels).double()

    deltas = torch.stack([e(z) for e in bus.parts()], 1)
    w = composed.backbone.classifier.T
    assert torch.equal(hits["backbone"], right(h @ w))
    assert torch.equal(hits["sum"], right((h + deltas.sum(1)) @ w))
    assert torch.equal(hits["uniform"], right((h + deltas.mean(1)) @ w))
    own = torch.tensor([bus.ids.index(r.domain) for r in rows])
    assert torch.equal(hits["oracle"], right((h + deltas[torch.arange(len(rows)), own]) @ w))
    singles = [right((h + deltas[:, i]) @ w).mean() for i in range(3)]
    assert hits["best_single"].mean() == max(singles)
    alpha = bus.weights(z)
    hat = h + (alpha[:, :3, None] * deltas).sum(1)
    assert torch.equal(hits["routed"], right(hat @ w))
    one = torch.zeros_like(alpha)
    one[torch.arange(len(rows)), alpha.argmax(-1)] = 1
    assert torch.equal(hits["hard"], right((h + (one[:, :3, None] * deltas).sum(1)) @ w))


def test_leaving_one_out_equals_composing_without_it(outcome, backbone_folder, expert_folders):
    from redhost.core.leave_one_out import leave_one_out

    composed = outcome.composed
    encode = composed.backbone.encode
    matrix = leave_one_out(composed, composed.evaluation, encode=encode, plugins=redhost.Plugins())
    others = [f for name, f in expert_folders.items() if name != "red"]
    without = redhost.compose(backbone_folder, others).composed
    expected = redhost.evaluate(without, without.evaluation, encode=encode).domains
    assert matrix["red"] == expected


def test_the_backbone_column_can_be_left_out(backbone_folder, expert_folders) -> None:
    order = redhost.Order(router="linear", backbone_column=False)
    composed = redhost.compose(backbone_folder, list(expert_folders.values()), order=order).composed
    assert composed.bus.columns == ("blue", "green", "red")


def test_an_interrupted_training_freezes_everything(backbone_folder, expert_folders) -> None:
    from redhost.core.train_router import train_router

    router = redhost.build_router("mlp", redhost.BusConfig(width=16, labels=()), ("a",), 0)
    z = torch.randn(4, 16)
    data = redhost.ColumnData(column="a", z=z, statistics=redhost.Statistics.of_rows(z, ["x"] * 4))

    def stop(done: int, total: int) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        train_router(
            router, [data], columns=["a"], settings=redhost.RouterSettings(), progress=stop
        )
    assert not any(p.requires_grad for p in router.parameters())
