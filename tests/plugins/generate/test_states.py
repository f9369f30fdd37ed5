"""The states of tokens: a text's bits are its own, and nothing depends on a later token."""

from __future__ import annotations

import pytest
import torch
from redhost_generate import tokens as module
from redhost_generate.tokens import Tokens, token_states, tokenize

import redhost

TEXTS = ["one and two", "a", "def f(x):\n    return x", "one and ten"]


def test_a_texts_bits_hang_on_itself_alone(speaker) -> None:
    alone = [token_states(speaker.trunk, [t])[0] for t in TEXTS]
    for options in (TEXTS, TEXTS[::-1]):
        for text, h in zip(options, token_states(speaker.trunk, options), strict=True):
            assert torch.equal(h, alone[TEXTS.index(text)])


def test_rows_of_texts_stand_in_their_order(speaker) -> None:
    h = speaker.encode(TEXTS)
    assert len(h) == sum(map(len, TEXTS)) == len(speaker.unit_rows(_rows(TEXTS)))
    assert torch.equal(h, torch.cat(token_states(speaker.trunk, TEXTS)))
    assert speaker.encode([]).shape == (0, speaker.width)


def test_no_texts_have_no_states(speaker) -> None:
    trunk = speaker.trunk
    assert Tokens().passed(trunk, [], trunk.hidden_states, alone=False).shape == (0, speaker.width)


def test_texts_of_one_length_are_trained_on_in_passes_of_512_tokens(speaker) -> None:
    trunk = speaker.trunk
    first, middle, last = sorted("abc", key=lambda text: tokenize(trunk, text))
    texts = [*[first] * 300, middle * 3, last]
    passes = list(Tokens().passes(trunk, texts, lambda: torch.empty(0), most=1))
    assert [tuple(p.ids.shape) for p in passes] == [(256, 1), (45, 1), (1, 3)]
    assert passes[2].targets.tolist() == tokenize(trunk, middle * 3)


def test_a_context_stands_beside_the_state_once_there_is_a_bus(composed) -> None:
    wide = composed.backbone.encode(TEXTS)
    width = composed.backbone.total_width
    assert wide.shape[1] == width == composed.backbone.bus_config().router_width
    assert torch.equal(
        composed.bus.layout.base(wide), torch.cat(token_states(_trunk(composed), TEXTS))
    )


AT = 12


def features_of(composed, text: str) -> tuple[torch.Tensor, torch.Tensor]:
    """Return p and α of every token of a text: states, contexts, router, experts."""
    with torch.inference_mode():
        p, alpha = composed.bus(composed.backbone.encode([text]))
    return p, alpha


def depends_on_later_tokens(composed) -> bool:
    """Tell whether another token at `AT` changes the states up to there."""
    text = "the cat sat on the mat\n"
    p, alpha = features_of(composed, text)
    q, beta = features_of(composed, text[:AT] + "#" + text[AT + 1 :])
    assert not torch.allclose(p[AT + 1 :], q[AT + 1 :])  # it does change what comes after
    same = torch.equal(p[: AT + 1], q[: AT + 1]) and torch.equal(alpha[: AT + 1], beta[: AT + 1])
    return not same


@pytest.mark.parametrize("form", ["residual", "mixture"])
def test_a_token_changes_no_weight_and_no_probability_before_it(composed, mixed, form) -> None:
    assert not depends_on_later_tokens(composed if form == "residual" else mixed)


def test_what_follows_may_be_cut_off(composed) -> None:
    text = "the cat sat on the mat\n"
    (p, alpha), (q, beta) = features_of(composed, text), features_of(composed, text[:AT])
    assert torch.allclose(p[:AT], q, atol=1e-5) and torch.allclose(alpha[:AT], beta, atol=1e-5)


def test_a_memory_of_the_whole_text_is_found_out(composed, monkeypatch) -> None:
    """Control: the mean over all of a text instead of what came before."""

    def whole(h: torch.Tensor, *, eps: float) -> torch.Tensor:
        return torch.nn.functional.layer_norm(h, h.shape[-1:], eps=eps).mean(0).repeat(len(h), 2)

    monkeypatch.setattr(module, "contexts", whole)
    assert depends_on_later_tokens(composed)


def _rows(texts: list[str]) -> list[redhost.Row]:
    return [redhost.Row(text=t, label="") for t in texts]


def _trunk(composed) -> redhost.plugins.TextEncoder:
    return composed.backbone.trunk
