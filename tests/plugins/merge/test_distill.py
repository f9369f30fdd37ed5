"""Merging: one expert that answers as the composition does, and nothing else touched."""

from __future__ import annotations

import dataclasses
from contextlib import nullcontext

import pytest
import torch
from redhost_author.project import package_in
from redhost_author.testing import expert_project
from redhost_author.training.packaging import statistics_card
from redhost_merge.distill import (
    DistillationBatch,
    DistillSettings,
    Merged,
    distill,
    divergence,
    merge,
    own_texts,
)

import redhost
from redhost.core.bus.bus import LayerNorm
from redhost.core.bus.experts import LowRank
from redhost.core.composition.recompose import compose
from redhost.core.digests import tensor_digest

FAST = DistillSettings(rank=16, epochs=120, learning_rate=1e-2)


@pytest.fixture(scope="module")
def composed(backbone_folder, expert_folders) -> redhost.ComposedModel:
    torch.set_num_threads(1)
    return compose(backbone_folder, list(expert_folders.values())).composed


@pytest.fixture(scope="module")
def inputs(texts_of) -> list[str]:
    return [t for w in ("red", "green", "blue") for t, _ in texts_of(w, 160, start=200)]


def fold(composed, inputs, project, *, settings=FAST, name="all") -> Merged:
    return merge(
        composed,
        inputs,
        expert_id=name,
        project=project,
        encode=composed.backbone.encode,
        settings=settings,
    )


def test_the_merged_expert_answers_as_the_composition_and_touches_nothing(
    composed, inputs, tmp_path, backbone_folder
) -> None:
    before = [tensor_digest(m.state_dict()) for m in (*composed.bus.experts, composed.bus.router)]
    merged = fold(composed, inputs, tmp_path / "red-expert-all")
    after = [tensor_digest(m.state_dict()) for m in (*composed.bus.experts, composed.bus.router)]
    assert before == after
    assert merged.agreement >= 0.9 and merged.kl < 0.3
    assert merged.after["overall"] > merged.before["overall"] - 0.1
    assert merged.parameters["merged"] < merged.parameters["composition"]
    alone = compose(backbone_folder, [tmp_path / "red-expert-all" / "src" / "red_expert_all"])
    labels = [a.label for a in alone.composed.answer(inputs[:40])]
    routed = [a.label for a in composed.answer(inputs[:40])]
    assert sum(x == y for x, y in zip(labels, routed, strict=True)) >= 34


def test_the_same_seed_gives_the_same_bytes(composed, inputs, tmp_path) -> None:
    for name in ("one", "two"):
        fold(composed, inputs, tmp_path / name, settings=dataclasses.replace(FAST, epochs=5))
    weights = [
        next((tmp_path / n).rglob("expert.safetensors")).read_bytes() for n in ("one", "two")
    ]
    assert weights[0] == weights[1]


def test_a_folder_that_exists_and_too_few_inputs_are_refused(composed, inputs, tmp_path) -> None:
    with pytest.raises(redhost.UsageError, match="there already"):
        fold(composed, inputs, tmp_path)
    with pytest.raises(redhost.UsageError, match="too few inputs"):
        fold(composed, inputs[:3], tmp_path / "new")
    assert not (tmp_path / "new").exists()


def test_inputs_that_the_composition_declines_do_not_count(redhost_backbone, tmp_path) -> None:
    expert = expert_project(tmp_path / "e", "odd", redhost_backbone)
    folders = [package_in(p) for p in (redhost_backbone, expert)]
    composed = compose(folders[0], folders[1:]).composed
    others = [f"nothing {n}" for n in range(40)]
    assert {a.label for a in composed.answer(others)} == {"none"}
    with pytest.raises(redhost.UsageError, match="found 0, and 40 that are declined"):
        fold(composed, others, tmp_path / "new")
    assert not (tmp_path / "new").exists()


def test_without_inputs_the_cards_and_the_background_do(composed) -> None:
    texts = own_texts(composed)
    assert set(texts) >= {r.text for r in composed.background}
    gate = {r.text for c in composed.cards.values() for r in c.rows if r.part == "gate"}
    assert not gate & set(texts)


def test_cards_without_texts_are_nothing_to_learn_from(
    composed, backbone, backbone_folder, expert_folders, build_expert, texts_of, tmp_path
) -> None:
    """From the background alone everything would be lost: refused before and after."""
    norm = LayerNorm(width=backbone.width, eps=backbone.eps)
    rows = texts_of("red", 40, start=40)
    z = norm(backbone.encode([t for t, _ in rows]))
    card = statistics_card(z, [y for _, y in rows], labels=("a", "b"))
    mute = build_expert(tmp_path / "mute", "red", card=card)
    with_mute = compose(
        backbone_folder, [mute, expert_folders["green"], expert_folders["blue"]]
    ).composed
    with pytest.raises(redhost.UsageError, match="--data") as e:
        own_texts(with_mute)
    assert "red" in e.value.found and "green" not in e.value.found
    others = [f"nothing {n}" for n in range(24)]
    merged = fold(composed, others, tmp_path / "wreck", name="wreck")
    assert merged.after["overall"] < merged.before["overall"] - 0.2
    with pytest.raises(redhost.errors.HarmError, match="--data"):
        merged.refuse_loss()
    assert (tmp_path / "wreck").is_dir()


@pytest.mark.parametrize(
    ("after", "rows", "tolerance", "refused"),
    [
        (0.9, 100, None, False),
        (0.89, 100, None, True),
        (0.8, 10, None, False),
        (0.8, 10, 10, True),
        (0.99, 100, 0, True),
        (0.0, 100, 100, False),
    ],
)
def test_a_domain_may_lose_the_tolerance(after, rows, tolerance, refused) -> None:
    found = {
        "id": "x",
        "generation": 1,
        "rows": 50,
        "declined": 0,
        "kl": 0.0,
        "agreement": after,
        "parameters": {},
        "epoch": 1,
    }
    gated = Merged(
        **found,
        before={"small": 0.5, "red": 1.0},
        after={"small": 0.5, "red": after},
        gate_rows={"small": 4, "red": rows},
    )
    ungated = Merged(**{**found, "rows": rows}, before={}, after={})
    for merged in (gated, ungated):
        with pytest.raises(redhost.errors.HarmError) if refused else nullcontext():
            merged.refuse_loss(tolerance=tolerance)


def batch(rows: int, *, seed: int) -> DistillationBatch:
    generator = torch.Generator().manual_seed(seed)
    h = torch.randn(rows, 8, generator=generator)
    teacher = torch.randn(8, 4, generator=torch.Generator().manual_seed(9))
    return DistillationBatch(h=h, z=h, p=torch.softmax(2 * h @ teacher, -1))


def student() -> LowRank:
    generator = torch.Generator().manual_seed(0)
    U = torch.randn(6, 8, generator=generator)
    return LowRank(U=U, V=torch.zeros(8, 6), activation="gelu", space="hidden")


W = torch.randn(4, 8, generator=torch.Generator().manual_seed(3))


def test_divergence_is_the_textbooks() -> None:
    one = batch(20, seed=1)
    p = torch.distributions.Categorical(probs=one.p)
    q = torch.distributions.Categorical(logits=one.h @ W.T)
    expected = torch.distributions.kl_divergence(p, q).mean()
    torch.testing.assert_close(divergence(student(), one, W), expected)


@pytest.mark.parametrize("sharpness", [0.0, 0.05])
def test_distilling_comes_near_the_teacher_and_leaves_the_student_frozen(sharpness) -> None:
    learner, valid = student(), batch(50, seed=2)
    start = float(divergence(learner, valid, W).detach())
    settings = dataclasses.replace(FAST, sharpness=sharpness, batch=32)
    distill(learner, batch(300, seed=1), valid, classifier=W, settings=settings)
    assert float(divergence(learner, valid, W)) < 0.2 * start
    assert not any(p.requires_grad for p in learner.parameters())


def test_sharpness_aware_steps_end_where_the_loss_is_flatter() -> None:
    """Mean rise of the loss within a radius of the weights, from the same start and steps."""
    rises = []
    for sharpness in (0.0, 0.5):
        learner, data = student(), batch(60, seed=1)
        settings = dataclasses.replace(FAST, sharpness=sharpness, batch=16, patience=1000)
        distill(learner, data, data, classifier=W, settings=settings)
        here, generator = float(divergence(learner, data, W)), torch.Generator().manual_seed(7)
        rise = 0.0
        for _ in range(30):
            moved = student()
            moved.load_state_dict(learner.state_dict())
            for p in moved.parameters():
                step = torch.randn(p.shape, generator=generator)
                p.data += 0.3 * step / step.norm()
            rise += float(divergence(moved.requires_grad_(False), data, W)) - here
        rises.append(rise / 30)
    assert rises[1] < rises[0]
