"""`redhost explain` on experts and a router that read words: they add up to what is answered."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import msgspec
import pytest
import torch
from click.testing import CliRunner
from redhost_author.training.context import open_for_training
from redhost_report.cli import explain as explain_command
from redhost_report.explain import Explanation, explain
from redhost_report.words import word_evidence
from redhost_words.places import KEY
from tokenizers import Tokenizer
from tokenizers.models import WordPiece
from tokenizers.pre_tokenizers import Whitespace
from transformers import PreTrainedTokenizerFast

import redhost
from redhost.core.bus.bus import BACKBONE
from redhost.core.composition.options import RecomposeOptions
from redhost.core.composition.recompose import compose
from redhost.testing import Environment, tiny_backbone

from .conftest import FILLERS, TEAMS, text_package, texts_of, trained

TEXTS = ("the rook is on a pawn", "apple cider of the core", "perry and perry", "<b> & mats to it")


@pytest.fixture(scope="module")
def backbone(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The package of a tiny encoder whose tokens are words."""
    folder = tmp_path_factory.mktemp("words")
    encoder = tiny_backbone(folder / "encoder")
    labels = [w for team in TEAMS.values() for words in team.values() for w in words]
    signs = ["<pad>", "<unk>", *FILLERS, *labels, "##s"]
    tokens = Tokenizer(WordPiece({s: n for n, s in enumerate(signs)}, unk_token=signs[1]))
    tokens.pre_tokenizer = Whitespace()
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=tokens, unk_token=signs[1], pad_token=signs[0], model_max_length=64
    )
    tokenizer.save_pretrained(encoder)
    return text_package(folder, encoder)


@pytest.fixture(scope="module")
def packages(backbone: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    context = open_for_training(backbone, cache=tmp_path_factory.mktemp("cache"))
    forms = {"fruit": "words", "sport": "words", "music": "linear"}
    rows = [
        r if r.label != "judo" else redhost.Row(text=r.text, label="jazz")
        for r in texts_of("sport", 90, seed=2)
    ]
    return {
        team: trained(
            tmp_path_factory.mktemp(team) / f"red-expert-{team}",
            team,
            rows if team == "music" else (),
            context=context,
            form=form,
        )
        for team, form in forms.items()
    }


@pytest.fixture
def home(
    redhost_environment: Environment, backbone: Path, packages: dict[str, Path], tmp_path: Path
) -> Path:
    for folder in (backbone, packages["fruit"], packages["sport"]):
        redhost_environment.install(folder.parents[1])
    redhost.Host.open(tmp_path / "home", backbone="text").recompose()
    return tmp_path / "home"


def run(*arguments: str) -> str:
    done = CliRunner().invoke(explain_command, arguments, catch_exceptions=False)
    assert done.exit_code == 0
    return done.output


@pytest.mark.parametrize("most", [0, 1, 5, 100])
def test_words_and_the_encoder_add_up_to_the_answers_log_odds(home, most) -> None:
    host = redhost.Host.open(home)
    bus, h = host.composed.bus, host.composed.backbone.encode(TEXTS)
    z, each = bus.norm(h), {}
    for columns, p in bus.own_answers(h, z):
        each |= {bus.ids[k]: p[n] for n, k in enumerate(columns)}
    for n, one in enumerate(explain(host, TEXTS, words=most)):
        router, *experts = one.words[::-1]
        assert router.part == "router" and [e.part for e in experts] == ["expert"] * (n < 3)
        for evidence in one.words:
            listed = sum(w.log_odds for w in evidence.words)
            total = listed + evidence.other_words + evidence.encoder
            assert total == pytest.approx(evidence.log_odds, abs=1e-4)
            signs = [w.log_odds > 0 for w in evidence.words]
            assert sum(signs) <= most and len(signs) - sum(signs) <= most
            assert signs == sorted(signs, reverse=True)
        first, second = [*one.weights][:2]
        assert (router.expert, router.other_expert) == (first, second)
        if not experts:  # no expert has the largest weight
            assert (first, router.label) == (BACKBONE, "")
            continue
        [expert] = experts
        assert expert.expert == expert.other_expert == first
        p, labels = each[first][n], bus.answered_by(bus.ids.index(first))
        best = p.topk(2).indices.tolist()
        assert (expert.label, expert.other_label) == (labels[best[0]], labels[best[1]])
        odds = p[best[0]].log() - p[best[1]].log()
        assert expert.log_odds == pytest.approx(float(odds), abs=1e-4)
        assert one.by_expert[first].label == expert.label


def test_what_is_not_of_words_is_what_is_left_without_words(home) -> None:
    model = redhost.Host.open(home).composed
    h = model.backbone.encode(TEXTS)
    [(segment, rows)] = model.bus.layout.parts(h)
    assert segment.key == KEY
    rows.zero_()
    z = model.bus.norm(h)
    for n, one in enumerate(explain(redhost.Host.open(home), TEXTS[:3])):
        expert = one.words[0]
        column = model.bus.ids.index(expert.expert)
        labels, part = model.bus.answered_by(column), model.bus.ensemble.parts[column]
        delta = part(z[n : n + 1, : model.backbone.width])[0] / part.temperature
        first, second = (delta[labels.index(y)] for y in (expert.label, expert.other_label))
        assert expert.encoder == pytest.approx(float(first - second), abs=1e-4)


def test_a_word_of_a_label_is_evidence_for_it(home) -> None:
    chess, apple, pear, unknown = explain(redhost.Host.open(home), TEXTS)
    for one, label, word in (
        (chess, "chess", "rook"),
        (apple, "apple", "cider"),
        (pear, "pear", "perry"),
    ):
        assert one.label == label
        for evidence in one.words:
            assert evidence.label == label and evidence.expert in TEAMS
            assert any(word in w.written for w in evidence.words if w.log_odds > 0)
    [router] = unknown.words
    assert any(w.written == ("<", "b", ">", "&") for w in router.words)  # one unknown token


def test_the_expert_that_answers_is_explained_though_another_is_heavier(home) -> None:
    host = redhost.Host.open(home)
    model, [answer] = host.composed, host.predict(TEXTS[:1])
    z = model.bus.layout.router_input(model.bus.norm(model.backbone.encode(TEXTS[:1])))[0]
    other = dataclasses.replace(answer, weights={"fruit": 0.6, "sport": 0.3, BACKBONE: 0.1})
    plain, (expert, router) = (word_evidence(model, a, z=z) for a in (answer, other))
    assert answer.label == expert.label == router.label == "chess"
    assert expert == plain[0] and expert.expert == router.expert == "sport"
    assert router.other_expert == "fruit"


def test_the_routers_scores_are_those_of_its_weights(home) -> None:
    host = redhost.Host.open(home)
    model = host.composed
    for one in explain(host, TEXTS):
        router = one.words[-1]
        rows = {
            i: len(model.cards[i].statistics.labels) if i in model.cards else 1
            for i in (router.expert, router.other_expert)
        }
        log = torch.tensor([one.weights[i] for i in rows]).log()
        odds = float(log[0] - log[1])
        # log Σ exp of a column's scores is within log(labels) above the largest.
        most = torch.tensor(max(rows.values())).log()
        assert abs(router.log_odds - odds) <= float(most) + 1e-4


def test_all_three_ways_of_the_command_show_words(home, tmp_path) -> None:
    options = ("--home", str(home))
    [one] = msgspec.json.decode(run(TEXTS[0], *options, "--json"), type=list[Explanation])
    assert one.words == explain(redhost.Host.open(home), TEXTS[:1])[0].words
    text = run(TEXTS[0], *options)
    for evidence in one.words:
        for number in (
            evidence.encoder,
            evidence.other_words,
            *(w.log_odds for w in evidence.words),
        ):
            assert f"{number:+6.2f}" in text
        assert f"({evidence.log_odds:+.2f})" not in text and evidence.label in text
    assert "rook" in text and "by expert sport" in text and "by the router" in text
    page = tmp_path / "why.html"
    run(*TEXTS, *options, "--html", str(page), "--words", "1")
    shown = page.read_text("utf-8")
    assert shown.count("the encoder") == 2 * len(TEXTS) - 1 and "rook" in shown
    few = json.loads(run(TEXTS[0], *options, "--json", "--words", "1"))
    assert all(len(evidence["words"]) <= 2 for evidence in few[0]["words"])


@pytest.mark.parametrize(
    ("teams", "router", "parts"),
    [
        (("fruit", "sport"), "words", {"expert", "router"}),
        (("fruit", "sport"), "ridge", {"expert"}),
        (("fruit", "music"), "words", {"expert"}),
        (("music",), "words", set()),
        (("fruit",), "words", {"expert", "router"}),
    ],
)
def test_words_are_shown_where_they_are_read(
    backbone, packages, monkeypatch, teams, router, parts, tmp_path
) -> None:
    folders = [packages[team] for team in teams]
    model = compose(backbone, folders, options=RecomposeOptions(router=router)).composed
    host = redhost.Host.open(tmp_path)
    monkeypatch.setattr(host, "_current", lambda *, lazy: model)
    [one] = explain(host, ["apple cider of the core"])
    assert {evidence.part for evidence in one.words} == parts
    if not parts:
        assert "words" not in msgspec.json.decode(msgspec.json.encode(one))


@pytest.mark.parametrize("card", ["texts", "statistics"])
def test_rows_of_the_router_have_the_labels_of_every_card(
    backbone, card, tmp_path, monkeypatch
) -> None:
    context = open_for_training(backbone, cache=tmp_path / "cache")
    folders = [trained(tmp_path / f"red-expert-{t}", t, context=context, card=card) for t in TEAMS]
    model = compose(backbone, folders, options=RecomposeOptions(router="words")).composed
    host = redhost.Host.open(tmp_path)
    monkeypatch.setattr(host, "_current", lambda *, lazy: model)
    for one, label in zip(explain(host, TEXTS), ("chess", "apple", "pear"), strict=False):
        assert one.words[1].label == label
