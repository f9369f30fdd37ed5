"""Training: when it stops. Checkpoints: written whole, there after a stop, gone after an end."""

from __future__ import annotations

import pytest
import torch
from redhost_author.training.expert import (
    ExpertRows,
    ExpertSettings,
    TrainedExpert,
    read_checkpoint,
    resuming,
    save_checkpoint,
    train_expert,
)

from redhost.core.bus.bus import Readout


def test_a_checkpoint_holds_the_bits_it_was_given(tmp_path) -> None:
    state = {"a": torch.randn(3, 4).T, "b": torch.arange(5)}
    save_checkpoint(tmp_path / "folder" / "c.safetensors", state)
    found = read_checkpoint(tmp_path / "folder" / "c.safetensors")
    assert (
        found is not None
        and found.keys() == state.keys()
        and all(torch.equal(found[k], state[k]) for k in state)
    )


def test_one_with_any_bit_flipped_is_none(tmp_path) -> None:
    path = tmp_path / "c.safetensors"
    assert read_checkpoint(path) is None
    save_checkpoint(path, {"a": torch.arange(3)})
    data = path.read_bytes()
    for bit in range(8 * len(data)):
        flipped = bytearray(data)
        flipped[bit // 8] ^= 1 << bit % 8
        path.write_bytes(flipped)
        assert read_checkpoint(path) is None


def test_it_stays_after_a_stop_and_goes_when_the_work_is_done(tmp_path) -> None:
    with pytest.raises(KeyboardInterrupt), resuming(tmp_path, resumable=True) as checkpoint:
        save_checkpoint(checkpoint, {"a": torch.zeros(1)})
        raise KeyboardInterrupt
    assert checkpoint.exists()
    with resuming(tmp_path, resumable=True) as again:
        assert again == checkpoint and checkpoint.exists()
    assert not checkpoint.exists()


def test_work_that_is_not_resumable_writes_nowhere(tmp_path) -> None:
    with resuming(tmp_path, resumable=False) as checkpoint:
        assert checkpoint is None
    assert list(tmp_path.iterdir()) == []


def learn(*, rival: float | None = None) -> tuple[list[int], TrainedExpert]:
    """Train on rows that are soon learnt; return the epochs seen, and what came of them."""
    g = torch.Generator().manual_seed(0)
    h, target = torch.randn(96, 12, generator=g), torch.arange(96) % 3
    h[torch.arange(96), target] += 2
    rows = ExpertRows(h=h, z=h, answers=["abc"[n] for n in target.tolist()])
    epochs = list[int]()
    trained = train_expert(
        rows,
        Readout(),
        labels=("a", "b", "c"),
        settings=ExpertSettings(
            space="labels", learning_rate=0.1, patience=8, rival=rival, epochs=60
        ),
        valid=ExpertRows(h=h[:24] + 0.5, z=h[:24] + 0.5, answers=rows.answers[:24]),
        progress=lambda done, _total: epochs.append(done),
    )
    return epochs, trained


def test_an_expert_better_than_its_rival_is_trained_as_if_it_had_none() -> None:
    epochs, alone = learn()
    same, beside = learn(rival=0.0)
    assert same == epochs and len(epochs) == alone.epoch + 8 < 60
    for name, tensor in alone.expert.state_dict().items():
        assert torch.equal(tensor, beside.expert.state_dict()[name])


def test_one_that_is_no_better_stops_after_a_quarter_of_the_patience() -> None:
    epochs, trained = learn(rival=1.0)  # which nothing is ahead of
    assert len(epochs) == trained.epoch + 2
