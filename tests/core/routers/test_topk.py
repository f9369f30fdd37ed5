"""Sparse routers: exactly k columns speak, the cut is honest, nobody starves."""

from __future__ import annotations

import pytest
import torch

import redhost
from redhost.core.routers import build_router
from redhost.core.routers.linear import LinearRouter
from redhost.core.routers.topk import HardRouter, TopKRouter, keep_top

D, NAMES = 6, ("a", "b", "c", "d")


def trained_like(kind: type[LinearRouter], **options: float) -> LinearRouter:
    """A router with weights out of thin air, the same for every kind."""
    router = kind(width=D, columns=NAMES, **options)
    generator = torch.Generator().manual_seed(0)
    router.weight.data = torch.randn(len(NAMES), D, generator=generator)
    return router


Z = torch.randn(50, D, generator=torch.Generator().manual_seed(1))


@pytest.mark.parametrize("k", [1, 2, 3])
def test_exactly_k_columns_have_a_say_and_they_are_the_heaviest(k: int) -> None:
    alpha = torch.softmax(trained_like(TopKRouter, k=k)(Z), -1)
    dense = torch.softmax(trained_like(LinearRouter)(Z), -1)
    assert ((alpha > 0).sum(-1) == k).all()
    torch.testing.assert_close(alpha.sum(-1), torch.ones(50))
    sparse = dense * (alpha > 0)
    torch.testing.assert_close(alpha, sparse / sparse.sum(-1, keepdim=True))
    assert torch.equal(alpha.argmax(-1), dense.argmax(-1))


def test_all_columns_are_the_dense_router_bit_for_bit() -> None:
    dense = trained_like(LinearRouter)(Z)
    assert torch.equal(trained_like(TopKRouter, k=4)(Z), dense)
    assert torch.equal(trained_like(TopKRouter, k=9)(Z), dense)


def test_hard_weights_are_one_hot_at_unit_scale() -> None:
    alpha = torch.softmax(trained_like(HardRouter)(Z), -1)
    assert ((alpha == 1).sum(-1) == 1).all() and ((alpha == 0).sum(-1) == 3).all()


def test_ties_go_to_the_first_column() -> None:
    assert keep_top(torch.zeros(2, 3), 1).isfinite().tolist() == [[True, False, False]] * 2
    tied = torch.tensor([[1.0, 2.0, 1.0, 1.0]])
    assert keep_top(tied, 3).tolist() == [[1.0, 2.0, 1.0, -torch.inf]]


def test_noise_is_for_training_only_and_comes_from_the_generator() -> None:
    router = trained_like(TopKRouter, noise=0.5)
    assert torch.equal(router(Z), router(Z))

    def noisy(seed: int) -> torch.Tensor:
        return router.training_logits(Z, None, generator=torch.Generator().manual_seed(seed))

    assert torch.equal(noisy(1), noisy(1)) and not torch.equal(noisy(1), noisy(2))
    assert noisy(1).isfinite().all()  # nothing is cut while training


def test_noise_has_the_deviation_it_is_given() -> None:
    router, z = trained_like(TopKRouter, noise=0.5), torch.zeros(5000, D)
    noise = router.training_logits(z, None, generator=torch.Generator().manual_seed(0)).detach()
    assert float(noise.std()) == pytest.approx(0.5, rel=0.05)
    assert float(noise.mean()) == pytest.approx(0.0, abs=0.02)
    drawn = torch.randn(5000, len(NAMES), generator=torch.Generator().manual_seed(0))
    assert torch.equal(noise, 0.5 * drawn)


def test_a_hard_router_is_trained_without_noise_or_balance() -> None:
    hard, dense = trained_like(HardRouter), trained_like(LinearRouter)
    logits = hard.training_logits(Z, None, generator=torch.Generator().manual_seed(0))
    assert torch.equal(logits, dense(Z))
    assert float(hard.penalty(logits, torch.full((50,), 1 / 50))) == 0.0


def test_every_column_gets_a_gradient_even_at_k_1() -> None:
    router = trained_like(TopKRouter, k=1, noise=0.0).requires_grad_(True)
    logits = router.training_logits(Z, None, generator=torch.Generator())
    torch.nn.functional.cross_entropy(logits, torch.zeros(50, dtype=torch.long)).backward()
    assert router.weight.grad is not None and (router.weight.grad.abs().sum(-1) > 0).all()


def test_the_balance_loss_is_one_at_uniform_use_and_k_at_collapse() -> None:
    router = TopKRouter(width=D, columns=NAMES, k=1, balance=1.0)
    weight = torch.full((4,), 0.25)
    even, collapsed = 50 * torch.eye(4), 50 * torch.eye(4)[:1].expand(4, 4)
    assert float(router.penalty(even, weight)) == pytest.approx(1.0)
    assert float(router.penalty(collapsed, weight)) == pytest.approx(4.0)
    assert float(TopKRouter(width=D, columns=NAMES, balance=0.0).penalty(even, weight)) == 0.0


def test_the_balance_loss_pushes_down_the_column_that_is_used_too_often() -> None:
    router = TopKRouter(width=D, columns=NAMES, k=1, balance=1.0)
    logits = torch.tensor([[1.0, 0.0, 0.0, 0.0]] * 8, requires_grad=True)
    router.penalty(logits, torch.full((8,), 1 / 8)).backward()
    assert logits.grad is not None
    assert (logits.grad[:, 0] > 0).all() and (logits.grad[:, 1:] < 0).all()


def test_row_weights_count_and_not_rows() -> None:
    router = TopKRouter(width=D, columns=NAMES[:2], k=1, balance=1.0)
    logits = 50 * torch.tensor([[1.0, 0.0]] * 9 + [[0.0, 1.0]])
    weight = torch.tensor([1 / 18] * 9 + [1 / 2])
    assert float(router.penalty(logits, weight)) == pytest.approx(1.0)


def test_the_balance_loss_is_in_proportion_to_its_weight_and_blind_to_the_rows_total() -> None:
    router = TopKRouter(width=D, columns=NAMES, k=2, balance=0.5)
    even = 50 * (torch.eye(4) + torch.eye(4).roll(1, 1))  # every row chooses two of the four
    assert float(router.penalty(even, torch.ones(4))) == pytest.approx(0.5)
    assert float(router.penalty(even, torch.full((4,), 0.1))) == pytest.approx(0.5)


def test_without_options_two_columns_have_a_say() -> None:
    router = TopKRouter(width=D, columns=NAMES)
    assert (router.k, router.chosen, router.balance, router.noise) == (2, 2, 0.01, 0.1)


def test_options_of_a_kind_are_written_after_its_name() -> None:
    bus = redhost.BusConfig(width=D, labels=())
    router = build_router("topk:k=3,noise=0,balance=0.5", bus, NAMES, 0)
    assert isinstance(router, TopKRouter)
    assert (router.k, router.noise, router.balance) == (3, 0.0, 0.5)


@pytest.mark.parametrize(
    ("kind", "message"),
    [
        ("topk:k=two", "a whole number"),
        ("topk:noise=nan", "0 or more"),
        ("topk:k=-1", "0 or more"),
        ("topk:top=2", "balance, k, noise, temperature"),
        ("topk:k", "name=value"),
        ("linear:k=2", "expected temperature, found k"),
    ],
)
def test_bad_options_are_wrong_usage(kind: str, message: str) -> None:
    with pytest.raises(redhost.UsageError, match=message):
        build_router(kind, redhost.BusConfig(width=D, labels=()), NAMES, 0)
