"""Experts of words whose answers are sets of labels."""

from __future__ import annotations

import random
from pathlib import Path

import numpy as np
import pytest
import safetensors.numpy
import torch
from redhost_author import open_for_training
from redhost_words.counts import Counts
from redhost_words.expert import CARD, COUNTS, WordsExpert
from redhost_words.ridge import solve
from redhost_words.router import WordsRouter
from scipy import sparse

import redhost
from redhost.core.composition.options import RecomposeOptions
from redhost.core.composition.recompose import compose
from redhost.core.label_sets import NONE, join_labels
from redhost.core.tasks import make_task
from redhost.testing import tiny_backbone

from .conftest import FILLERS, TEAMS, text_package, trained


def sets_of(team: str, count: int, *, seed: int) -> list[redhost.Row]:
    """Return texts with a word for each of their labels; one in five has none."""
    chance, rows = random.Random(f"{team} {seed}"), dict[str, redhost.Row]()
    for _ in range(count):
        labels = sorted(y for y in TEAMS[team] if chance.random() < 0.45)
        words = [chance.choice(FILLERS) for _ in range(6)]
        for label in labels:
            words.insert(chance.randrange(len(words)), chance.choice(TEAMS[team][label]))
        text = " ".join(words)
        rows[text] = redhost.Row(text=text, label=join_labels(labels), domain=team)
    return list(rows.values())


@pytest.fixture(scope="module")
def backbone(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("sets")
    return text_package(folder, tiny_backbone(folder / "encoder"), task=make_task("multi-label"))


@pytest.fixture(scope="module")
def packages(backbone, tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, Path]]:
    """Experts of both teams, by form."""
    folder = tmp_path_factory.mktemp("experts")
    context = open_for_training(backbone, cache=folder / "cache")
    return {
        form: {
            team: trained(
                folder / form / team,
                team,
                sets_of(team, 300, seed=0),
                context=context,
                form=form,
                card="vectors",
            )
            for team in TEAMS
        }
        for form in ("words", "linear")
    }


def test_words_find_sets_and_route_them(backbone, packages) -> None:
    later = [r for team in TEAMS for r in sets_of(team, 60, seed=1)]
    hits = {}
    for form, folders in packages.items():
        options = RecomposeOptions(router="auto")
        model = compose(backbone, [*folders.values()], options=options).composed
        answers = model.answer([r.text for r in later], each=True)
        right = [a.label == r.label for a, r in zip(answers, later, strict=True)]
        hits[form] = sum(right) / len(right)
        assert isinstance(model.bus.router, WordsRouter) == (form == "words")
        assert answers[0].by_expert.keys() == {*TEAMS}
    assert hits["words"] > max(hits["linear"], 0.7)


def test_rows_are_counted_under_their_first_label_or_none(packages) -> None:
    for team, folder in packages["words"].items():
        labels = tuple(sorted(TEAMS[team]))
        counts = Counts.load((folder / COUNTS).read_bytes(), labels=labels, other=NONE)
        assert counts.labels == (*labels, NONE) and (counts.rows > 0).all()
        assert "left_out" in safetensors.numpy.load_file(folder / CARD)


def test_rows_of_the_card_are_answered_as_if_unseen(backbone, packages) -> None:
    model = compose(
        backbone, [*packages["words"].values()], options=RecomposeOptions(router="auto")
    ).composed
    for expert in model.bus.parts():
        assert isinstance(expert, WordsExpert) and expert.gate is not None
        wide = torch.cat([expert.gate.z, expert.gate.words], dim=1)
        bare = wide.clone()
        bare[:, -2:] = 0
        assert {*expert.gate.labels} <= {*expert.labels, NONE}
        assert float((expert(wide) - expert(bare)).abs().max()) > 1e-3


def test_the_logit_of_each_label_is_that_of_a_choice_by_itself() -> None:
    chance = np.random.default_rng(0)
    z = chance.standard_normal((200, 6))
    truth = (z[:, :3] + 0.5 * chance.standard_normal((200, 3)) > 0.3).astype(np.int64)
    nothing = sparse.csr_array((200, 4))
    solved = solve(nothing, z, truth, last=6, sets=True)
    p = 1 / (1 + np.exp(-(z @ solved.states.T + solved.bias)))
    assert ((p > 0.5) == truth).mean() > 0.85
    np.testing.assert_allclose(p.mean(axis=0), truth.mean(axis=0), atol=0.07)
    # Left out: the logits of a refit, of which sums of labels need not be one.
    assert np.abs(solved.left_out).max() > 1e-3 and solved.left_out.shape == truth.shape
