"""The base stage of `redhost lab red`: computed once, taken up where it was left."""

from __future__ import annotations

import pytest
import torch
from red_lab.red.base import BaseSettings, number_waves, train_base
from red_lab.red.cut import Above, below
from red_lab.red.queries import LABELS, load

import redhost

TEXTS = ("What is 3 plus 4?", "What is 37 plus 12?", "What is 3 plus 41?")


@pytest.mark.parametrize("pooling", ["mean", "last"])
def test_above_the_cut_of_what_is_below_it_is_the_whole_trunk(model, tmp_path, pooling) -> None:
    whole = redhost.Backbone.load(f"hf:{model}", pooling=pooling)
    hidden = below(whole, TEXTS, last_blocks=2, folder=tmp_path)
    with torch.inference_mode():
        h = Above(whole.trunk, last_blocks=2).eval()(*hidden.batch(hidden.rows(TEXTS)))
    torch.testing.assert_close(h, whole.encode(TEXTS), atol=1e-5, rtol=1e-4)


def test_the_trunk_is_computed_once_and_taken_up_where_it_was_left(
    backbone, tmp_path, monkeypatch
) -> None:
    monkeypatch.setattr("red_lab.red.cut.CHUNK", 1)
    once = below(backbone, TEXTS, last_blocks=1, folder=tmp_path / "a")

    def stop(done: int, total: int) -> None:
        if done == 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        below(backbone, TEXTS, last_blocks=1, folder=tmp_path / "b", progress=stop)
    seen: list[int] = []
    again = below(
        backbone, TEXTS, last_blocks=1, folder=tmp_path / "b", progress=lambda a, _: seen.append(a)
    )
    assert seen == [3] and (again.hidden == once.hidden).all()
    monkeypatch.setattr(
        backbone.trunk, "hidden_states", None
    )  # a block that is touched now would raise
    last = below(backbone, TEXTS, last_blocks=1, folder=tmp_path / "b")
    assert (last.hidden == once.hidden).all()


def make_base(backbone, tmp_path, *, progress=None, name="base", **settings):
    data = load("addition", "seed", seed=0)
    hidden = below(backbone, data.texts(), last_blocks=1, folder=tmp_path / "below")
    made = BaseSettings(**{"last_blocks": 1, "epochs": 2, "learning_rate": 1e-3, **settings})
    checkpoint = tmp_path / f"{name}.safetensors"
    return data, train_base(
        backbone, hidden, data.train, settings=made, checkpoint=checkpoint, progress=progress
    )


def test_an_interrupted_base_stage_goes_on_to_the_same_bits(backbone, tmp_path, few) -> None:
    _, once = make_base(backbone, tmp_path)

    def stop(done: int, total: int) -> None:
        if done == total // 2 + 1:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        make_base(backbone, tmp_path, progress=stop, name="other")
    _, again = make_base(backbone, tmp_path, name="other")
    assert torch.equal(once.h, again.h) and torch.equal(once.classifier, again.classifier)


def test_the_base_sees_its_share_of_the_clusters() -> None:
    train = load("addition", "seed", seed=0).train
    some = [q for q in train if BaseSettings(share=0.3).sees(q)]
    assert 0.2 < len(some) / len(train) < 0.4
    seen = {q.cluster for q in some}
    assert all((q in some) == (q.cluster in seen) for q in train[:500])


def test_a_head_of_waves_answers_numbers_it_never_saw_and_a_free_one_does_not() -> None:
    """From features that turn with the number: two answers of three are seen, the third asked."""
    n = torch.arange(2, 101).float()
    turns = [2 * torch.pi * n / period for period in (10, 100)]
    h = torch.stack([wave(t) for t in turns for wave in (torch.cos, torch.sin)], dim=1)
    seen = n % 3 != 0
    target = torch.arange(99)
    right = {}
    for name, waves in (("waves", number_waves(LABELS)), ("free", torch.eye(99))):
        head = torch.zeros(waves.shape[1], 4, requires_grad=True)
        optimizer = torch.optim.AdamW([head], lr=0.1)
        for _ in range(300):
            loss = torch.nn.functional.cross_entropy(h[seen] @ (waves @ head).T, target[seen])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        answers = (h @ (waves @ head).T).argmax(-1)
        right[name] = float((answers == target)[~seen].float().mean())
    assert right["waves"] > 0.95 and right["free"] < 0.05


def test_a_base_in_bfloat16_is_near_the_one_in_float32(backbone, tmp_path, few) -> None:
    data, exact = make_base(backbone, tmp_path, head="fourier", schedule="cosine")
    _, fast = make_base(
        backbone, tmp_path, name="fast", head="fourier", schedule="cosine", precision="bfloat16"
    )
    rows = exact.rows(data.test)
    similar = torch.nn.functional.cosine_similarity(exact.h[rows], fast.h[rows], dim=-1)
    assert not torch.equal(exact.h, fast.h) and similar.min() > 0.9
