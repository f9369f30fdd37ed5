"""Experts at blocks, by hand: what they read, what they add, and which taps a trunk has not."""

from __future__ import annotations

import dataclasses
import threading
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from redhost_peft.graft import Graft, from_states, moved_by, states_below, token_step
from redhost_peft.inside import InsideExpert, check_taps
from redhost_peft.tap import Tap, block_at, compute_features, states_of
from torch import Tensor, nn

import redhost
from redhost.core.backbones.encoder import TextEncoder
from redhost.core.backbones.interventions import PassEnded, states_with
from redhost.core.bus.experts import ClassifierExpert, Linear
from redhost.core.bus.task import CLASSIFICATION
from redhost.core.bus.unit import WholeText
from redhost.registry.errors import ContractError
from redhost.registry.package.manifest import Features

from .test_lora import encoder_of, model_of

TEXTS = ["red 1 a", "green 22 c", "x"]


@pytest.fixture(scope="module")
def bert(bare: redhost.Backbone) -> redhost.Backbone:
    """A BERT, whose last states are those of its last block, with an ε that matters."""
    trunk = encoder_of(model_of("bert", len(bare.trunk.tokenizer.get_vocab())), bare)
    return dataclasses.replace(bare, trunk=trunk, eps=0.5, name="letters")


def at(expert: redhost.Expert, *, reads: str, writes: str = "final") -> InsideExpert:
    return InsideExpert(expert, name="it", reads=reads, writes=writes)


def identity(width: int, **options: Any) -> Linear:
    given = {"space": "hidden", "labels": ("a", "b"), "temperature": 3.0, **options}
    return Linear(W=torch.eye(width), b=torch.zeros(width), **given)


def test_it_is_the_expert_with_places(bert) -> None:
    inner = identity(4, space="labels")
    expert = at(inner, reads="1", writes="layers.2")
    assert (expert.space, expert.labels, expert.temperature) == ("labels", ("a", "b"), 3.0)
    assert (expert.name, expert.reads_tap, expert.writes_tap) == ("it", "1", "layers.2")
    z = torch.randn(3, 4)
    assert torch.equal(expert(z), z)
    assert expert.folded() is expert
    shapes = {"U": (9, 4), "V": (4, 9), "W": (2, 4), "b": (2,)}
    tensors = {name: torch.ones(shape) for name, shape in shapes.items()}
    classifier = ClassifierExpert(**tensors, activation="relu", labels=("a", "b"))
    folded = at(classifier, reads="1").folded()
    assert type(folded) is type(classifier.folded()) and type(folded) is not InsideExpert


def test_what_it_reads_and_what_it_adds_by_hand(bert) -> None:
    """At the last block: h' = the mean over tokens of H + LayerNorm(H)."""
    expert, trunk = identity(bert.width), bert.trunk
    tap = at(expert, reads="1").intervention(bert)
    assert isinstance(tap, Tap) and (tap.block, tap.lowest, tap.key) == (1, 2, "block 1")
    graft = at(expert, reads="2", writes="encoder.layer.2").intervention(bert)
    assert isinstance(graft, Graft) and (graft.read, graft.write, graft.lowest) == (2, 2, 3)
    lower = at(expert, reads="0", writes="2").intervention(bert)
    assert isinstance(lower, Graft)
    moved = list[Tensor]()
    apart = list[Tensor]()
    for text in TEXTS:
        ids = torch.tensor([trunk.tokens(text)])
        states = trunk.model(input_ids=ids, output_hidden_states=True).hidden_states
        for rows, read in ((moved, states[3]), (apart, states[1])):
            centred = read - read.mean(-1, keepdim=True)
            normed = centred / (centred.square().mean(-1, keepdim=True) + 0.5).sqrt()
            rows.append((states[3] + normed).mean(1))
    near = {"rtol": 1e-4, "atol": 1e-5}
    torch.testing.assert_close(compute_features(graft, trunk, TEXTS), torch.cat(moved), **near)
    torch.testing.assert_close(compute_features(lower, trunk, TEXTS), torch.cat(apart), **near)


def test_a_step_is_taken_token_by_token() -> None:
    states = torch.randn(2, 3, 4)
    step = token_step(identity(4), width=4, eps=0.25)
    expected = torch.nn.functional.layer_norm(states, (4,), eps=0.25)
    assert torch.equal(step(states), expected)
    narrow = Linear(W=torch.ones(2, 4), b=torch.zeros(2), space="hidden")
    assert token_step(narrow, width=4, eps=0.25)(states).shape == (2, 3, 2)


class Block(nn.Module):
    """A block that returns more than its states, as some models' do."""

    def forward(self, x: Tensor) -> tuple[Tensor, str, str]:
        return x + 1, "cache", "weights"


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList([Block(), Block(), Block()])

    def forward(self, x: Tensor) -> list[Any]:
        outputs = list[Any]()
        for block in self.blocks:
            outputs.append(block(x))
            x = outputs[-1][0]
        return outputs


def test_of_a_blocks_output_the_states_alone_are_changed() -> None:
    encoder: Any = SimpleNamespace(model=Model(), lock=threading.RLock())
    x = torch.zeros(1, 2, 3)
    graft = Graft(read=0, write=1, step=lambda states: 10 * states.double())
    with graft.apply(encoder):
        outputs = encoder.model(x)
    assert [float(states.mean()) for states, *_ in outputs] == [1, 12, 13]
    assert {states.dtype for states, *_ in outputs} == {torch.float32}
    assert [rest for _, *rest in outputs] == [["cache", "weights"]] * 3
    with pytest.raises(PassEnded) as ended, Tap(block=1).apply(encoder):
        encoder.model(x)
    assert torch.equal(ended.value.states, x + 2)
    with pytest.raises(TypeError):
        states_of(("states",))


def test_a_pass_starts_from_the_states_that_are_given(bert) -> None:
    trunk = bert.trunk
    [(_, ids)] = list(trunk.batches(TEXTS[:1]))
    graft = Graft(read=1, write=2, step=lambda states: states)
    below = states_below(trunk, ids, graft)
    assert below is not None and torch.equal(below, states_with(trunk, ids, Tap(block=1)))
    assert torch.equal(moved_by(trunk, ids, graft), moved_by(trunk, ids, graft, states=below))
    with from_states(trunk, 2 * below, block=1):
        expected = trunk.pool(states_with(trunk, ids, graft))
    assert torch.equal(moved_by(trunk, ids, graft, states=2 * below), expected)
    assert not torch.equal(moved_by(trunk, ids, graft), expected)
    assert states_below(trunk, ids, Graft(read=-1, write=0, step=lambda s: s)) is None


def test_a_block_that_is_not_there_is_refused_with_those_that_are(bert) -> None:
    assert [block_at(bert.trunk, tap) for tap in ("0", "2", "encoder.layer.0")] == [0, 2, 0]
    with pytest.raises(ContractError) as caught:
        block_at(bert.trunk, "encoder.layer.3")
    assert caught.value.expected == "0 … 2, or encoder.layer.0 … encoder.layer.2"
    assert caught.value.found == "encoder.layer.3" and "'encoder.layer.3'" in caught.value.problem
    assert "encoder.layer." in caught.value.hint


class Refusing(WholeText):
    def refuses_inside(self, acts: Any) -> str | None:
        return "nothing inside"


@pytest.mark.parametrize(
    ("where", "broken"),
    [
        (("final", "final"), None),
        (("1", "final"), None),
        (("1", "1"), None),
        (("0", "encoder.layer.2"), None),
        (("encoder.layer.3", "final"), ("tap_unknown", "reads.tap", "encoder.layer.3")),
        (("1", "encoder.layer.7"), ("tap_unknown", "reads.tap", "encoder.layer.7")),
        (("2", "1"), ("tap_order", "writes.tap", "1")),
    ],
)
def test_taps_that_do_not_fit_are_violations(bert, where, broken) -> None:
    reads, writes = where
    violation = check_taps("it", bert, reads=reads, writes=writes)
    if broken is None:
        assert violation is None
        return
    assert violation is not None
    assert (violation.code, violation.field, violation.found) == broken
    assert violation.hint
    if violation.code == "tap_order":
        assert "block 2" in violation.expected and "'it'" in violation.expected
    else:
        assert violation.expected == "0 … 2, or encoder.layer.0 … encoder.layer.2"
    with pytest.raises(ContractError):
        at(identity(bert.width), reads=reads, writes=writes).intervention(bert)


@pytest.mark.parametrize("where", [("1", "final"), ("final", "1")])
def test_several_layers_and_some_units_have_no_taps(bert, where) -> None:
    reads, writes = where
    trunk = TextEncoder(
        model=bert.trunk.model,
        tokenizer=bert.trunk.tokenizer,
        pooling="mean",
        features=Features(layers=(0, 3), tokens=0),
    )
    wide = dataclasses.replace(bert, trunk=trunk)
    refusing = dataclasses.replace(bert, task=dataclasses.replace(CLASSIFICATION, unit=Refusing()))
    for backbone, reason in ((wide, "'letters'"), (refusing, "nothing inside")):
        violation = check_taps("it", backbone, reads=reads, writes=writes)
        assert violation is not None
        assert (violation.code, violation.field, violation.found) == (
            "tap_unknown",
            "reads.tap",
            "1",
        )
        assert reason in violation.expected and violation.hint
        assert check_taps("it", backbone, reads="final", writes="final") is None
