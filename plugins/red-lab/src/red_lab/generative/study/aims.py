"""What the numbers say: which aims are met, and which side wins. Nothing here is typed in."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from red_lab.metrics import Metrics

__all__ = ["aims", "beyond", "sides"]


ENOUGH = 0.9
"""Share of the oracle's gain that the causal router is to recover on every domain."""
HALF = 0.5
"""Of the average-loss router's worst regret, at most, for the robust router."""
SUM = 1e-5
"""How far a mixture may be from 1."""
CAUSAL = (
    "robust",
    "robust, residual",
    "robust shares",
    "robust shares, residual",
    "product, residual",
    "product, mixture",
)


def aims(metrics: Metrics) -> list[tuple[bool, str]]:
    """Return every aim: whether it is met, and the numbers that say so."""
    return [
        _experts(metrics),
        *(_recovers(metrics, name) for name in CAUSAL if name in metrics["systems"]),
        _rarity(metrics, "rare", "in weight"),
        _sums(metrics),
        *_product(metrics),
    ]


def beyond(metrics: Metrics) -> str:
    """Say how the robust router does where the rare domain also has few rows: no aim of ours."""
    met, statement = _rarity(metrics, "few", "in weight and in rows")
    return f"Beyond the aims, {'this holds' if met else 'this does not hold'}: {statement}."


def sides(metrics: Metrics) -> list[str]:
    """Say whether the router over experts or the best monolith wins, at the mean and at worst."""
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
            f"neither side wins surely: the robust router less the best monolith ({name}) is "
            f"{mean:+.4f} ({low:+.4f} … {high:+.4f}) bits per byte"
        )
    who = "the modular side wins" if mean < 0 else "the monolith wins" if mean > 0 else "both tie"
    return (
        f"{who}: the robust router less the best monolith ({name}) is {mean:+.4f} "
        f"({low:+.4f} … {high:+.4f}) bits per byte"
    )


def _shares(bits: float, metrics: Metrics) -> str:
    divergence = metrics["divergence"]
    passage, token = (divergence[k]["mean"] for k in ("bits_per_byte", "token_bits_per_byte"))
    if min(passage, token) <= 0:
        return "and the domains do not diverge"
    return (
        f"{abs(bits) / passage:.2f} of the passages' divergence and {abs(bits) / token:.2f} of "
        "the tokens'"
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
        "Every expert beats the base on its own domain: by "
        f"{gains[least]:+.3f} bits per byte at least ({least}){tail}",
    )


def _recovers(metrics: Metrics, name: str) -> tuple[bool, str]:
    shares = {d: t["mean"] for d, t in metrics["systems"][name]["recovered"].items()}
    least = min(shares, key=lambda d: shares[d])
    return (
        shares[least] >= ENOUGH,
        f"The causal router ({name}) recovers at least {ENOUGH:.0%} of the oracle's gain on every "
        f"domain: {shares[least]:.1%} on {least}, where it is least",
    )


def _rarity(metrics: Metrics, scene: str, how: str) -> tuple[bool, str]:
    rarity = metrics["rarity"][scene]
    missed = [d for d, t in rarity["turns"].items() if t["ratio"] is None or t["ratio"] > HALF]
    count = len(rarity["turns"])
    tail = f"; missed where {', '.join(missed)} is rare" if missed else ""
    return (
        not missed,
        f"With one domain a hundred times rarer {how}, the robust router's worst regret is at most "
        f"half of the average-loss router's, whichever domain it is: {_ratio(rarity['ratio'])} on "
        f"the whole, in {count - len(missed)} of {count} turns{tail}",
    )


def _ratio(value: float | None) -> str:
    return "more than none" if value is None else f"{value:.2f} of it"


def _sums(metrics: Metrics) -> tuple[bool, str]:
    largest = max(metrics["sums"].values())
    return largest <= SUM, f"Every mixture sums to 1 over the vocabulary: within {largest:.0e}"


def _product(metrics: Metrics) -> list[tuple[bool, str]]:
    product = metrics["product"]
    if product is None:
        return []
    same = product["digests_equal"] and product["router_restored"] and product["most_left"] == 0.0
    return [
        (
            product["declined_equal"],
            "With every expert declined the logits are the base's, bit for bit: "
            + _yes(product["declined_equal"]),
        ),
        (
            same,
            "Adding a domain and removing it leaves everything else as it was: digests equal "
            f"{_yes(product['digests_equal'])}, the router's weights restored "
            f"{_yes(product['router_restored'])}, bits per byte afterwards "
            f"{product['most_left']:.0e} apart",
        ),
    ]


def _yes(value: bool) -> str:
    return "yes" if value else "no"
