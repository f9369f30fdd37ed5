"""The game as nature sees it: D(λ) by hand, and divergences from models with zeros."""

from __future__ import annotations

import math

import numpy as np
import pytest
from redhost_robust.divergences import kl
from redhost_robust.saddle import BoxGame

P = np.array([[0.5, 0.5, 0.0], [0.0, 0.5, 0.5]])


def test_the_best_response_to_a_mixture_by_hand() -> None:
    """p_λ = (.25, .5, .25) is outside the box: .4 at the first symbol, and .4, .2 for the rest."""
    game = BoxGame(P, np.array([0.4, 0.0, 0.0]), np.ones(3))
    point = game.at(np.array([0.5, 0.5]))
    np.testing.assert_allclose(point.mixture, [0.25, 0.5, 0.25])
    np.testing.assert_allclose(point.model, [0.4, 0.4, 0.2], atol=1e-15)
    losses = [math.log(0.5) - math.log(0.4 * 0.4) / 2, math.log(0.5) - math.log(0.4 * 0.2) / 2]
    np.testing.assert_allclose(point.losses, losses)
    assert point.value == pytest.approx(sum(losses) / 2)
    bounds = point.bounds
    assert (bounds.lower, bounds.upper) == (point.value, point.losses.max())
    assert bounds.lam is point.lam
    assert bounds.host is point.model


def test_losses_are_divergences_and_infinite_where_they_must_be() -> None:
    game = BoxGame(P, np.zeros(3), np.ones(3))
    for model in (np.array([0.2, 0.3, 0.5]), np.array([0.0, 0.5, 0.5]), np.array([0.0, 1.0, 0.0])):
        np.testing.assert_allclose(game.losses(model), kl(P, model), atol=1e-15)
