"""The bound of what a gate's rows flatter it by: above every measured gap, by the gate alone."""

from __future__ import annotations

import math

import pytest
import torch
from redhost_robust import GameError, gate_gap_bound
from torch import Tensor

K, D = 3, 4
RADIUS = math.sqrt(D + 1)


def mixture_loss(logits: Tensor, log_p: Tensor) -> Tensor:
    """Return −log Σ_j g_j p_j of each row ``(N,)``."""
    return -torch.logsumexp(torch.log_softmax(logits, -1) + log_p, -1)


def drawn(rows: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """Return z with a 1 behind ``(N, D + 1)``, and what noisy experts give the right answer."""
    z = torch.randn(rows, D, generator=generator, dtype=torch.float64)
    z = math.sqrt(D) * z / z.norm(dim=-1, keepdim=True)
    noise = torch.randn(rows, K, generator=generator, dtype=torch.float64)
    log_p = torch.nn.functional.logsigmoid(2 * z[:, :K] + 3 * noise)
    return torch.cat([z, torch.ones(rows, 1, dtype=torch.float64)], -1), log_p


def fitted(z: Tensor, log_p: Tensor, *, rate: float) -> Tensor:
    """Return W ``(K, D + 1)`` after so much descent on these very rows that it fits their noise."""
    w = torch.zeros(K, z.shape[1], dtype=torch.float64, requires_grad=True)
    for _ in range(200):
        (gradient,) = torch.autograd.grad(mixture_loss(z @ w.T, log_p).mean(), w)
        w = (w - rate * gradient).detach().requires_grad_()
    return w.detach()


def gain(w: Tensor, z: Tensor, log_p: Tensor) -> float:
    nothing = torch.zeros(len(z), K, dtype=torch.float64)
    return float((mixture_loss(nothing, log_p) - mixture_loss(z @ w.T, log_p)).mean())


@pytest.mark.parametrize("rows", [20, 200, 2000])
@pytest.mark.parametrize("rate", [0.1, 2.0])
def test_no_measured_gap_is_above_the_bound(rows: int, rate: float) -> None:
    generator = torch.Generator().manual_seed(0)
    new = drawn(50_000, generator)
    gaps, bounds = [], []
    for _ in range(10):
        own = drawn(rows, generator)
        w = fitted(*own, rate=rate)
        gaps.append(gain(w, *own) - gain(w, *new))
        bounds.append(gate_gap_bound(norm=float(w.norm()), radius=RADIUS, columns=K, rows=rows))
    assert max(g - b for g, b in zip(gaps, bounds, strict=True)) < 0
    assert sum(gaps) > 0  # rows flatter what was fitted to them: there is something to bound


def test_the_bound_says_something_where_rows_are_many() -> None:
    """Below what the loss of such gates can differ by at all."""
    trivial = 2 * math.sqrt(2) * 2.0
    assert gate_gap_bound(norm=2 / RADIUS, radius=RADIUS, columns=K, rows=10_000) < trivial / 10


def test_four_times_the_rows_halve_it_and_twice_the_norm_doubles_it() -> None:
    bound = gate_gap_bound(norm=4.0, radius=1.0, columns=K, rows=100)
    assert gate_gap_bound(norm=4.0, radius=1.0, columns=K, rows=400) == pytest.approx(bound / 2)
    assert gate_gap_bound(norm=1.0, radius=4.0, columns=K, rows=100) == bound
    assert 2 < gate_gap_bound(norm=8.0, radius=1.0, columns=K, rows=100) / bound < 2.2
    assert gate_gap_bound(norm=3.0, radius=1.0, columns=K, rows=100) == bound  # rounded up


def test_at_the_rows_of_a_card_it_decides_nothing() -> None:
    """However small the gate's norm: half a nat and more, for five columns and 300 rows."""
    assert gate_gap_bound(norm=0.0, radius=24.0, columns=5, rows=300) > 0.5


def test_its_two_terms_are_those_of_the_formula() -> None:
    """At norm 0, where Λζ = 1 and the level's share of δ is a half."""
    found = gate_gap_bound(norm=0.0, radius=5.0, columns=4, rows=50, delta=0.1)
    first = 4 * math.sqrt(4) / math.sqrt(50)
    second = 2 * math.sqrt(2) * math.sqrt(math.log(1 / 0.05) / 100)
    assert found == pytest.approx(first + second)


def test_the_loss_is_root_two_lipschitz_in_the_logits_and_no_better() -> None:
    generator = torch.Generator().manual_seed(1)
    shape = (100_000, K)
    one, step = (torch.randn(*shape, generator=generator, dtype=torch.float64) for _ in range(2))
    log_p = torch.nn.functional.logsigmoid(9 * torch.randn(*shape, generator=generator).double())
    other = 4 * one + 0.1 * step
    change = (mixture_loss(4 * one, log_p) - mixture_loss(other, log_p)).abs()
    ratio = float((change / (4 * one - other).norm(dim=-1)).max())
    assert 1.3 < ratio <= math.sqrt(2)


@pytest.mark.parametrize(
    "wrong",
    [
        {"norm": -1.0},
        {"radius": 0.0},
        {"columns": 0},
        {"rows": 0},
        {"delta": 1.0},
        {"norm": math.nan},
    ],
)
def test_what_is_out_of_range_is_refused(wrong: dict[str, float]) -> None:
    given = {"norm": 1.0, "radius": 1.0, "columns": 2, "rows": 10} | wrong
    with pytest.raises(GameError, match=rf"\b{next(iter(wrong))}\b"):
        gate_gap_bound(**given)
