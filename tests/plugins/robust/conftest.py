"""Random games, and a sequence process small enough to enumerate."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from redhost_robust.game import Game
from redhost_robust.probability import Array
from redhost_robust.sequences import Sequences

from ...commands.conftest import call

__all__ = ["call"]

GameMaker = Callable[..., Game]


def random_game(
    seed: int,
    *,
    domains: int = 3,
    experts: int | None = None,
    symbols: int = 6,
    noise: float = 0.5,
    peaked: float = 0.5,
) -> Game:
    """Domains from a Dirichlet law, and experts that are noisy copies of them."""
    draw = np.random.default_rng(seed)
    rows = draw.dirichlet(np.full(symbols, peaked), size=domains)
    copied = rows[np.arange(experts or domains) % domains]
    noisy = (copied + 1e-9) * np.exp(noise * draw.standard_normal(copied.shape))
    return Game(domains=rows, experts=noisy / noisy.sum(axis=1, keepdims=True))


def near_duplicates(seed: int, *, domains: int, symbols: int, spread: float) -> Game:
    """Domains and experts within a small factor of one law."""
    draw = np.random.default_rng(seed)
    rows = draw.dirichlet(np.ones(symbols)) * np.exp(
        spread * draw.standard_normal((2 * domains, symbols))
    )
    rows /= rows.sum(axis=1, keepdims=True)
    return Game(domains=rows[:domains], experts=rows[domains:])


def markov_experts(seed: int, sequences: Sequences, *, experts: int) -> Array:
    """Markov chains over all paths, every step possible, ``(K, X)``."""
    draw, paths = np.random.default_rng(seed), sequences.paths
    rows = []
    for _ in range(experts):
        step = 0.9 * draw.dirichlet(np.ones(sequences.symbols), size=sequences.symbols)
        step += 0.1 / sequences.symbols
        row = draw.dirichlet(np.ones(sequences.symbols))[paths[:, 0]]
        for t in range(1, sequences.steps):
            row = row * step[paths[:, t - 1], paths[:, t]]
        rows.append(row)
    return np.array(rows)


@pytest.fixture(scope="session")
def games() -> GameMaker:
    """Return ``games(seed, domains=3, experts=None, symbols=6, noise=.5, peaked=.5)``."""
    return random_game


@pytest.fixture(scope="session")
def twins() -> GameMaker:
    """Return ``twins(seed, domains=…, symbols=…, spread=…)``: nearly duplicated rows."""
    return near_duplicates


@pytest.fixture(scope="session")
def sequences() -> Sequences:
    """Return all sequences of 4 steps over 3 symbols: 81 paths."""
    return Sequences(symbols=3, steps=4)


@pytest.fixture(scope="session")
def chains(sequences: Sequences) -> Array:
    """Return three Markov chains over the paths, ``(3, 81)``."""
    return markov_experts(0, sequences, experts=3)
