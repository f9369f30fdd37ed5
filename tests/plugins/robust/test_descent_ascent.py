"""The loop of every robust training: what descends, how λ moves, and which weights are kept."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch
from redhost_robust.descent_ascent import MinimaxSettings, minimax, mixture_losses, move_lambda
from torch import Tensor, nn

ZERO = torch.zeros(2)


class Number(nn.Module):
    """One number x that descends."""

    def __init__(self, x: float = 0.0) -> None:
        super().__init__()
        self.x = nn.Parameter(torch.tensor(x))


def scripted(*losses: list[float]) -> Callable[[], Tensor]:
    """Return what tells these numbers, a list for each call."""
    rest = iter(losses)
    return lambda: torch.tensor(next(rest))


def sloped(number: Number, *losses: list[float]) -> Callable[[], Tensor]:
    """Return losses with these values, whose gradient in x is 1."""
    tell = scripted(*losses)
    return lambda: tell() + number.x - number.x.detach()


def test_lambda_moves_by_the_closed_form() -> None:
    """(.2, .8) · (2, 1) is (1/3, 2/3) of its sum; then a tenth is spread evenly."""
    moved = move_lambda(
        torch.tensor([0.2, 0.8]), torch.tensor([2 * math.log(2), 0]), rate=0.5, floor=0.1
    )
    torch.testing.assert_close(moved, torch.tensor([0.35, 0.65]))


def test_a_domain_of_weight_0_comes_back_through_the_floor() -> None:
    lam = torch.tensor([0.0, 0.5, 0.5])
    assert move_lambda(lam, torch.zeros(3), rate=1.0, floor=0.0).tolist() == [0, 0.5, 0.5]
    moved = move_lambda(lam, torch.zeros(3), rate=1.0, floor=0.3)
    torch.testing.assert_close(moved, torch.tensor([0.1, 0.45, 0.45]))


def test_mixture_losses_by_hand() -> None:
    """Each domain's mean of −log(¼ p_1 + ¾ p_2), however many rows it has."""
    gate = torch.tensor([0.25, 0.75]).log()
    one = torch.tensor([[0.8, 0.4], [0.4, 0.8]]).log()  # mixed: .5 and .7
    other = torch.tensor([[1.0, 0.0]]).log()  # mixed: .25
    found = mixture_losses(
        lambda z: 7 + gate.expand(len(z), 2), [(torch.zeros(len(p), 3), p) for p in (one, other)]
    )
    expected = [-(math.log(0.5) + math.log(0.7)) / 2, -math.log(0.25)]
    torch.testing.assert_close(found, torch.tensor(expected))


def test_the_game_ends_where_both_domains_lose_alike() -> None:
    """x² = 4 (x − 1)² at x = 2/3; the average is smallest at .8."""
    number = Number()

    def losses() -> Tensor:
        return torch.stack([number.x**2, 4 * (number.x - 1) ** 2])

    settings = MinimaxSettings(steps=500, learning_rate=0.02)
    found = minimax(number, losses=losses, aside=losses, reference=ZERO, settings=settings)
    assert number.x.item() == pytest.approx(2 / 3, abs=0.02)
    torch.testing.assert_close(found.regrets, losses().detach())
    assert found.regrets.max().item() == pytest.approx(4 / 9, abs=0.02)


def test_without_a_rate_lambda_stays_and_the_weighted_loss_descends() -> None:
    """λ_1 x² + λ_2 (x − 1)² is smallest at λ_2."""
    number, lam = Number(), torch.tensor([0.25, 0.75])

    def losses() -> Tensor:
        return torch.stack([number.x**2, (number.x - 1) ** 2])

    settings = MinimaxSettings(steps=400, learning_rate=0.02, rate_lambda=0.0)
    found = minimax(
        number, losses=losses, aside=losses, reference=ZERO, settings=settings, start=lam
    )
    assert torch.equal(found.weights, lam)
    assert number.x.item() == pytest.approx(0.75, abs=1e-3)


@pytest.mark.parametrize(("rate", "best"), [(0.0, 1), (0.05, 2)])
def test_best_is_the_worst_regret_or_without_a_rate_the_weighted_one(
    rate: float, best: int
) -> None:
    """Under λ = (¾, ¼) the looks score 5, 1.75 and 3; by their worst 5, 4 and 3."""
    number = Number()
    found = minimax(
        number,
        losses=sloped(number, [0, 0], [0, 0]),
        aside=scripted([5, 5], [1, 4], [3, 3]),
        reference=ZERO,
        settings=MinimaxSettings(steps=2, every=1, rate_lambda=rate),
        start=torch.tensor([0.75, 0.25]),
    )
    assert found.step == best


@pytest.mark.parametrize(("reference", "best"), [([0.0, 0.0], 1), ([3.0, 0.0], 0)])
def test_the_reference_is_taken_off_before_features_are_compared(
    reference: list[float], best: int
) -> None:
    """A domain that must lose 3 nats is served well by a loss of 4."""
    number, validated = Number(), ([4.0, 1.0], [3.0, 3.0])
    found = minimax(
        number,
        losses=sloped(number, [0, 0]),
        aside=scripted(*validated),
        reference=torch.tensor(reference),
        settings=MinimaxSettings(steps=1),
    )
    assert found.step == best
    assert found.regrets.tolist() == [
        a - b for a, b in zip(validated[best], reference, strict=True)
    ]


def test_the_best_weights_are_retained_and_not_the_last() -> None:
    """x goes past 1 with slope 1; the look nearest to 1 wins, the first of two alike."""
    number, seen = Number(2.0), []

    def aside() -> Tensor:
        seen.append(number.x.item())
        return (number.x - 1).abs().expand(2)

    found = minimax(
        number,
        losses=lambda: number.x.expand(2),
        aside=aside,
        reference=ZERO,
        settings=MinimaxSettings(steps=40, learning_rate=0.1, every=1),
    )
    assert seen[-1] < 0.5
    best = min(range(41), key=lambda n: abs(seen[n] - 1))
    assert (found.step, number.x.item()) == (best, seen[best])
    alike = minimax(
        number,
        losses=sloped(number, [0, 0]),
        aside=scripted([1, 1], [1, 1]),
        reference=ZERO,
        settings=MinimaxSettings(steps=1),
    )
    assert (alike.step, number.x.item()) == (0, seen[best])


@pytest.mark.parametrize("broken", [math.nan, math.inf, -math.inf])
def test_a_score_that_is_not_finite_is_never_best(broken: float) -> None:
    number = Number()
    found = minimax(
        number,
        losses=sloped(number, *[[0, 0]] * 3),
        aside=scripted([broken] * 2, [3, 3], [broken] * 2, [4, 4]),
        reference=ZERO,
        settings=MinimaxSettings(steps=3, every=1),
    )
    assert found.step == 1


def test_adamw_decays_weights_and_its_rate_along_a_cosine() -> None:
    """Under a slope of 1 a step is its rate: .1 · (1 + cos πt/T)/2 over T = 4 sums to .25."""
    number = Number()
    settings = MinimaxSettings(steps=4, learning_rate=0.1)
    minimax(
        number,
        losses=sloped(number, *[[0, 0]] * 4),
        aside=lambda: number.x.expand(2),
        reference=ZERO,
        settings=settings,
    )
    assert number.x.item() == pytest.approx(-0.25, abs=1e-6)
    decayed = Number(8.0)
    minimax(
        decayed,
        losses=lambda: 0 * decayed.x.expand(2),
        aside=lambda: decayed.x.expand(2),
        reference=ZERO,
        settings=MinimaxSettings(steps=1, learning_rate=0.1, weight_decay=2.5),
    )
    assert decayed.x.item() == pytest.approx(8 * (1 - 0.1 * 2.5))


def test_lambda_follows_the_smoothed_regrets() -> None:
    """From s = (1, −2) to ½ s + ½ (0, 3): a step along each, as `move_lambda` goes."""
    number = Number()
    found = minimax(
        number,
        losses=sloped(number, [3, 1], [2, 6]),
        aside=scripted([2, 2], [1, 1], [0, 0]),
        reference=torch.tensor([2.0, 3.0]),
        settings=MinimaxSettings(steps=2, every=1, rate_lambda=0.3, smoothing=0.5, floor=0.1),
    )
    lam = torch.tensor([0.5, 0.5])
    for regret in ([1.0, -2.0], [0.5, 0.5]):
        lam = move_lambda(lam, torch.tensor(regret), rate=0.3, floor=0.1)
    assert found.step == 2
    torch.testing.assert_close(found.weights, lam)


def test_every_domain_counts_alike_unless_set() -> None:
    """λ at the start decides which way x goes first: the slopes are 1, 1 and −1.5."""

    def first_step(start: Tensor | None) -> tuple[float, list[float]]:
        number, validated = Number(), []

        def aside() -> Tensor:
            validated.append(number.x.item())
            return torch.zeros(3)

        found = minimax(
            number,
            losses=lambda: number.x * torch.tensor([1.0, 1.0, -1.5]),
            aside=aside,
            reference=torch.zeros(3),
            settings=MinimaxSettings(steps=1, learning_rate=0.5),
            start=start,
        )
        return validated[-1], found.weights.tolist()

    assert first_step(None) == (pytest.approx(-0.5), pytest.approx([1 / 3] * 3))
    result = torch.tensor([0.25, 0.25, 0.5])
    assert first_step(result) == (pytest.approx(0.5), result.tolist())


def test_what_is_descended_elsewhere_counts_beside_the_game() -> None:
    """x² + 3 (x − 1)² is smallest at ¾."""
    number = Number()
    minimax(
        number,
        losses=lambda: (number.x**2).expand(2),
        aside=lambda: (number.x**2 + 3 * (number.x - 1) ** 2).expand(2),
        reference=ZERO,
        settings=MinimaxSettings(steps=300, learning_rate=0.02),
        elsewhere=lambda: 3 * (number.x - 1) ** 2,
    )
    assert number.x.item() == pytest.approx(0.75, abs=1e-3)


def test_it_validates_at_the_start_every_so_often_and_at_the_end() -> None:
    number, result, looked = Number(), [], []

    def aside() -> Tensor:
        looked.append(len(result))
        return torch.zeros(2)

    minimax(
        number,
        losses=sloped(number, *[[0, 0]] * 7),
        aside=aside,
        reference=ZERO,
        settings=MinimaxSettings(steps=7, every=3),
        progress=lambda done, of: result.append((done, of)),
    )
    assert result == [(n, 7) for n in range(1, 8)]
    assert looked == [0, 2, 5, 6]  # before progress tells of steps 3, 6 and 7
