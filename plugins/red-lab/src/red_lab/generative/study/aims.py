"""Derive conclusions from the metrics: which targets are met, and which side wins."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from red_lab.metrics import Metrics

__all__ = ["aims", "beyond", "sides"]


ENOUGH = 0.9
"""Target: share of the oracle's gain that the causal router recovers on every domain."""
HALF = 0.5
"""Target: the robust router's worst regret over the average-loss router's, at most."""
SUM = 1e-5
"""Largest deviation of a mixture's sum from 1."""
CAUSAL = (
    "robust",
    "robust, residual",
    "robust shares",
    "robust shares, residual",
    "product, residual",
    "product, mixture",
)


def aims(metrics: Metrics) -> list[tuple[bool, str]]:
    """Return for every target whether it is met, and a sentence with the numbers."""
    return [
        _experts(metrics),
        *(_recovers(metrics, name) for name in CAUSAL if name in metrics["systems"]),
        _rarity(metrics, "rare", "in weight"),
        _sums(metrics),
        *_product(metrics),
    ]


def beyond(metrics: Metrics) -> str:
    """Return the same comparison where the rare domain also has few rows, which is no target."""
    met, statement = _rarity(metrics, "few", "in weight and in rows")
    return f"In addition to the targets, {'this holds' if met else 'this fails'}: {statement}."


def sides(metrics: Metrics) -> list[str]:
    """Return whether the router over experts or the best monolith wins, at the mean and worst."""
    monoliths: Mapping[str, Any] = metrics["monoliths"]
    statements = []
    for key, field, where in (
        ("mean_regret", "router_less_mean", "At the mean over all mixtures"),
        ("worst_regret", "router_less_worst", "At the mixture with the worst regret"),
        ("worst", "router_less_worst_bits", "At the mixture with the most bits per byte"),
    ):
        best = min(monoliths, key=lambda n: metrics["systems"][n][key]["mean"])
        less = monoliths[best][field]
        statements.append(f"{where} {_winner(less, best)}, {_shares(less['mean'], metrics)}.")
    return statements


def _winner(less: Mapping[str, float], monolith: str) -> str:
    mean, low, high = less["mean"], less["low"], less["high"]
    name = monolith.replace("monolith, ", "")
    if low <= 0 <= high and low < high:
        return (
            f"neither side clearly wins: the robust router minus the best monolith ({name}) is "
            f"{mean:+.4f} ({low:+.4f} … {high:+.4f}) bits per byte"
        )
    who = "the experts win" if mean < 0 else "the monolith wins" if mean > 0 else "both tie"
    return (
        f"{who}: the robust router minus the best monolith ({name}) is {mean:+.4f} "
        f"({low:+.4f} … {high:+.4f}) bits per byte"
    )


def _shares(bits: float, metrics: Metrics) -> str:
    divergence = metrics["divergence"]
    passage, token = (divergence[k]["mean"] for k in ("bits_per_byte", "token_bits_per_byte"))
    if min(passage, token) <= 0:
        return "and the domains do not diverge"
    return (
        f"{abs(bits) / passage:.2f} times the divergence by passage and {abs(bits) / token:.2f} "
        "times that by token"
    )


def _experts(metrics: Metrics) -> tuple[bool, str]:
    systems = metrics["systems"]
    gains = {
        d: systems["base"]["bits"][d]["mean"] - systems[f"expert {d}"]["bits"][d]["mean"]
        for d in metrics["domains"]
    }
    least = min(gains, key=lambda d: gains[d])
    behind = [d for d, g in gains.items() if g <= 0]
    tail = f"; not on {', '.join(behind)}" if behind else ""
    return (
        not behind,
        "Every expert beats the base on its own domain: the smallest gain is "
        f"{gains[least]:+.3f} bits per byte ({least}){tail}",
    )


def _recovers(metrics: Metrics, name: str) -> tuple[bool, str]:
    shares = {d: t["mean"] for d, t in metrics["systems"][name]["recovered"].items()}
    least = min(shares, key=lambda d: shares[d])
    return (
        shares[least] >= ENOUGH,
        f"The causal router ({name}) recovers at least {ENOUGH:.0%} of the oracle's gain on every "
        f"domain: the smallest share is {shares[least]:.1%} on {least}",
    )


def _rarity(metrics: Metrics, scene: str, how: str) -> tuple[bool, str]:
    rarity = metrics["rarity"][scene]
    missed = [d for d, t in rarity["turns"].items() if t["ratio"] is None or t["ratio"] > HALF]
    count = len(rarity["turns"])
    tail = f"; missed where {', '.join(missed)} is rare" if missed else ""
    return (
        not missed,
        f"With one domain a hundred times rarer {how}, the robust router's worst regret is at most "
        f"half of the average-loss router's, for every choice of that domain: "
        f"{_ratio(rarity['ratio'])} overall; it holds for {count - len(missed)} of {count} domains"
        f"{tail}",
    )


def _ratio(value: float | None) -> str:
    return "more than zero" if value is None else f"{value:.2f} of it"


def _sums(metrics: Metrics) -> tuple[bool, str]:
    largest = max(metrics["sums"].values())
    return largest <= SUM, f"Every mixture sums to 1 over the vocabulary, within {largest:.0e}"


def _product(metrics: Metrics) -> list[tuple[bool, str]]:
    product = metrics["product"]
    if product is None:
        return []
    same = product["digests_equal"] and product["router_restored"] and product["most_left"] == 0.0
    return [
        (
            product["declined_equal"],
            "With no weight on any expert the logits are bitwise those of the base: "
            + _yes(product["declined_equal"]),
        ),
        (
            same,
            "Adding a domain and removing it changes nothing else: digests equal: "
            f"{_yes(product['digests_equal'])}; router weights restored: "
            f"{_yes(product['router_restored'])}; difference of bits per byte afterwards: "
            f"{product['most_left']:.0e}",
        ),
    ]


def _yes(value: bool) -> str:
    return "yes" if value else "no"
