"""Finite games: closed forms, comparison with a general solver, samples, and time by size."""

from __future__ import annotations

import math
import statistics
from time import perf_counter
from typing import Any

import numpy as np
from redhost_robust import (
    Array,
    Certificate,
    Game,
    disjoint_value,
    envelope,
    expert_divergences,
    kl,
    solve_constant,
    solve_gate,
    solve_stochastic,
    worst_kl,
)
from scipy.optimize import minimize

__all__ = ["closed_forms", "curve", "finite", "general", "random_game", "samples"]

DOMAINS = (2, 4, 8, 16, 32, 64)
SYMBOLS = (100, 1000, 10_000)
RUNS = 3


def finite() -> dict[str, Any]:
    """Return all measurements on finite games."""
    return {
        "closed_forms": closed_forms(),
        "general": general(games=50),
        "samples": samples(games=20),
        "curve": curve(),
    }


def random_game(seed: int, *, domains: int, symbols: int) -> Game:
    """Return domains from a Dirichlet law, and experts that are noisy copies of them."""
    draw = np.random.default_rng(seed)
    rows = draw.dirichlet(np.full(symbols, 0.5), size=domains)
    noisy = (rows + 1e-9) * np.exp(0.5 * draw.standard_normal(rows.shape))
    return Game(domains=rows, experts=noisy / noisy.sum(axis=1, keepdims=True))


def closed_forms() -> list[dict[str, Any]]:
    """Solve the games whose values are known, in nats; the last with the constant-gate solver."""
    entropy = -(0.11 * math.log(0.11) + 0.89 * math.log(0.89))
    channels = {
        "binary symmetric channel, .11": ([[0.89, 0.11], [0.11, 0.89]], math.log(2) - entropy),
        "Z-channel": ([[1.0, 0.0], [0.5, 0.5]], math.log(1.25)),
        "erasure channel, .3": ([[0.7, 0.3, 0.0], [0.0, 0.3, 0.7]], 0.7 * math.log(2)),
    }
    found = [
        _closed_form(name, value, solve_gate(Game.of_rows(rows, rows), tol=1e-10))
        for name, (rows, value) in channels.items()
    ]
    draw, blocks = np.random.default_rng(0), np.zeros((2, 4, 16))
    for k in range(4):
        blocks[:, k, 4 * k : 4 * k + 4] = draw.dirichlet(np.ones(4), size=2)
    game = Game(domains=blocks[0], experts=blocks[1])
    value = disjoint_value(expert_divergences(game))
    return [
        *found,
        _closed_form("disjoint supports, constant gate", value, solve_constant(game, tol=1e-10)),
    ]


def general(*, games: int) -> dict[str, Any]:
    """Solve random games with our solver and with SLSQP; return the largest difference in nats."""
    apart = []
    for seed in range(games):
        draw = np.random.default_rng(seed)
        size = {"domains": int(draw.integers(2, 6)), "symbols": int(draw.integers(3, 9))}
        game = random_game(seed, **size)
        apart.append(abs(solve_gate(game, tol=1e-9).value - _slsqp(game)))
    return {"games": games, "median": statistics.median(apart), "most": max(apart)}


def samples(*, games: int) -> dict[str, Any]:
    """Solve random games from samples; return the excess over the exact value, and |Z − 1|."""
    above, normalisers = [], []
    for seed in range(games):
        draw = np.random.default_rng(1000 + seed)
        size = {"domains": int(draw.integers(2, 9)), "symbols": int(draw.integers(4, 65))}
        game = random_game(seed, **size)
        found = solve_stochastic(game, seed=seed)
        above.append(found.worst_normalised - solve_gate(game).value)
        normalisers.append(abs(found.normaliser - 1))
    return {
        "games": games,
        "median": statistics.median(above),
        "most": max(above),
        "normaliser": max(normalisers),
    }


def curve() -> list[dict[str, Any]]:
    """Return seconds, steps and gap of the exact solver over K and |X|; medians of three games."""
    points = []
    for symbols in SYMBOLS:
        for domains in DOMAINS:
            solved, seconds = [], []
            for seed in range(RUNS):
                game = random_game(seed, domains=domains, symbols=symbols)
                start = perf_counter()
                solved.append(solve_gate(game))
                seconds.append(perf_counter() - start)
            points.append(
                {
                    "domains": domains,
                    "symbols": symbols,
                    "seconds": statistics.median(seconds),
                    "iterations": statistics.median(s.iterations for s in solved),
                    "gap": max(s.gap for s in solved),
                }
            )
    return points


def _closed_form(name: str, value: float, solved: Certificate) -> dict[str, Any]:
    return {
        "game": name,
        "value": value,
        "lower": solved.lower,
        "upper": solved.upper,
        "error": abs(solved.value - value),
        "iterations": solved.iterations,
    }


def _slsqp(game: Game) -> float:
    """Return min t over (π, t) with KL(p_k ‖ π) ≤ t, Σπ = 1 and m ≤ π ≤ M."""
    least, most = envelope(game.experts)
    start = game.experts.mean(axis=0)
    one = np.append(np.ones(game.symbols), 0.0)

    def gradient(v: Array) -> Array:
        return np.hstack([game.domains / v[:-1], np.ones((len(game.domains), 1))])

    found = minimize(
        lambda v: v[-1],
        np.append(start, worst_kl(game.domains, start)),
        jac=lambda _: np.append(np.zeros(game.symbols), 1.0),
        bounds=[*zip(least, most, strict=True), (0, None)],
        constraints=[
            {"type": "ineq", "fun": lambda v: v[-1] - kl(game.domains, v[:-1]), "jac": gradient},
            {"type": "eq", "fun": lambda v: one @ v - 1, "jac": lambda _: one},
        ],
        method="SLSQP",
        options={"ftol": 1e-12, "maxiter": 500},
    )
    return float(found.fun)
