"""Recompose, in memory: law 1, harm, cards of every kind, all orders of discovery."""

from __future__ import annotations

import itertools

import pytest
import torch
from redhost_author.training.packaging import CardFile, statistics_card

import redhost
from redhost.core.bus.bus import LayerNorm
from redhost.core.composition.gates import harm
from redhost.core.composition.options import RecomposeOptions
from redhost.core.composition.prepare import RecomposeInputs, load_parts
from redhost.core.composition.publish import RecomposeResult
from redhost.core.composition.recompose import compose, compose_parts
from redhost.core.composition.refusal import Code, accepted
from redhost.core.composition.select import Selection
from redhost.core.digests import tensor_digest
from redhost.core.model.build import read_package
from redhost.core.receipt import Accuracy
from redhost.core.routers import build_router
from redhost.core.routers.domain_statistics import Statistics
from redhost.core.training.router import RouterSettings
from redhost.registry.environment.status import check_packages
from redhost.registry.errors import FrozenError
from redhost.registry.package.discover import from_folder


@pytest.fixture(scope="module")
def outcome(backbone_folder, expert_folders) -> RecomposeResult:
    torch.set_num_threads(1)
    return compose(backbone_folder, list(expert_folders.values()))


@pytest.mark.parametrize("router", ["evidence", "ridge", "statistics", "linear", "mlp", "centroid"])
def test_every_order_of_discovery_gives_one_router(backbone_folder, expert_folders, router) -> None:
    digests = {
        compose(
            backbone_folder, options, options=RecomposeOptions(router=router)
        ).receipt.router.digest
        for options in itertools.permutations(expert_folders.values())
    }
    assert len(digests) == 1


def test_nothing_requires_a_gradient_afterwards(outcome) -> None:
    composed = outcome.composed
    parameters = [*composed.bus.parameters(), *composed.backbone.trunk.model.parameters()]
    assert parameters and not any(p.requires_grad for p in parameters)


def test_the_receipts_digest_is_the_routers(outcome) -> None:
    assert outcome.receipt.router.digest == tensor_digest(outcome.composed.bus.router.state_dict())


@pytest.mark.parametrize("accept", [False, True])
def test_law_1_a_router_that_moves_an_expert_makes_no_composition(
    inputs, monkeypatch, accept
) -> None:
    """Control: training that leaves the same expert as it is."""
    from redhost.core.composition import train as module

    plain, options = module._train, RecomposeOptions(router="evidence", accept=accept)
    step = 1e-3

    def naughty(inputs, options, router, data, *, progress):
        with torch.no_grad():
            inputs.candidates.experts["red"].expert.V += step
        return plain(inputs, options, router, data, progress=progress)

    monkeypatch.setattr(module, "_train", naughty)
    with pytest.raises(FrozenError, match=r"moved .*: expert 'red'") as e:
        accepted(compose_parts(inputs, options))
    assert e.value.exit_code == 1 and e.value.expected != e.value.found
    step = 0.0
    receipt = accepted(compose_parts(inputs, options)).receipt
    assert all(c.before == c.after for c in (receipt.backbone, *receipt.experts.values()))


def test_the_backbone_column_can_be_left_out(backbone_folder, expert_folders) -> None:
    options = RecomposeOptions(router="linear", backbone_column=False)
    composed = compose(backbone_folder, list(expert_folders.values()), options=options).composed
    assert composed.bus.columns == ("blue", "green", "red")


@pytest.mark.parametrize(
    ("rows", "after", "tolerance"),
    [
        (20, 0.90, None),  # two rows of twenty
        (1000, 0.99, None),  # one point
        (20, 0.50, 50.0),
        (20, 1.00, 0.0),
    ],
)
def test_a_fall_within_the_tolerance_is_no_harm(rows, after, tolerance) -> None:
    assert harm(fallen_to(after, rows), tolerance=tolerance) is None


@pytest.mark.parametrize(
    ("rows", "after", "tolerance"),
    [
        (20, 0.85, None),
        (1000, 0.98, None),
        (20, 0.95, 1.0),  # a tolerance that is given is exact
        (20, 0.95, 0.0),
    ],
)
def test_a_fall_beyond_the_tolerance_is_refused(rows, after, tolerance) -> None:
    refusal = harm(fallen_to(after, rows), tolerance=tolerance)
    assert refusal is not None and (refusal.code, refusal.expert, refusal.retry) == (
        Code.HARM,
        None,
        True,
    )
    with pytest.raises(
        redhost.errors.HarmError, match=rf"domain 'red' would fall .* {rows} gate rows"
    ):
        accepted(refusal)


def fallen_to(after: float, rows: int) -> Accuracy:
    return Accuracy(
        before={"red": 1.0}, after={"red": after}, overall=None, oracle=None, rows={"red": rows}
    )


@pytest.fixture
def inputs(backbone_folder, expert_folders) -> RecomposeInputs:
    package = from_folder(backbone_folder)
    files = read_package(package)
    statuses = check_packages(map(from_folder, expert_folders.values()), backbone=files.manifest)
    selection = Selection(package=package, files=files, statuses=statuses)
    plugins = redhost.plugins.Plugins()
    return load_parts(selection, plugins=plugins, cache=None, device="cpu")


def test_a_domain_far_below_its_own_expert_is_warned_of(inputs) -> None:
    """Control: the default router, which has nothing to be warned of."""
    found = {
        router: accepted(compose_parts(inputs, RecomposeOptions(router=router))).receipt
        for router in ("blend", "evidence")
    }
    for router, receipt in found.items():
        accuracy, warned = receipt.accuracy, receipt.health.warnings if receipt.health else ()
        assert accuracy.own.keys() == accuracy.after.keys() == {"red", "green", "blue"}
        rows = [accuracy.rows[d] * x for d, x in accuracy.own.items()]
        assert sum(rows) / sum(accuracy.rows.values()) == pytest.approx(accuracy.oracle)
        below = {d for d, x in accuracy.own.items() if x - accuracy.after[d] > 0.2}
        assert below == {d for d in accuracy.own if f"expert: {d!r}" in "".join(warned)}
        assert bool(below) is (router == "blend")


@pytest.mark.parametrize("router", ["linear", "mlp"])
def test_an_interrupted_recompose_leaves_everything_frozen_and_unchanged(inputs, router) -> None:
    parts = [
        inputs.backbone.trunk.model,
        *(a.expert for a in inputs.candidates.experts.values()),
    ]
    before = [tensor_digest(part.state_dict()) for part in parts]

    def stop(done: int, total: int) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        accepted(compose_parts(inputs, RecomposeOptions(router=router), progress=stop))
    assert not any(p.requires_grad for part in parts for p in part.parameters())
    assert all(p.grad is None for part in parts for p in part.parameters())
    assert [tensor_digest(part.state_dict()) for part in parts] == before


@pytest.mark.parametrize("router", ["evidence", "statistics", "centroid", "linear", "mlp"])
def test_a_statistics_card_teaches_every_kind_of_router(
    backbone, backbone_folder, expert_folders, build_expert, tmp_path, texts_of, router
) -> None:
    norm = LayerNorm(width=backbone.width, eps=backbone.eps)
    rows = texts_of("red", 40, start=40)
    z = norm(backbone.encode([t for t, _ in rows]))
    card = statistics_card(z, [y for _, y in rows], labels=("a", "b"))
    private = build_expert(tmp_path / "private", "red", card=card)
    folders = [private, expert_folders["green"], expert_folders["blue"]]
    options = RecomposeOptions(router=router)
    one = compose(backbone_folder, folders, options=options)
    again = compose(backbone_folder, folders[::-1], options=options)
    assert one.receipt.router.digest == again.receipt.router.digest
    assert one.receipt.not_gated == ("red",)

    def weight(domain: str) -> float:
        texts = [t for t, _ in texts_of(domain, 20, start=20)]
        return sum(a.weights["red"] for a in one.composed.answer(texts)) / 20

    assert weight("red") > 2 * max(weight("green"), weight("blue"))


def test_an_expert_without_a_card_is_left_out(
    backbone_folder, expert_folders, build_expert, tmp_path
) -> None:
    mute = build_expert(tmp_path / "mute", "red", card=CardFile(kind="none"))
    receipt = compose(backbone_folder, [mute, expert_folders["green"]]).receipt
    [left] = receipt.left_out
    assert (left.id, left.code) == ("red", "card_rows") and "ships no routing card" in left.reason
    with pytest.raises(redhost.MissingError, match="ships no routing card"):
        compose(backbone_folder, [mute])


def test_an_interrupted_training_freezes_everything(backbone_folder, expert_folders) -> None:
    from redhost.core.training.router import train_router

    router = build_router("mlp", redhost.BusConfig(width=16, labels=()), ("a",), 0)
    z = torch.randn(4, 16)
    data = redhost.plugins.ColumnData(column="a", z=z, statistics=Statistics.of_rows(z, ["x"] * 4))

    def stop(done: int, total: int) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        train_router(router, [data], columns=["a"], settings=RouterSettings(), progress=stop)
    assert not any(p.requires_grad for p in router.parameters())


def test_an_experts_next_version_may_have_a_label_that_is_new(
    redhost_fake_expert, environment, tmp_path
) -> None:
    """The one before had no answer for such rows: they count as wrong before."""
    dist = redhost_fake_expert("team")
    redhost.Host.open(tmp_path, backbone="tiny-random").recompose()
    environment.uninstall(dist)
    redhost_fake_expert("team", labels=("a", "c"), seed=1)
    receipt = redhost.Host.open(tmp_path, backbone="tiny-random").recompose()
    assert receipt.generation == 2 and receipt.accuracy.before["team"] <= 0.5
    [answer] = redhost.Host.open(tmp_path).predict(["team 7"])
    assert answer.label in {"a", "c", "none"}
