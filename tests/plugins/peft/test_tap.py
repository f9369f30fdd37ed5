"""Inside the trunk: taps are the states there, grafts do what their step says, nothing stays."""

from __future__ import annotations

import pytest
import torch
from redhost_peft.graft import Graft, from_states, moved_by
from redhost_peft.tap import Tap, block_at, compute_features

import redhost
import redhost.testing
from redhost.core.backbones.encoder import blocks_of
from redhost.core.backbones.interventions import states_with

TEXTS = ["red 1 a", "green 22 c", "blue 3", "red 45 b"]


def nothing(states: torch.Tensor) -> torch.Tensor:
    return torch.zeros_like(states)


def shift(states: torch.Tensor) -> torch.Tensor:
    return 0.5 * torch.tanh(states)


@pytest.mark.parametrize("tap", ["1", "layers.1"])
def test_a_block_is_named_by_number_or_by_name(bare, tap) -> None:
    assert block_at(bare.trunk, tap) == 1


def test_an_unknown_block_names_those_there_are(bare) -> None:
    with pytest.raises(
        redhost.errors.ContractError, match=r"layers\.0 … layers\.2, found layers\.7"
    ):
        block_at(bare.trunk, "layers.7")


def test_a_tap_is_the_models_own_hidden_state(bare) -> None:
    """Against transformers' output_hidden_states, text by text."""
    found = compute_features(Tap(block=0), bare.trunk, TEXTS)
    for row, text in zip(found, TEXTS, strict=True):
        ids = torch.tensor([bare.trunk.tokens(text)])
        states = bare.trunk.model(input_ids=ids, output_hidden_states=True).hidden_states[1]
        torch.testing.assert_close(row, bare.trunk.pool(states)[0], atol=1e-5, rtol=1e-4)


def test_a_tap_does_not_depend_on_the_other_texts_and_runs_no_block_above(bare):
    alone = torch.cat([compute_features(Tap(block=0), bare.trunk, [t]) for t in TEXTS])

    def raise_above(*_: object) -> None:
        raise AssertionError("a block above the tap was run")

    hook = blocks_of(bare.trunk.model)[1][1].register_forward_pre_hook(raise_above)
    try:
        assert torch.equal(compute_features(Tap(block=0), bare.trunk, TEXTS), alone)
    finally:
        hook.remove()


def test_a_step_of_zero_changes_nothing_bit_for_bit(bare) -> None:
    assert torch.equal(
        compute_features(Graft(read=0, write=1, step=nothing), bare.trunk, TEXTS),
        bare.encode(TEXTS),
    )


def test_a_graft_is_what_a_changed_model_says(bare) -> None:
    """Against a model whose block was wrapped by hand."""
    found = compute_features(Graft(read=0, write=0, step=shift), bare.trunk, TEXTS)
    before = bare.encode(TEXTS)
    block = blocks_of(bare.trunk.model)[1][0]

    def add(_: object, _inputs: object, output: object) -> object:
        if isinstance(output, tuple):
            return (output[0] + shift(output[0]), *output[1:])
        assert isinstance(output, torch.Tensor)
        return output + shift(output)

    hook = block.register_forward_hook(add)
    try:
        after = bare.encode(TEXTS)
    finally:
        hook.remove()
    assert (found - before).abs().max() > 1e-3
    assert torch.equal(found, after)


def test_the_trunk_is_left_as_it_was(bare) -> None:
    before, blocks = bare.encode(TEXTS), blocks_of(bare.trunk.model)[1]
    retained = [(set(vars(b)), len(b._forward_hooks)) for b in blocks]
    compute_features(Graft(read=0, write=1, step=shift), bare.trunk, TEXTS)
    with pytest.raises(RuntimeError):
        compute_features(Graft(read=0, write=1, step=lambda s: s[:, :, :1] @ s), bare.trunk, TEXTS)
    assert torch.equal(bare.encode(TEXTS), before)
    assert [(set(vars(b)), len(b._forward_hooks)) for b in blocks] == retained


def test_passes_start_above_known_states(bare) -> None:
    [(_, ids)] = list(bare.trunk.batches(TEXTS[:1]))
    states = states_with(bare.trunk, ids, Tap(block=0))
    whole = bare.trunk.hidden_states(ids)
    with from_states(bare.trunk, states, block=0):
        assert torch.equal(bare.trunk.hidden_states(ids), whole)
    with from_states(bare.trunk, 0 * states, block=0):
        assert not torch.equal(bare.trunk.hidden_states(ids), whole)


def test_gradients_reach_the_step_and_not_the_trunk(bare) -> None:
    [(_, ids)] = list(bare.trunk.batches(TEXTS[:1]))
    weight = torch.zeros(bare.width, bare.width, requires_grad=True)
    made = moved_by(
        bare.trunk,
        ids,
        Graft(read=0, write=0, step=lambda s: s @ weight),
        states=states_with(bare.trunk, ids, Tap(block=0)).clone(),
    )
    made[:, 0].sum().backward()
    assert weight.grad is not None and weight.grad.abs().max() > 0
    assert all(p.grad is None for p in bare.trunk.model.parameters())


def test_an_encoder_of_another_kind_is_tapped_the_same_way(tmp_path) -> None:
    """BERT: blocks under another name, embeddings with positions, attention both ways."""
    from transformers import BertConfig, BertModel

    torch.manual_seed(0)
    folder = redhost.testing.tiny_backbone(tmp_path / "letters")  # its tokenizer
    sizes = {"hidden_size": 16, "num_attention_heads": 2, "intermediate_size": 32}
    model = BertModel(BertConfig(vocab_size=512, num_hidden_layers=3, **sizes))
    bert = redhost.Backbone.load(f"hf:{folder}", pooling="mean")
    trunk = type(bert.trunk)(model=model, tokenizer=bert.trunk.tokenizer, pooling="mean")
    assert block_at(trunk, "encoder.layer.1") == 1
    ids = torch.tensor([trunk.tokens(TEXTS[0])])
    states = trunk.model(input_ids=ids, output_hidden_states=True).hidden_states[2]
    torch.testing.assert_close(
        compute_features(Tap(block=1), trunk, TEXTS[:1])[0], states.mean(1)[0], atol=1e-5, rtol=1e-4
    )
    still = compute_features(Graft(read=0, write=2, step=nothing), trunk, TEXTS)
    assert torch.equal(still, trunk.encode(TEXTS))
    moved = compute_features(Graft(read=0, write=1, step=shift), trunk, TEXTS)
    assert (moved - still).abs().max() > 1e-3
