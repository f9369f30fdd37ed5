"""Experts of words on another backbone: their words unchanged, their states behind the map."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from pathlib import Path

import pytest
import safetensors.torch
import torch
from redhost_author import open_for_training
from redhost_author.training.context import AuthoringContext
from redhost_port.porting import PortedExpert, port_expert
from redhost_words.counts import Counts
from redhost_words.expert import CARD, COUNTS, WORDS, WordsExpert
from redhost_words.places import Channel, Words
from redhost_words.router import WordsRouter

import redhost
from redhost.core.composition.options import RecomposeOptions
from redhost.core.composition.recompose import compose
from redhost.core.evaluation.judge import judge
from redhost.core.model.build import make_expert_module
from redhost.core.plugins.manager import Plugins
from redhost.registry.package.discover import from_folder
from redhost.registry.package.readers import ExpertFiles, read_expert
from redhost.testing import tiny_backbone

from ..words.conftest import TEAMS, text_package, texts_of, trained

TINY = Path("plugins/red-backbone-tiny/src/red_backbone_tiny").resolve()


@pytest.fixture(scope="module")
def contexts(tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[AuthoringContext]]:
    """Two backbones with one tokenizer: other weights, and other widths."""
    folders = [tmp_path_factory.mktemp("old"), tmp_path_factory.mktemp("new")]
    yield [
        open_for_training(
            text_package(folder, tiny_backbone(folder / "encoder", seed=n, width=16 + 8 * n)),
            cache=folder / "cache",
        )
        for n, folder in enumerate(folders)
    ]


@pytest.fixture(scope="module")
def experts(contexts, tmp_path_factory: pytest.TempPathFactory) -> dict[str, ExpertFiles]:
    """Experts of both teams with cards of vectors, and one with texts."""
    folder, found = tmp_path_factory.mktemp("experts"), dict[str, ExpertFiles]()
    for name, team, card in (
        *((team, team, "vectors") for team in TEAMS),
        ("texts", "fruit", "texts"),
    ):
        package = trained(folder / name, team, context=contexts[0], card=card)
        found[name] = read_expert(from_folder(package)).unwrap(name)
    return found


@pytest.fixture(scope="module")
def ports(contexts, experts) -> dict[str, PortedExpert]:
    old, new = contexts
    return {
        team: port_expert(experts[team], old=old, new=new, rows=texts_of(team, 120, seed=5))
        for team in TEAMS
    }


def built(files: ExpertFiles, on: AuthoringContext) -> WordsExpert:
    made = make_expert_module(
        files, bus=on.backbone.bus_config(), plugins=Plugins(), providers={}
    ).unwrap("it")
    assert isinstance(made, WordsExpert)
    return made


def test_words_are_carried_bit_for_bit_and_states_through_the_map(contexts, experts, ports) -> None:
    old, new = contexts
    for team, port in ports.items():
        assert port.report.share >= 0.95 and port.report.own > port.report.nothing + 0.3
        own, ported = built(experts[team], old), built(read_expert(port.files).unwrap(team), new)
        assert port.files[WORDS] == experts[team].files[WORDS]
        assert port.files[port.manifest.weights.file] == experts[team].weights
        assert port.manifest.ported.digest == experts[team].digest
        texts = [r.text for r in texts_of(team, 30, seed=9)]
        words = Channel(backbone=new.backbone)(texts)
        assert torch.equal(words, Channel(backbone=old.backbone)(texts))
        z = torch.zeros(len(texts), new.backbone.width)
        spoken = [
            e(torch.cat([zero, words], 1)) - e(zero)
            for e, zero in ((own, z.new_zeros(len(z), old.backbone.width)), (ported, z))
        ]
        torch.testing.assert_close(*spoken, atol=1e-5, rtol=1e-5)
        assert torch.equal(own.table, ported.table)
        # Hashed tokens say what words say: the map has only states.
        assert ported.W.shape[1] == ported.first_of(new.backbone) == 48 < new.backbone.width


def test_ports_route_by_counts_and_answer(contexts, ports, tmp_path) -> None:
    _, new = contexts
    for team, port in ports.items():
        port.save(tmp_path / team)
    backbone = next(Path(new.cache or "").parent.glob("red-backbone-text/src/*"))
    options = RecomposeOptions(router="auto")
    done = compose(backbone, [tmp_path / team for team in TEAMS], options=options)
    assert isinstance(done.composed.bus.router, WordsRouter)
    assert done.receipt.ported.keys() == {*TEAMS}
    rows = [r for team in TEAMS for r in texts_of(team, 60, seed=1)]
    h = done.composed.backbone.encode([r.text for r in rows])
    assert float(judge(done.composed, h, rows).hits.mean()) > 0.9
    h[:, new.backbone.width :] = 0
    assert float(judge(done.composed, h, rows).hits.mean()) < 0.9  # words decide


def test_counts_lose_the_rows_of_the_former_card_and_get_those_of_the_new(experts, ports) -> None:
    for team, port in ports.items():
        labels = port.manifest.labels
        own, new = (
            Counts.load(f[COUNTS], labels=labels) for f in (experts[team].files, port.files)
        )
        gate, fit = experts[team].manifest.card.gate, port.manifest.card.fit
        assert new.rows.sum() == own.rows.sum() - gate + fit


def test_a_card_of_texts_stays(contexts, experts) -> None:
    old, new = contexts
    expert = experts["texts"]
    port = port_expert(expert, old=old, new=new)
    assert port.files[str(port.manifest.card.file)] == expert.files[str(expert.manifest.card.file)]
    assert port.files[COUNTS] == expert.files[COUNTS]
    assert port.report.share >= 0.95


def test_another_tokenizer_is_refused(contexts, experts, tmp_path) -> None:
    other = open_for_training(TINY, cache=tmp_path)
    with pytest.raises(redhost.UsageError, match="another tokenizer"):
        port_expert(experts["fruit"], old=contexts[0], new=other)  # before rows are asked for


@pytest.mark.parametrize("change", ["words", "marks"])
def test_a_port_has_its_authors_words_and_no_marks(contexts, experts, ports, change) -> None:
    port, files = ports["fruit"], dict(ports["fruit"].files)
    name = {"words": WORDS, "marks": CARD}[change]
    tensors = safetensors.torch.load(files[name])
    if change == "words":
        tensors["Wu"] += 1
    else:
        rows = port.manifest.card.fit + port.manifest.card.gate
        tensors["left_out"] = torch.zeros(rows, len(port.manifest.labels))
    files[name] = safetensors.torch.save(tensors)
    manifest = json.loads(files["expert.json"])
    manifest["files"][name] = hashlib.sha256(files[name]).hexdigest()
    files["expert.json"] = json.dumps(manifest).encode()
    with pytest.raises(redhost.errors.ContractError, match="its author's words, and no marks"):
        built(read_expert(files).unwrap("it"), contexts[1])


def test_counts_with_rows_added_and_removed_are_those_of_the_rows() -> None:
    draw = torch.Generator().manual_seed(0)
    ids = [torch.randint(1, 30, (12,), generator=draw).tolist() for _ in range(40)]
    answers = ["ab"[n % 2] for n in range(40)]

    def words(some: slice) -> Words:
        return Words.of_tokens(ids[some], vocabulary=30)

    def counted(some: slice, fewest: int) -> Counts:
        return Counts.of_rows(words(some), answers[some], labels=("a", "b"), fewest=fewest)

    first, last = slice(0, 30), slice(30, 40)
    joined = counted(first, 1).plus(words(last), answers[last])
    left = joined.without(words(last), answers[last])
    assert left.rows.tolist() == counted(first, 1).rows.tolist()
    at = left.sums[:, [left.places.tolist().index(p) for p in counted(first, 1).places]]
    assert abs(at - counted(first, 1).sums).max() == 0
    every = counted(slice(0, 40), 1)
    index = [every.places.tolist().index(p) for p in joined.places]
    assert abs(every.sums[:, index] - joined.sums).max() == 0
