"""The two-layer router: what it computes, and the size of its first weights."""

from __future__ import annotations

import pytest
import torch

from redhost.core.routers.mlp import MlpRouter

NAMES = ("a", "b", "c")


def test_logits_are_two_layers_with_their_biases() -> None:
    router, generator = MlpRouter(width=4, columns=NAMES), torch.Generator().manual_seed(0)
    inner, hidden, outer, bias = router.requires_grad_(False).state_dict().values()
    for part in (hidden, outer, bias):
        torch.nn.init.normal_(part, generator=generator)
    z = torch.randn(5, 4, generator=generator)
    expected = (z @ inner.T + hidden).clamp_min(0) @ outer.T + bias
    torch.testing.assert_close(router(z), expected)


def test_inner_weights_start_at_the_size_that_keeps_signals() -> None:
    """He and others 2015: variance 2/D, so that relu(W z) has the second moment of z."""
    weight = MlpRouter(width=50, columns=NAMES).inner_weight.detach()
    assert float(weight.mean()) == pytest.approx(0, abs=0.01)
    assert float(weight.var()) == pytest.approx(2 / 50, rel=0.05)
