"""Rows of a card that were learnt from are answered as if they had not been."""

from __future__ import annotations

import itertools
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import redhost_author
import safetensors.torch
import torch
from redhost_words import recipe as recipes
from redhost_words.counts import Counts
from redhost_words.evidence import Evidence
from redhost_words.expert import CARD, COUNTS, WordsExpert, build_words
from redhost_words.marks import keys_of, marked
from redhost_words.places import PAIRS, WIDTH, Words, channel
from redhost_words.ridge import EXACT, solve
from redhost_words.router import WordsRouter
from torch import nn

import redhost
from redhost.core.composition.options import RecomposeOptions
from redhost.core.composition.recompose import compose
from redhost.core.model.composed import ComposedModel
from redhost.core.model.stored import StoredExperts
from redhost.core.routers.least_squares import LeastSquares
from redhost.core.training.router_data import columns_data
from redhost.registry.home.composition import Member
from redhost.registry.home.store import Store
from redhost.registry.package.manifest import parse_expert
from redhost.registry.package.readers import read_manifest

from .conftest import TEAMS, texts_of
from .test_ridge import rows_of


@pytest.fixture(scope="module")
def packages(author) -> list[Path]:
    return [author(team) for team in TEAMS]


@pytest.fixture(scope="module")
def model(text_backbone, packages) -> ComposedModel:
    return compose(text_backbone, packages, options=RecomposeOptions(router="words")).composed


def evidence_of(model: ComposedModel) -> Evidence:
    router = model.bus.router
    assert isinstance(router, WordsRouter)
    data = columns_data(model, encode=model.backbone.encode, reads=router.reads)
    return Evidence.of(data)


def test_a_mark_is_of_the_expert_and_the_row_and_twins_have_none() -> None:
    rows = torch.arange(12.0).reshape(4, 3)
    twins = torch.cat([rows, rows[:1]])
    one, other = (marked(twins, expert=name) for name in ("a", "b"))
    assert torch.equal(one[:, :3], twins) and keys_of(one)[[0, 4]].tolist() == [0, 0]
    assert len({*keys_of(one)[1:4].tolist(), *keys_of(other)[1:4].tolist()}) == 6
    assert torch.equal(marked(rows.flip(0), expert="a")[1], one[2])
    assert one[:, 3:].max() < 2**24 and keys_of(torch.zeros(2, 5)).tolist() == [0, 0]


def test_what_leaving_out_adds_to_logits_is_what_a_refit_answers() -> None:
    f, z, target = rows_of(40)
    solved = solve(f, z, np.eye(2, dtype=np.int64)[target], last=4)
    logits = f @ solved.words + z @ solved.states.T
    # W and Wᵤ are linear in α, so c, λ and β follow from them.
    right = np.eye(2)[target] - np.bincount(target) / 40
    tried = []
    for c, penalty in itertools.product((0.0, 0.1, 0.3, 1.0, 3.0), (0.03, 0.1, 0.3, 1.0)):
        kernel = (f @ f.T).toarray() + c * z @ z.T / z.shape[1]
        score = kernel @ np.linalg.solve(kernel + penalty * np.eye(40), right)
        beta = float((score * logits).sum() / np.square(score).sum())
        tried.append((float(np.abs(beta * score - logits).max()), c, penalty, beta))
    best, c, penalty, beta = min(tried)
    kernel = (f @ f.T).toarray() + c * z @ z.T / z.shape[1]
    assert best < 1e-9
    for n in range(40):
        others = np.arange(40) != n
        inner = kernel[np.ix_(others, others)] + penalty * np.eye(39)
        refit = beta * kernel[n, others] @ np.linalg.solve(inner, right[others])
        np.testing.assert_allclose(logits[n] + solved.left_out[n], refit, atol=1e-9)


def test_the_expert_subtracts_what_it_learnt_from_a_row_of_its_card_alone(
    model, packages, context
) -> None:
    expert, other = model.bus.parts()
    assert isinstance(expert, WordsExpert) and isinstance(other, WordsExpert)
    stored = safetensors.torch.load_file(packages[0] / CARD)
    gate, card = expert.gate, safetensors.torch.load_file(packages[0] / "card.safetensors")
    assert gate is not None and torch.equal(gate.z, card["gate_z"])
    wide = torch.cat([gate.z, gate.words], dim=1)
    bare = wide.clone()
    bare[:, -2:] = 0
    less = stored["left_out"][len(stored["fit"]) :]
    torch.testing.assert_close(expert(wide) - expert(bare), less, atol=1e-5, rtol=1e-4)
    assert torch.equal(other(wide), other(bare))
    assert (less.abs().amax(dim=1) > 0).all()
    compute = channel(context.backbone).compute
    assert compute is not None and not compute([texts_of("fruit", 1, seed=0)[0].text])[:, -2:].any()


def test_the_router_scores_a_marked_row_as_if_its_sums_did_not_have_it(model) -> None:
    router, evidence = model.bus.router, evidence_of(model)
    chosen = evidence.choose()
    beta, slope, *weights = chosen.scalars
    prior, labels = np.array(weights) @ evidence.priors, len(evidence.totals)
    expert = model.bus.parts()[0]
    rows = {int(key): n for n, key in enumerate(evidence.keys) if key}
    assert len(rows) == len(router.marks) > 60
    for words in expert.card_segment.values():
        for row in words[:5]:
            n = rows[int(keys_of(row[None]))]
            z, target = evidence.z[n], int(evidence.target[n])
            one = replace(
                evidence.statistics.times(1),
                counts=evidence.statistics.counts - torch.eye(labels)[target].double(),
                sums=evidence.statistics.sums - torch.eye(labels)[target].double()[:, None] * z,
                scatter=evidence.statistics.scatter - torch.outer(z.double(), z.double()),
            )
            solved = LeastSquares.solve(one, penalty=chosen.penalty)
            sums = evidence.sums.toarray()
            sums[target] -= evidence.given[[n]].toarray()[0]
            u = evidence.words[[n]].toarray()[0]
            counted = np.log(sums + chosen.pseudo) @ u - u.sum() * np.log(
                sums.sum(1) + chosen.pseudo * PAIRS
            )
            # A word that no text of a card has is in no sum.
            missing = float(Words.of_segment(row[None]).weights.sum()) - u.sum()
            counted += missing * (
                np.log(chosen.pseudo) - np.log(sums.sum(1) + chosen.pseudo * PAIRS)
            )
            expected = slope * (solved.weight @ z.double() + solved.bias).numpy() + prior
            expected = expected + beta * counted
            signals = model.bus.signals(
                model.bus.norm(model.backbone.layout.pad(z[None]))
                if not model.bus.ensemble.layout.segments
                else torch.cat([nn.functional.pad(z, (0, expert.width - len(z))), row])[None]
            )
            found = signals.z @ router.weight.T + router.bias + router.added(signals)
            np.testing.assert_allclose(found[0], expected, atol=2e-3)


def test_rows_without_a_mark_change_no_answer(packages) -> None:
    """All texts have the mark 0, so that an entry for twins would be added to every answer."""
    files = {p.name: p.read_bytes() for p in packages[0].iterdir() if p.is_file()}
    manifest = parse_expert(files["expert.json"]).unwrap("it")
    honest = build_words(manifest, files)
    card = safetensors.torch.load(files[CARD])
    card["fit"][1] = card["fit"][0]
    card["left_out"][:2] = 1000
    forged = build_words(manifest, {**files, CARD: safetensors.torch.save(card)})
    assert len(forged.marks) == len(honest.marks) - 2
    bare = torch.randn(3, honest.width + WIDTH, generator=torch.Generator().manual_seed(0))
    bare[:, honest.width :] = 0
    assert torch.equal(forged(bare), honest(bare))


def test_counts_cover_the_rows_that_are_left_out(packages, context) -> None:
    counts = Counts.load((packages[0] / COUNTS).read_bytes(), labels=tuple(TEAMS["fruit"]))
    rows = redhost_author.split_rows(texts_of("fruit", 300, seed=0)).rows
    assert counts.rows.sum() == len(rows)


@pytest.mark.parametrize("card", ["texts", "statistics", "vectors"])
def test_rows_are_withheld_where_no_host_could_leave_them_out(author, monkeypatch, card) -> None:
    monkeypatch.setattr(recipes, "EXACT", 100 if card == "vectors" else EXACT)
    folder = author("fruit", card=card)
    assert not (folder / CARD).exists() or "left_out" not in safetensors.torch.load_file(
        folder / CARD
    )


def test_hosts_do_not_see_labels_by_chance_answered_from_memory(text_backbone, author) -> None:
    rows = texts_of("fruit", 400, seed=5)
    chance = torch.Generator().manual_seed(0)
    answers = torch.randint(2, (len(rows),), generator=chance).tolist()
    noise = [
        redhost.Row(text=f"{r.text} {n}", label=("apple", "pear")[y], domain="fruit")
        for n, (r, y) in enumerate(zip(rows, answers, strict=True))
    ]
    try:
        folder = author("fruit", noise)
    except redhost.RedhostError:
        return  # no better than a constant: refused already
    model = compose(text_backbone, [folder], options=RecomposeOptions(router="words"))
    assert model.receipt.accuracy.overall is not None
    assert model.receipt.accuracy.overall < 0.65


def test_cards_of_a_stored_generation_have_their_words_and_marks(
    model, packages, context, tmp_path
) -> None:
    folder, store = packages[0], Store(tmp_path / "store")
    files = {p.name: p.read_bytes() for p in folder.iterdir() if p.suffix != ".py" and p.is_file()}
    _, digest = read_manifest(files["expert.json"]).unwrap("it")
    store.put(files, digest=digest)
    bus = context.backbone.bus_config()
    stored = StoredExperts(store=store, bus=bus, plugins=context.plugins)
    expert, card = stored.load(Member(id="fruit", dist="x", version="1", digest=digest))
    assert isinstance(expert, WordsExpert)
    for part in ("fit", "gate"):
        assert torch.equal(card().segment[part], model.bus.parts()[0].card_segment[part])


def test_words_that_cannot_tell_the_labels_apart_do_not_break_training(author) -> None:
    rows = [redhost.Row(text=f"hello {n}", label="ab"[n % 2]) for n in range(60)]
    try:
        author("fruit", rows)
    except redhost.RedhostError as e:
        assert "better" in str(e) or "constant" in str(e)


def test_an_expert_that_reads_fewer_states_does_not_decide_what_others_are_routed_by(
    text_backbone, packages
) -> None:
    model = compose(text_backbone, packages, options=RecomposeOptions(router="words")).composed
    one, other = model.bus.parts()
    assert isinstance(one, WordsExpert) and isinstance(other, WordsExpert)
    before = evidence_of(model).z.shape[1]
    one.W = nn.Parameter(one.W[:, :1].clone(), requires_grad=False)
    assert evidence_of(model).z.shape[1] == before == other.W.shape[1] > 1
