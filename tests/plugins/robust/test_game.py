"""A game: one alphabet, and experts that can emit what the domains do."""

from __future__ import annotations

import numpy as np
import pytest
from redhost_robust.errors import GameError
from redhost_robust.game import Game, floored
from redhost_robust.gates import envelope
from redhost_robust.solve import solve_gate


def test_both_sides_are_over_one_alphabet() -> None:
    with pytest.raises(GameError) as caught:
        Game.of_rows([[0.5, 0.5]], [[0.2, 0.3, 0.5]])
    assert str(caught.value) == (
        "experts: expected rows over the domains' alphabet of 2 symbols, found 3. "
        "Write 0 for what a row never emits."
    )


def test_experts_may_be_more_than_domains_except_where_they_are_pairs() -> None:
    game = Game.of_rows([[0.5, 0.5]], [[0.2, 0.8], [0.9, 0.1]])
    assert game.symbols == 2
    with pytest.raises(
        GameError, match=r"^experts: expected one for each of the 1 domains, found 2$"
    ):
        game.require_own_experts()


def test_a_game_of_infinite_value_names_the_symbol() -> None:
    rows, experts = [[1.0, 0.0], [0.5, 0.5]], [[1.0, 0.0]]
    with pytest.raises(GameError) as caught:
        solve_gate(Game.of_rows(rows, experts))
    assert str(caught.value) == (
        "domains[1]: expected symbols that some expert can emit, "
        "found probability 0.5 at position 1, 0 in every expert. "
        "Floor the experts above 0: Game.of_rows(…, floor=1e-6), in JSON 'floor'."
    )
    assert solve_gate(Game.of_rows(rows, experts, floor=1e-3)).converged


def test_the_floor_keeps_rows_normalised() -> None:
    game = Game.of_rows([[1.0, 0.0]], [[1.0, 0.0]])
    floor = floored(game.experts, weight=0.1)
    np.testing.assert_allclose(floor, [[0.95, 0.05]], atol=1e-15)
    assert floored(game.experts, weight=0.0).tolist() == game.experts.tolist()
    for wrong in (-0.1, 1.0, float("nan")):
        with pytest.raises(GameError) as caught:
            floored(game.experts, weight=wrong)
        assert str(caught.value) == f"floor: expected a number in [0, 1), found {wrong}"


def test_the_alphabet_is_the_whole_one() -> None:
    """On ∪ supp p_k = {a} the expert (.9, .1) has Z = .9 for every gate: G1 would be empty."""
    game = Game.of_rows([[1.0, 0.0]], [[0.9, 0.1]])
    support = game.domains.max(axis=0) > 0
    _, most = envelope(game.experts)
    assert most[support].sum() == pytest.approx(0.9)  # no gate reaches 1
    solved = solve_gate(game)
    assert solved.model.sum() == pytest.approx(1, abs=1e-15)
    assert solved.model.tolist() == [0.9, 0.1]
