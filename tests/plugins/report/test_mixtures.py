"""Every router kind over the simplex of traffic."""

from __future__ import annotations

import itertools

import msgspec
import pytest
import torch
from redhost_report.figures import draw_mixtures
from redhost_report.mixtures import MixtureSweep, sweep_mixtures
from redhost_robust.routers import KINDS as ROBUST_KINDS

import redhost
from redhost.core.composition.recompose import compose
from redhost.core.evaluation.evaluate import evaluate
from redhost.core.routers import KINDS

KINDS_HERE = ("linear", "centroid", "robust")


@pytest.fixture(scope="module")
def composed(backbone_folder, expert_folders) -> redhost.ComposedModel:
    torch.set_num_threads(1)
    return compose(backbone_folder, list(expert_folders.values())).composed


@pytest.fixture(scope="module")
def sweep(composed) -> MixtureSweep:
    return sweep_mixtures(
        composed,
        composed.evaluation,
        encode=composed.backbone.encode,
        plugins=redhost.plugins.Plugins(),
        kinds=KINDS_HERE,
    )


def test_corners_are_the_domains_own_figures(composed, sweep: MixtureSweep) -> None:
    expected = evaluate(composed, composed.evaluation, encode=composed.backbone.encode).domains
    corners = sweep.routers[composed.router_kind].corners
    assert {d: c.accuracy for d, c in corners.items()} == pytest.approx(expected)
    assert list(sweep.routers) == [composed.router_kind, *KINDS_HERE]


def test_the_worst_mixture_is_a_corner(sweep: MixtureSweep) -> None:
    """Regret and accuracy are linear in λ: no mixture of a fine grid is worse than a corner."""
    for router in sweep.routers.values():
        regret = [c.regret for c in router.corners.values()]
        accuracy = [c.accuracy for c in router.corners.values()]
        grid = [
            (a / 20, b / 20, 1 - (a + b) / 20)
            for a, b in itertools.product(range(21), repeat=2)
            if a + b <= 20
        ]
        mixed = [sum(w * r for w, r in zip(lam, regret, strict=True)) for lam in grid]
        assert max(mixed) == pytest.approx(router.worst.regret)
        assert router.worst_domain == max(router.corners, key=lambda d: router.corners[d].regret)
        assert router.worst.accuracy == min(accuracy)
        assert min(regret) <= router.regrets[0] <= router.regrets[1] <= router.regrets[2]
        assert router.regrets[2] <= router.worst.regret
        assert router.uniform.regret == pytest.approx(sum(regret) / 3)


def test_regret_is_above_the_own_experts_loss(composed, sweep: MixtureSweep) -> None:
    encode = composed.backbone.encode
    rows = [r for r in composed.evaluation if r.domain == "red"]
    h = encode([r.text for r in rows])
    answers = torch.tensor([composed.bus.labels.index(r.label) for r in rows])[:, None]
    with torch.inference_mode():
        z = composed.bus.norm(h)
        own = -composed.bus.alone(h, z, composed.bus.columns.index("red")).gather(1, answers).log()
        routed = -composed.bus(h)[0].gather(1, answers).log()
    assert sweep.reference["red"] == pytest.approx(float(own.mean()), abs=1e-6)
    corner = sweep.routers[composed.router_kind].corners["red"]
    assert corner.regret == pytest.approx(float(routed.mean() - own.mean()), abs=1e-6)


def test_by_default_every_kind_for_whole_texts_is_evaluated(composed) -> None:
    sweep = sweep_mixtures(
        composed,
        composed.evaluation[:60],
        encode=composed.backbone.encode,
        plugins=redhost.plugins.Plugins(),
    )
    assert sweep.routers.keys() == {kind.kind for kind in (*KINDS, *ROBUST_KINDS)}
    assert msgspec.json.decode(msgspec.json.encode(sweep), type=MixtureSweep) == sweep


def test_one_domain_is_no_mixture(composed) -> None:
    rows = [r for r in composed.evaluation if r.domain == "red"]
    with pytest.raises(redhost.UsageError, match="several domains"):
        sweep_mixtures(
            composed, rows, encode=composed.backbone.encode, plugins=redhost.plugins.Plugins()
        )


def test_the_picture_is_written_and_a_strange_kind_refused(sweep: MixtureSweep, tmp_path) -> None:
    draw_mixtures(sweep, tmp_path / "m.svg")
    assert "nats" in (tmp_path / "m.svg").read_text("utf-8")
    with pytest.raises(redhost.UsageError, match="cannot be written"):
        draw_mixtures(sweep, tmp_path / "m.strange")
