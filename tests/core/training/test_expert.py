"""Checkpoints: written whole, there after a stop, gone after an end."""

from __future__ import annotations

import pytest
import torch

from redhost.core.training.expert import read_checkpoint, resuming, save_checkpoint


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
