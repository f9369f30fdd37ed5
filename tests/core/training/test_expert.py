"""Checkpoints: written whole, there after a stop, gone after an end."""

from __future__ import annotations

import pytest
import safetensors.torch
import torch

from redhost.core.training.expert import resuming, save_checkpoint


def test_a_checkpoint_holds_the_bits_it_was_given(tmp_path) -> None:
    state = {"a": torch.randn(3, 4).T, "b": torch.arange(5)}
    save_checkpoint(tmp_path / "folder" / "c.safetensors", state)
    found = safetensors.torch.load((tmp_path / "folder" / "c.safetensors").read_bytes())
    assert found.keys() == state.keys() and all(torch.equal(found[k], state[k]) for k in state)


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
