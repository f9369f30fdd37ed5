"""Enumerated sequences: masses of prefixes, and the chain rule."""

from __future__ import annotations

import numpy as np
import pytest
from redhost_robust.errors import GameError
from redhost_robust.probability import Array
from redhost_robust.sequences import Sequences


def test_paths_are_in_the_order_of_their_digits() -> None:
    assert Sequences(symbols=2, steps=2).paths.tolist() == [[0, 0], [0, 1], [1, 0], [1, 1]]
    assert Sequences(symbols=1, steps=1).paths.tolist() == [[0]]


def test_masses_by_hand() -> None:
    masses = Sequences(symbols=2, steps=2).prefix_masses(np.array([[0.1, 0.2, 0.3, 0.4]]))
    np.testing.assert_allclose(
        masses[0], [[1, 1, 1, 1], [0.3, 0.3, 0.7, 0.7], [0.1, 0.2, 0.3, 0.4]], atol=1e-15
    )


def test_the_chain_rule(sequences: Sequences, chains: Array) -> None:
    conditionals = sequences.conditionals(chains)
    assert conditionals.shape == (3, 4, 81)
    np.testing.assert_allclose(conditionals.prod(axis=1), chains, atol=1e-15)
    last = conditionals[:, -1].reshape(3, 27, 3).sum(axis=2)  # over x_T, for each prefix
    np.testing.assert_allclose(last, 1, atol=1e-12)


def test_a_prefix_that_cannot_be_has_no_successors() -> None:
    found = Sequences(symbols=2, steps=2).conditionals(np.array([[0.5, 0.5, 0.0, 0.0]]))
    assert found[0].tolist() == [[1, 1, 0, 0], [0.5, 0.5, 0, 0]]


def test_what_is_too_large_or_does_not_fit_is_refused() -> None:
    for symbols, steps in ((10, 7), (0, 3), (3, 0)):
        with pytest.raises(GameError) as caught:
            Sequences(symbols=symbols, steps=steps)
        assert str(caught.value) == (
            "sequences: expected A ≥ 1, T ≥ 1 and at most 1000000 paths, "
            f"found A = {symbols}, T = {steps}"
        )
    assert Sequences(symbols=10, steps=6).steps == 6  # a million just fit
    with pytest.raises(GameError, match=r"measures: expected \(K, 4\), found \(1, 3\)"):
        Sequences(symbols=2, steps=2).prefix_masses(np.ones((1, 3)))
