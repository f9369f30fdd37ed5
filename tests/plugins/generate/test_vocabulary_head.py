"""The head of a vocabulary."""

from __future__ import annotations

import torch

import redhost


def test_next_tokens_sum_to_one_over_a_large_vocabulary() -> None:
    generator = torch.Generator().manual_seed(0)
    logits = 3 * torch.randn(16, 50_000, generator=generator) - 20
    manifest = redhost.plugins.make_task("generation").head.output(logits)
    assert float((manifest.double().sum(-1) - 1).abs().max()) < 1e-6
    torch.testing.assert_close(manifest, torch.softmax(logits.double(), dim=-1).float())
    warm = redhost.plugins.make_task("generation").head.output(logits, temperature=2.0)
    torch.testing.assert_close(warm, torch.softmax(logits.double() / 2, dim=-1).float())
