"""Samples of a finite game: the right symbols, the right frequencies, the same for a seed."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from redhost_robust.errors import GameError
from redhost_robust.game import Game
from redhost_robust.source import FiniteSource, draw, running_sums


def test_frequencies_are_the_probabilities(games) -> None:
    game = games(0, domains=3, symbols=5)
    source = FiniteSource(game, seed=1)
    symbols, logs = source.domain_batch(20_000)
    assert symbols.shape == (3, 20_000)
    assert logs.shape == (3, 20_000, 3)
    for rows, drawn in (
        (game.domains, symbols),
        (game.experts, source.expert_batch(20_000)),
    ):
        counts = np.stack([np.bincount(s, minlength=5) for s in drawn.numpy()])
        np.testing.assert_allclose(counts / 20_000, rows, atol=0.015)
    expected = np.log(game.experts.T[symbols.numpy()])
    np.testing.assert_allclose(logs.numpy(), expected, atol=1e-12)


def test_what_has_no_probability_is_never_drawn() -> None:
    """Not even by u at the very ends of [0, 1)."""
    sums = running_sums(torch.tensor([[0.0, 0.3, 0.0, 0.7, 0.0]], dtype=torch.float64))
    ends = torch.tensor([[0.0, 0.3, 1 - 1e-16]], dtype=torch.float64)
    assert torch.searchsorted(sums, ends, right=True).tolist() == [[1, 3, 3]]
    many = draw(sums, 5000, generator=torch.Generator().manual_seed(0))
    assert set(many.flatten().tolist()) == {1, 3}


def test_sums_end_at_exactly_1() -> None:
    """Ten tenths are a little less; no draw of u may fall behind the last symbol."""
    tenths = torch.full((1, 10), 0.1, dtype=torch.float64)
    assert tenths.cumsum(1)[0, -1] < 1
    assert running_sums(tenths)[0, -1] == 1
    padded = torch.nn.functional.pad(tenths, (0, 1))
    assert running_sums(padded)[0, -2:].tolist() == [1, 1]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_draw_inverts_the_distribution_function(dtype: torch.dtype) -> None:
    """Of X symbols that are all alike it is ⌊u X⌋; u = k/X itself, which comes up, is symbol k."""
    sums = running_sums(torch.full((2, 2**16), 2.0**-16, dtype=dtype))
    u = torch.rand(2, 5000, dtype=dtype, generator=torch.Generator().manual_seed(0))
    expected = (u * 2**16).to(torch.int64)
    assert torch.equal(draw(sums, 5000, generator=torch.Generator().manual_seed(0)), expected)
    if dtype == torch.float32:
        assert (u * 2**16 == expected).any()


def test_the_seed_decides_and_the_global_state_does_not(games) -> None:
    game = games(0)
    first, again = (FiniteSource(game, seed=3).domain_batch(50)[0] for _ in range(2))
    torch.manual_seed(0)
    assert torch.equal(first, again)
    assert not torch.equal(first, FiniteSource(game, seed=4).domain_batch(50)[0])


def test_features_take_the_place_of_symbols(games) -> None:
    game = games(0)
    features = torch.arange(12.0).reshape(6, 2)
    source = FiniteSource(game, features=features, seed=3)
    symbols = FiniteSource(game, seed=3).domain_batch(7)[0]
    assert torch.equal(source.domain_batch(7)[0], features[symbols])
    with pytest.raises(GameError, match=r"features: expected \(6, F\), found \(5, 2\)"):
        FiniteSource(game, features=features[:5])


def test_a_game_of_infinite_value_has_no_samples() -> None:
    with pytest.raises(GameError, match="0 in every expert"):
        FiniteSource(Game.of_rows([[0.5, 0.5]], [[1.0, 0.0]]))
