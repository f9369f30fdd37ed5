"""Authors and hosts: experts that read words, under a router of counts."""

from __future__ import annotations

import hashlib
import json
import random
import shutil
import string
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import msgspec
import pytest
import redhost_author
import safetensors.numpy
import torch
from redhost_author.disclosure import card_discloses
from redhost_words.counts import Counts
from redhost_words.evidence import Evidence
from redhost_words.expert import CARD, COUNTS, WORDS, WordsExpert, build_words, probe_text
from redhost_words.places import MOST, Channel, Words, channel
from redhost_words.router import WordsRouter

import redhost
from redhost.core.composition.options import RecomposeOptions
from redhost.core.composition.recompose import compose
from redhost.core.evaluation.judge import judge
from redhost.core.model.composed import ComposedModel
from redhost.core.training.router_data import columns_data
from redhost.errors import ContractError
from redhost.registry.package.manifest import parse_expert

from .conftest import TEAMS, texts_of


@pytest.fixture(scope="session")
def packages(author) -> dict[str, Path]:
    return {team: author(team) for team in TEAMS}


def composed(backbone: Path, *folders: Path, router: str = "words") -> ComposedModel:
    return compose(backbone, folders, options=RecomposeOptions(router=router)).composed


def share_right(model: ComposedModel, rows: list[redhost.Row]) -> float:
    h = model.backbone.encode([r.text for r in rows])
    return float(judge(model, h, rows).hits.mean())


LATER = [r for team in TEAMS for r in texts_of(team, 60, seed=1)]


def test_the_words_of_a_text_are_read_once_in_a_training(author, monkeypatch) -> None:
    rows = texts_of(min(TEAMS), 60, seed=3)
    read, reading = Counter[str](), Channel.words

    def counted(self: Channel, texts: Sequence[str]) -> Words:
        read.update(texts)
        return reading(self, texts)

    monkeypatch.setattr(Channel, "words", counted)
    author("once", rows)
    assert {read[r.text] for r in rows} == {1}


def test_a_label_may_be_called_none(author) -> None:
    rows = texts_of(min(TEAMS), 60, seed=3)
    first = min(r.label for r in rows)
    named = [redhost.Row(text=r.text, label="none" if r.label == first else r.label) for r in rows]
    counts = [
        safetensors.numpy.load_file(author(name, given) / COUNTS)["rows"]
        for name, given in (("plain", rows), ("named", named))
    ]
    assert sorted(counts[0]) == sorted(counts[1])


def test_the_words_of_texts_are_those_of_each_and_of_all(context) -> None:
    texts = ["", "the queen takes the rook", "a", "the queen takes the rook"]
    words = Channel(backbone=context.backbone).words(texts)
    each = [*words.each()]
    assert [len(one.places) for one in each] == words.sizes.tolist()
    assert torch.equal(Words.joined(each).segment(), words.segment())
    assert torch.equal(each[1].segment()[0], words.segment()[3])
    assert Words.joined([]).segment().shape == (0, words.segment().shape[1])


def test_words_make_answers_and_routes_surer(text_backbone, packages) -> None:
    model = composed(text_backbone, *packages.values())
    assert isinstance(model.bus.router, WordsRouter)
    h = model.backbone.encode([r.text for r in LATER])
    unknown = h.clone()
    unknown[:, model.backbone.width :] = 0
    assert float(judge(model, h, LATER).hits.mean()) > 0.95
    column = torch.tensor([model.bus.columns.index(str(r.domain)) for r in LATER])
    label = torch.tensor([model.bus.labels.index(r.label) for r in LATER])
    for answers, right in (
        (lambda x: model.bus.weights(model.bus.norm(x)), column),
        (lambda x: model.bus(x)[0], label),
    ):
        known, less = (answers(x).gather(1, right[:, None]).mean() for x in (h, unknown))
        assert 1 - known < (1 - less) / 2


@pytest.mark.parametrize("card", ["vectors", "texts", "statistics"])
def test_every_card_trains_the_router(text_backbone, author, card) -> None:
    folders = [author(team, card=card) for team in TEAMS]
    model = composed(text_backbone, *folders)
    assert isinstance(model.bus.router, WordsRouter)
    assert share_right(model, LATER) > 0.9


def test_gate_rows_of_vectors_have_their_words(text_backbone, packages) -> None:
    outcome = compose(text_backbone, [*packages.values()], options=RecomposeOptions(router="words"))
    assert outcome.receipt.accuracy.overall > 0.95
    stored = safetensors.numpy.load_file(packages["fruit"] / CARD)
    assert stored["fit"].shape[1] == stored["gate"].shape[1] == 2 * MOST


def test_the_router_is_the_same_in_any_order_and_after_a_team_has_left(
    text_backbone, packages, author
) -> None:
    first, second = packages.values()
    third = author("music", [
        redhost.Row(text=r.text.replace("rook", "drum").replace("pawn", "horn"), label="jazz")
        for r in texts_of("sport", 120, seed=2) if r.label == "chess"
    ] + [
        redhost.Row(text=r.text.replace("tee", "aria").replace("club", "alto"), label="opera")
        for r in texts_of("sport", 120, seed=3) if r.label == "golf"
    ])  # fmt: skip
    one = composed(text_backbone, first, second).bus.router.state_dict()
    other = composed(text_backbone, second, first).bus.router.state_dict()
    joined = composed(text_backbone, third, second, first)
    again = composed(text_backbone, second, first).bus.router.state_dict()
    assert joined.bus.ids == ("fruit", "music", "sport")
    for name, tensor in one.items():
        assert torch.equal(tensor, other[name]) and torch.equal(tensor, again[name])


def test_one_expert_without_counts_makes_it_the_ridge_router(
    text_backbone, packages, author
) -> None:
    folders = packages["fruit"], author("sport", form="linear")
    model, ridge = (composed(text_backbone, *folders, router=r) for r in ("words", "ridge"))
    h = model.backbone.encode([r.text for r in LATER])
    assert torch.equal(model.bus(h)[0], ridge.bus(h)[0])
    assert share_right(model, LATER) > 0.5


@pytest.mark.parametrize(
    ("rows", "plan", "form"),
    [
        (300, {}, "words"),
        (40, {}, "words"),
        (12, {}, "words"),
        (300, {"rank": 4}, "other"),
        (300, {"card": "statistics", "epsilon": 3.0}, "other"),
        (300, {"form": "residual"}, "other"),
    ],
)
def test_words_are_the_usual_form_unless_the_plan_leaves_no_room_for_them(
    author, rows, plan, form
) -> None:
    folder = author("fruit", texts_of("fruit", rows, seed=4), **{"form": None, **plan})
    manifest = parse_expert((folder / "expert.json").read_bytes()).unwrap("it")
    assert (manifest.form == "words") == (form == "words")


@pytest.mark.parametrize("card", ["vectors", "texts", "statistics", "none"])
def test_packing_says_that_words_are_shown(author, card) -> None:
    found = [
        card_discloses(parse_expert((folder / "expert.json").read_bytes()).unwrap("it"))
        for folder in (author("fruit", form=form, card=card) for form in ("words", "linear"))
    ]
    assert ["counts by label of the words" in text for text in found] == [True, False]
    assert "nothing of the rows" not in found[0]


def test_words_route_if_an_expert_has_counts(text_backbone, packages, author) -> None:
    plain = author("sport", form="linear")
    kinds = [
        composed(text_backbone, *some, router="auto").bus.router.kind
        for some in ([*packages.values()], [packages["fruit"], plain], [plain])
    ]
    assert kinds[:2] == ["words", "words"] and kinds[2] != "words"


@pytest.mark.parametrize("plain", [False, True])
def test_texts_are_routed_without_an_expert_as_they_are_with_all(
    text_backbone, packages, author, plain
) -> None:
    sport = author("sport", form="linear") if plain else packages["sport"]
    model = composed(text_backbone, packages["fruit"], sport)
    texts = [*(r.text for r in LATER), "rook", "a a a a tee"]
    answers, routes = model.answer(texts), model.chooser.route(texts)
    for alone, answer in zip(routes, answers, strict=True):
        assert alone.weights == pytest.approx(answer.weights, abs=1e-6)
    assert {r.expert for r in routes} == {"fruit", "sport"}


def forged(folder: Path, where: Path, counts: Counts) -> Path:
    """Return a copy of a package with other counts, and digests to match."""
    copy = Path(shutil.copytree(folder.parents[1], where)) / "src" / folder.name
    (copy / COUNTS).write_bytes(counts.save())
    manifest = json.loads((copy / "expert.json").read_text("utf-8"))
    manifest["files"][COUNTS] = hashlib.sha256(counts.save()).hexdigest()
    (copy / "expert.json").write_text(json.dumps(manifest), "utf-8")
    return copy


@pytest.mark.parametrize(
    ("forge", "found"),
    [
        (lambda own: replace(own, rows=own.rows * 20, sums=own.sums * 20), "other numbers"),
        (lambda own: replace(own, rows=own.rows - 1), "other numbers"),
        (lambda own: replace(own, places=own.places + 1), "not counted"),
        (lambda own: replace(own, places=own.places + 2**24), "not counted"),
        (lambda own: replace(own, sums=own.sums[::-1]), "not counted"),
    ],
)
def test_counts_of_other_rows_than_the_cards_are_refused(
    text_backbone, packages, tmp_path, forge, found
) -> None:
    folder = packages["fruit"]
    own = Counts.load((folder / COUNTS).read_bytes(), labels=("apple", "pear"))
    assert composed(text_backbone, forged(folder, tmp_path / "same", own), packages["sport"])
    with pytest.raises(ContractError, match=f"'fruit'.*{found}"):
        composed(text_backbone, forged(folder, tmp_path / "other", forge(own)), packages["sport"])


def test_an_expert_is_ridge_on_z_and_words(packages, context) -> None:
    folder = packages["fruit"]
    manifest = parse_expert((folder / "expert.json").read_bytes()).unwrap("it")
    files = {p.name: p.read_bytes() for p in folder.iterdir()}
    expert = build_words(manifest, files)
    words = safetensors.numpy.load(files["words.safetensors"])
    texts = [r.text for r in LATER[:5]]
    compute = channel(context.backbone).compute
    assert compute is not None
    segment = compute(texts)
    z = torch.nn.functional.layer_norm(
        context.backbone.encode(texts), (context.backbone.width,), eps=context.backbone.eps
    )
    delta = expert(torch.cat([z, segment], dim=1))
    for n, row in enumerate(segment):
        u = {
            int(p) - 1: float(w) for p, w in zip(row[:MOST], row[MOST : 2 * MOST], strict=True) if p
        }
        known = {p: u[p] for p in map(int, words["places"]) if p in u}
        index = [words["places"].tolist().index(p) for p in known]
        f = torch.tensor([*known.values()]) * torch.from_numpy(words["idf"][index])
        spoken = (f / f.norm()) @ torch.from_numpy(words["Wu"][index]).float()
        expected = expert.W @ z[n, : expert.W.shape[1]] + expert.b + spoken
        torch.testing.assert_close(delta[n], expected, atol=1e-4, rtol=1e-4)
    torch.testing.assert_close(expert(z), z[:, : expert.W.shape[1]] @ expert.W.T + expert.b)
    assert expert.W.shape[1] == 32 < z.shape[1]  # hashed tokens are not read


def test_files_that_do_not_fit_are_refused(packages) -> None:
    folder = packages["fruit"]
    manifest = parse_expert((folder / "expert.json").read_bytes()).unwrap("it")
    files = {p.name: p.read_bytes() for p in folder.iterdir()}
    for name, tensor in ((COUNTS, "rows"), ("words.safetensors", "idf"), (CARD, "fit")):
        tensors = safetensors.numpy.load(files[name])
        tensors[tensor] = tensors[tensor][:1].copy()
        with pytest.raises(ContractError):
            build_words(manifest, {**files, name: safetensors.numpy.save(tensors)})
    with pytest.raises(ContractError):
        build_words(manifest, {n: data for n, data in files.items() if n != COUNTS})
    with pytest.raises(ContractError):
        other = msgspec.structs.replace(manifest, labels=("apple", "pear", "plum"))
        build_words(other, files)
    counts = Counts.load(files[COUNTS], labels=manifest.labels)
    assert counts.rows.sum() > 200 and isinstance(build_words(manifest, files), WordsExpert)


@pytest.mark.parametrize("plan", [{"writes": "hidden"}, {"card": "statistics", "epsilon": 1.0}])
def test_plans_that_words_cannot_carry_out_are_refused(context, tmp_path, plan) -> None:
    plan = {"writes": "labels", **plan}
    with pytest.raises(redhost.RedhostError):
        redhost_author.train_package(
            tmp_path / "red-expert-fruit",
            redhost_author.ExpertPlan(id="fruit", form="words", **plan),
            redhost_author.split_rows(texts_of("fruit", 60, seed=0)),
            context=context,
            settings=redhost_author.ExpertSettings(space="labels"),
        )


def test_a_host_that_finds_other_words_than_the_author_refuses(
    text_backbone, packages, tmp_path, context
) -> None:
    folder = packages["fruit"]
    copy = Path(shutil.copytree(folder.parents[1], tmp_path / "other")) / "src" / folder.name
    words = safetensors.numpy.load_file(copy / WORDS)
    compute = channel(context.backbone).compute
    assert compute is not None
    assert words["probe"].tolist() == compute([probe_text(("apple", "pear"))])[0].tolist()
    words["probe"][0] += 1
    (copy / WORDS).write_bytes(data := safetensors.numpy.save(words))
    manifest = json.loads((copy / "expert.json").read_text("utf-8"))
    manifest["files"][WORDS] = hashlib.sha256(data).hexdigest()
    (copy / "expert.json").write_text(json.dumps(manifest), "utf-8")
    with pytest.raises(ContractError, match=r"apple.*another tokenizer"):
        composed(text_backbone, copy, packages["sport"])


def test_a_team_that_claims_its_rows_several_times_is_refused(
    text_backbone, packages, author
) -> None:
    chance, signs = random.Random(0), string.ascii_letters + string.digits + string.punctuation
    words = [  # tokens are characters
        redhost.Row(text=f"{r.text} {''.join(chance.choices(signs, k=20))}", label=r.label)
        for r in texts_of("sport", 120, seed=3)
    ]
    model = composed(text_backbone, packages["fruit"], author("sport", words))
    reads = model.bus.router.reads
    fruit, sport = columns_data(model, encode=model.backbone.encode, reads=reads)[:2]
    assert Evidence.of([fruit, sport])
    expert = model.bus.parts()[1]
    assert isinstance(expert, WordsExpert) and expert.gate
    own = expert.counts
    expert.counts = replace(own, rows=own.rows * 20, sums=(own.sums * 20).tocsr())
    words_of_gate = Words.of_segment(expert.gate.words)
    gate = Counts.of_rows(words_of_gate, expert.gate.labels, labels=own.labels)
    claimed = replace(sport.statistics, counts=torch.from_numpy(own.rows * 20 - gate.rows))
    with pytest.raises(ContractError, match=r"'sport'.*counted several times"):
        Evidence.of([fruit, replace(sport, statistics=claimed)])
