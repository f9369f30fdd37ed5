"""Evaluation: every system by hand, from the published equations."""

from __future__ import annotations

import msgspec
import pytest
import torch
from redhost_report.figures import draw_confusion

import redhost
from redhost.core.composition.options import RecomposeOptions
from redhost.core.composition.recompose import compose
from redhost.core.evaluation.evaluate import columns_data, evaluate, hits_by_system
from redhost.core.evaluation.judge import judge
from redhost.core.label_scores import macro_f1
from redhost.core.routers import build_router
from redhost.core.routers.ridge import RidgeRouter
from redhost.registry.errors import CompositionError, UsageError


@pytest.fixture(scope="module")
def composed(backbone_folder, expert_folders) -> redhost.ComposedModel:
    torch.set_num_threads(1)
    return compose(backbone_folder, list(expert_folders.values())).composed


def test_systems_are_what_their_names_say(composed) -> None:
    rows = composed.evaluation
    encode = composed.backbone.encode
    hits = hits_by_system(composed, rows, encode=encode)
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
    answers = [torch.softmax((h + deltas[:, i]) @ w, -1) for i in range(3)]
    answers.append(torch.softmax(h @ w, -1))  # the backbone column's
    mixed = sum(alpha[:, i : i + 1] * p for i, p in enumerate(answers))
    assert torch.equal(hits["mixture"], right(mixed))


def test_scores_by_label_are_those_of_what_is_answered(composed) -> None:
    rows = composed.evaluation
    found = evaluate(composed, rows, encode=composed.backbone.encode)
    answers = [a.label for a in composed.answer(r.text for r in rows)]
    pairs = list(zip((r.label for r in rows), answers, strict=True))
    assert found.confusion is not None and found.labels is not None
    for label, answered in found.confusion.items():
        assert answered == {a: pairs.count((label, a)) for a in answered}
    assert sum(n for row in found.confusion.values() for n in row.values()) == found.rows
    assert sum(s.rows for s in found.labels.values()) == found.rows
    hits = sum(found.confusion[y].get(y, 0) for y in found.confusion)
    assert hits / found.rows == pytest.approx(found.overall)
    assert found.macro_f1 == macro_f1(found.labels)


@pytest.mark.parametrize("domain", [None, "somebody else"])
def test_without_rows_of_its_own_experts_there_is_no_oracle(composed, domain) -> None:
    rows = [msgspec.structs.replace(r, domain=domain) for r in composed.evaluation]
    found = evaluate(composed, rows, encode=composed.backbone.encode)
    assert found.oracle is None and found.table["oracle"] == {}
    known = evaluate(composed, [*rows, composed.evaluation[0]], encode=composed.backbone.encode)
    assert known.oracle is not None and "n/a" in found._repr_html_()


def test_a_confusion_table_is_drawn(composed, tmp_path) -> None:
    found = evaluate(composed, composed.evaluation, encode=composed.backbone.encode)
    assert found.confusion is not None
    draw_confusion(found.confusion, tmp_path / "c.svg")
    drawn = (tmp_path / "c.svg").read_text()
    assert all(f"<!-- {label} -->" in drawn for label in found.confusion)
    with pytest.raises(UsageError, match="cannot be written"):
        draw_confusion(found.confusion, tmp_path / "c.strange")


def test_the_centroid_baseline_is_the_nearest_mean_of_the_fit_rows(composed, texts_of) -> None:
    bus, encode, rows = composed.bus, composed.backbone.encode, composed.evaluation
    fit = {i: [r.text for r in composed.cards[i].rows if r.part == "fit"] for i in bus.ids}
    fit["backbone"] = [r.text for r in composed.background if r.domain is None]
    means = torch.stack([bus.norm(encode(fit[c])).mean(0) for c in bus.columns])
    h = encode([r.text for r in rows])
    z = bus.norm(h)
    distance = torch.cdist(z, means)
    nearest = distance.argmin(-1)
    kind = build_router("centroid", composed.backbone.bus_config(), bus.columns, 0)
    assert kind is not None and kind.solve is not None
    kind.solve(columns_data(composed, encode=encode))
    assert torch.equal(kind(z).argmax(-1), nearest)
    labels = torch.tensor([bus.labels.index(r.label) for r in rows])
    p = bus.probabilities(h, z, torch.softmax(kind(z), -1))
    hits = hits_by_system(composed, rows, encode=encode)["centroid"]
    assert torch.equal(hits, (p.argmax(-1) == labels).double())


def test_weights_of_a_built_in_router_that_are_no_numbers_may_come_from_a_card(
    backbone_folder, expert_folders
) -> None:
    """It is no plugin's fault: a newcomer is left out for it."""
    options = RecomposeOptions(router="ridge")
    folders = list(expert_folders.values())
    model = compose(backbone_folder, folders, options=options).composed
    router = model.bus.router
    assert isinstance(router, RidgeRouter)
    with torch.no_grad():
        router.bias.fill_(torch.nan)
    h = model.backbone.encode([r.text for r in model.evaluation])
    with pytest.raises(CompositionError, match="under router 'ridge' does not answer"):
        judge(model, h, model.evaluation)


def test_overall_macro_and_worst_are_of_the_routed_system(composed) -> None:
    rows = [*composed.evaluation[:9], redhost.Row(text="red 99 b", label="b")]
    result = evaluate(composed, rows, encode=composed.backbone.encode)
    hits = hits_by_system(composed, rows, encode=composed.backbone.encode)["routed"]
    assert result.rows == 10 and sum(result.counts.values()) == 9  # one row is in no domain
    assert result.overall == pytest.approx(float(hits.mean()))
    assert result.macro == pytest.approx(sum(result.domains.values()) / len(result.domains))
    assert result.worst == min(result.domains.values())


def test_a_label_that_nobody_can_answer_is_wrong_and_not_a_crash(composed) -> None:
    rows = [redhost.Row(text="red 99 b", label="unknown to all", domain="red")]
    result = evaluate(composed, rows, encode=composed.backbone.encode)
    assert result.overall == 0 and result.oracle == 0
