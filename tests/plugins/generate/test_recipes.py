"""The package that a causal expert becomes."""

from __future__ import annotations

import json

import pytest
import redhost_author
import torch
from redhost_author.project import ExpertPlan, write_plan
from redhost_author.testing import assert_expert_contract
from redhost_author.training.recipes import train_package
from redhost_author.verifying import Verifier
from redhost_generate.documents import split_documents

import redhost
from redhost.core.bus.evidence import readout_factor
from redhost.core.composition.options import RecomposeOptions
from redhost.core.composition.recompose import compose
from redhost.registry.errors import UsageError
from redhost.registry.package.manifest import dumps
from redhost.registry.package.readers import read_expert
from redhost.registry.package.rules import check_compatible


def files_of(folder) -> dict[str, bytes]:
    return {p.name: p.read_bytes() for p in folder.iterdir() if p.is_file()}


def test_a_causal_expert_keeps_its_contract(speaking_experts, context) -> None:
    for folder in speaking_experts.values():
        files = read_expert(files_of(folder)).unwrap("it")
        manifest = files.manifest
        assert manifest.reads.causal is True and manifest.labels == ()
        assert manifest.writes.vocabulary == context.manifest.tokenizer
        assert check_compatible(manifest, context.manifest) == ()
        assert Verifier().expert(files, backbone=None) == ()
        assert dumps(manifest) == files_of(folder)["expert.json"]
        assert_expert_contract(folder)


def test_every_expert_beats_the_base_at_home(speaking_experts) -> None:
    for folder in speaking_experts.values():
        metrics = json.loads((folder / "expert.json").read_text())["training"]["metrics"]
        assert 0 < metrics["bits_per_byte"] < 0.9 * metrics["backbone_bits_per_byte"]


def test_the_router_is_causal_and_its_experts_are_gated_on_tokens(outcome, composed) -> None:
    receipt = outcome.receipt
    assert receipt.router.kind == "causal" == composed.router_kind
    assert receipt.router.columns == ("code", "sums", "tales", "backbone")
    for expert_id, card in composed.cards.items():
        gate = [r.text for r in card.rows if r.part == "gate"]
        assert receipt.accuracy.rows[expert_id] == sum(len(t.encode()) for t in gate)
    assert receipt.not_gated == ()
    assert all(c.before == c.after for c in (receipt.backbone, *receipt.experts.values()))


def test_a_router_is_made_twice_with_the_same_bits(outcome, speaker_folder, speaking_experts):
    folders = list(speaking_experts.values())[::-1]
    assert compose(speaker_folder, folders).router_bytes == outcome.router_bytes


def test_training_is_deterministic(train_one, speaking_experts, tmp_path) -> None:
    again = train_one(tmp_path, "sums")
    assert files_of(again) == files_of(speaking_experts["sums"])


@pytest.mark.parametrize(
    ("plan", "message"),
    [
        ({"writes": "labels"}, "expected writes hidden, reads and writes at the end, found writes"),
        ({"reads_tap": "1"}, "taps 1 and final"),
        ({"card": "vectors"}, "cannot ship a card of vectors: expected texts, or none"),
    ],
)
def test_plans_for_other_backbones_are_refused(context, rows_of, tmp_path, plan, message) -> None:
    made = ExpertPlan(**{"id": "mine", "rank": 4, **plan})
    redhost_author.write_project(tmp_path, kind="expert", package_id="mine", summary="x")
    write_plan(tmp_path, made)
    settings = redhost_author.ExpertSettings(space="hidden", rank=4, epochs=1)
    splits = split_documents(rows_of("sums", 8))
    with pytest.raises(UsageError, match=message):
        train_package(tmp_path, made, splits, context=context, settings=settings)


def test_without_rows_aside_an_expert_is_trained_all_the_same(context, rows_of, tmp_path) -> None:
    """Validation texts that all stand in the card leave none to stop early on."""
    rows = rows_of("sums", 8)
    known = list(split_documents(rows).fit)
    splits = split_documents(rows, valid=known)
    assert splits.valid == ()
    plan = ExpertPlan(id="mine", rank=4)
    redhost_author.write_project(tmp_path, kind="expert", package_id="mine", summary="x")
    settings = redhost_author.ExpertSettings(space="hidden", rank=4, epochs=1)
    made = train_package(tmp_path, plan, splits, context=context, settings=settings)
    assert made.training.metrics["bits_per_byte"] > 0


def test_a_readout_factor_measures_what_the_whole_head_would() -> None:
    generator = torch.Generator().manual_seed(0)
    head, delta = (torch.randn(n, 16, generator=generator) for n in (300, 50))
    factor = readout_factor(head)
    assert factor is not None and factor.shape == (16, 16)
    assert torch.allclose((delta @ factor.T).norm(dim=1), (delta @ head.T).norm(dim=1), rtol=1e-4)
    small = head[:8]
    assert readout_factor(small) is small and readout_factor(None) is None


def test_answers_are_tokens_by_number() -> None:
    task = redhost.plugins.make_task("generation")
    assert task.head.targets(["3", "0"]).tolist() == [3, 0]
    for strange in ("x", "-1", "1.5", "²", ""):
        with pytest.raises(UsageError, match="not every answer is a token"):
            task.head.targets(["3", strange])


def test_the_router_reads_the_bus_vector_and_the_contexts(composed) -> None:
    from redhost.core.model.build import make_router

    router, width = composed.bus.router, composed.backbone.width
    assert router.output == "residual" and "answers" in router.reads and not router.closed_form
    assert router.weight.shape == (4, width + 2 * width) == (4, router.width)
    assert router.weight.abs().max() > 0
    for kind in ("statistics", "linear", "evidence", "robust"):
        made = make_router(
            kind,
            bus=composed.backbone.bus_config(),
            columns=composed.bus.columns,
            seed=0,
            plugins=redhost.plugins.Plugins(),
            providers={},
        )
        assert made.width == router.width


@pytest.mark.parametrize("kind", ["statistics", "evidence", "topk:k=1", "attention", "robust"])
def test_other_routers_serve_a_bus_of_tokens(
    speaker_folder, speaking_experts, kind, quick_game
) -> None:
    folders = list(speaking_experts.values())[:2]
    composed = compose(speaker_folder, folders, options=RecomposeOptions(router=kind)).composed
    with torch.inference_mode():
        p, alpha = composed.bus(composed.backbone.encode(["def f(x)"]))
    assert p.shape == (8, composed.bus.answers) and alpha.shape == (8, 3)
    for rows in (p, alpha):
        assert torch.allclose(rows.sum(-1), torch.ones(8), atol=1e-5)


def test_a_causal_router_has_no_closed_form(speaker_folder, speaking_experts) -> None:
    with pytest.raises(UsageError, match="a 'causal' router has no level 'zero'"):
        compose(
            speaker_folder,
            list(speaking_experts.values()),
            options=RecomposeOptions(router="causal", level="zero"),
        )
