"""From single seeds to metrics: means over seeds with their intervals, and which aims are met."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from red_lab.generative.study.seed import MONOLITHS
from red_lab.generative.study.simplex import over_simplex, recovered, regrets
from red_lab.robust.summary import over_seeds

__all__ = ["SCHEMA", "known", "ratio", "summarise"]

SCHEMA = "red-lab.generative/1"

Seed = Mapping[str, Any]
Bits = Sequence[float]


def summarise(measured: Sequence[Seed], *, draws: int) -> dict[str, Any]:
    """Return the metrics over seeds.

    Args:
        measured: What `one_seed` returned, each.
        draws: Mixtures drawn from the simplex.
    """
    seeds = [_with_product(m) for m in measured]
    names = list(dict.fromkeys(name for m in seeds for name in m["bits"]))
    return {
        "seeds": len(seeds),
        "domains": seeds[0]["domains"],
        "rare": [m["rare"] for m in seeds],
        "systems": {name: _system(seeds, name, draws=draws) for name in names},
        "rarity": {scene: _rarity(seeds, scene) for scene in ("rare", "few")},
        "divergence": _divergence(seeds),
        "monoliths": {name: _against(seeds, name) for name in MONOLITHS},
        "conflict": _nested(seeds, "conflict"),
        "switch": _switch(seeds),
        "distilled": _nested([{"d": m} for m in seeds], "d", only="distilled"),
        "product": _product(seeds),
        "sums": _sums(seeds),
        "seconds": _medians([m["seconds"] for m in seeds]),
        "peak_mib": max(m["peak_mib"] for m in seeds),
    }


def _with_product(seed: Seed) -> dict[str, Any]:
    """Add the product, in both its forms, to the systems of a seed."""
    bits = dict(seed["bits"])
    if "product" in seed:
        bits["product, residual"] = seed["product"]["bits"]
        bits["product, mixture"] = seed["product"]["mixture"]["bits"]
    return {**seed, "bits": bits}


def _system(measured: Sequence[Seed], name: str, *, draws: int) -> dict[str, Any]:
    """Return every figure of one system, over the seeds that have it."""
    seeds = [m for m in measured if name in m["bits"]]
    domains = seeds[0]["domains"]
    each = [over_simplex(m["bits"][name], m["bits"]["oracle"], draws=draws) for m in seeds]
    shares = [
        recovered(m["bits"][name], base=m["bits"]["base"], own=m["bits"]["oracle"]) for m in seeds
    ]
    gains = [known(share) for share in shares]
    return {
        "seeds": len(seeds),
        "bits": {d: over_seeds([m["bits"][name][k] for m in seeds]) for k, d in enumerate(domains)},
        **{
            key: over_seeds([e[key] for e in each])
            for key in ("mean", "worst", "mean_regret", "worst_regret")
        },
        "quantiles": _medians([e["quantiles"] for e in each]),
        "regret_quantiles": _medians([e["regret_quantiles"] for e in each]),
        "recovered": {
            d: over_seeds(known([s[k] for s in shares]) or [0.0]) for k, d in enumerate(domains)
        },
        "least_recovered": over_seeds([min(g) for g in gains if g] or [0.0]),
        "without_gain": sum(s is None for share in shares for s in share),
    }


def _rarity(measured: Sequence[Seed], scene: str) -> dict[str, Any]:
    """Return worst regrets of both routers while every domain is rare in turn."""
    turns, means = dict[str, Any](), list[tuple[float, float]]()
    for rare in measured[0]["domains"]:
        robust_name = "robust" if scene == "rare" else f"robust, few {rare}"
        average, robust = (
            [max(regrets(m["rarity"][name], m["bits"]["oracle"])) for m in measured]
            for name in (f"average, {scene} {rare}", robust_name)
        )
        means.append((float(np.mean(robust)), float(np.mean(average))))
        turns[rare] = {
            "average": over_seeds(average),
            "robust": over_seeds(robust),
            "difference": over_seeds([r - a for r, a in zip(robust, average, strict=True)]),
            "ratio": ratio(*means[-1]),
        }
    robust_mean, average_mean = np.mean(means, axis=0).tolist()
    return {"turns": turns, "ratio": ratio(robust_mean, average_mean)}


def known(values: Sequence[float | None]) -> list[float]:
    """Return the values that there are."""
    return [v for v in values if v is not None]


def ratio(one: float, other: float) -> float | None:
    """Return one regret over another; 0 for none at all, None where the other is none."""
    if other <= 0:
        return None if one > 0 else 0.0
    return max(one, 0.0) / other


def _divergence(measured: Sequence[Seed]) -> dict[str, Any]:
    keys = ("passage_nats", "most_nats", "bits_per_byte", "token_nats", "token_bits_per_byte")
    return {
        **{key: over_seeds([m["divergence"][key] for m in measured]) for key in keys},
        "token_nats_by_domain": {
            d: over_seeds([m["divergence"]["token_nats_by_domain"][d] for m in measured])
            for d in measured[0]["domains"]
        },
    }


def _against(measured: Sequence[Seed], name: str) -> dict[str, Any]:
    """Compare a monolith with the oracle, in units of the divergence, and with the router."""

    def gap(m: Seed, take: Callable[[Bits], float], unit: str) -> float:
        return take(regrets(m["bits"][name], m["bits"]["oracle"])) / float(m["divergence"][unit])

    def less(m: Seed, take: Callable[[Bits], float]) -> float:
        router, monolith = (regrets(m["bits"][n], m["bits"]["oracle"]) for n in ("robust", name))
        return take(router) - take(monolith)

    mean: Callable[[Bits], float] = lambda values: float(np.mean(values))  # noqa: E731
    return {
        **{
            f"{where}_gap_{what}_share": over_seeds([gap(m, take, unit) for m in measured])
            for where, take in (("mean", mean), ("worst", max))
            for what, unit in (("passage", "bits_per_byte"), ("token", "token_bits_per_byte"))
        },
        "router_less_mean": over_seeds([less(m, mean) for m in measured]),
        "router_less_worst": over_seeds([less(m, max) for m in measured]),
        "router_less_worst_bits": over_seeds(
            [max(m["bits"]["robust"]) - max(m["bits"][name]) for m in measured]
        ),
    }


def _switch(measured: Sequence[Seed]) -> dict[str, Any]:
    """Return how soon routers follow: medians over seeds, weights averaged."""
    switches = [m["switch"] for m in measured]
    routers = {}
    for name in switches[0]["routers"]:
        own = [t["routers"][name] for t in switches]
        routers[name] = {
            "median": _median_or_never([o["median"] for o in own]),
            "most": _median_or_never([o["most"] for o in own]),
            "never": float(np.mean([o["never"] for o in own])),
            "old": _rows([o["old"] for o in own]),
            "new": _rows([o["new"] for o in own]),
        }
    bits = {name: over_seeds([t["bits"][name] for t in switches]) for name in switches[0]["bits"]}
    return {"documents": switches[0]["documents"], "bits": bits, "routers": routers}


def _product(measured: Sequence[Seed]) -> dict[str, Any] | None:
    found = [m["product"] for m in measured if "product" in m]
    if not found:
        return None
    changed = [f["changed"] for f in found]
    return {
        "seeds": len(found),
        "seconds": over_seeds([f["seconds"] for f in found]),
        "router_seconds": over_seeds([f["router_seconds"] for f in found]),
        "weights": [f["weights"] for f in found],
        "declined_equal": all(f["declined_equal"] for f in found),
        "changed": changed,
        "digests_equal": all(c["digests_equal"] for c in changed),
        "router_restored": all(c["router_restored"] for c in changed),
        "attach_seconds": over_seeds([c["attach_seconds"] for c in changed]),
        "remove_seconds": over_seeds([c["remove_seconds"] for c in changed]),
        "most_lost": max(
            w - b for c in changed for w, b in zip(c["with"], c["before"], strict=True)
        ),
        "most_left": max(
            abs(a - b) for c in changed for a, b in zip(c["after"], c["before"], strict=True)
        ),
    }


def _sums(measured: Sequence[Seed]) -> dict[str, float]:
    found: dict[str, float] = {}
    for m in measured:
        gaps = {**m["sums"], **({"product": m["product"]["sum_gap"]} if "product" in m else {})}
        for name, gap in gaps.items():
            found[name] = max(found.get(name, 0.0), gap)
    return found


def _nested(measured: Sequence[Seed], key: str, *, only: str | None = None) -> dict[str, Any]:
    """Return numbers two levels deep, over seeds; `only` goes one level deeper first."""
    seeds = [m[key] if only is None else m[key][only] for m in measured]
    return {
        name: over_seeds([t[name] for t in seeds])
        if isinstance(value, float)
        else {inner: over_seeds([t[name][inner] for t in seeds]) for inner in value}
        for name, value in seeds[0].items()
    }


def _medians(seeds: Sequence[Mapping[str, float]]) -> dict[str, float]:
    return {key: float(np.median([t[key] for t in seeds])) for key in seeds[0]}


def _median_or_never(values: Sequence[float | None]) -> float | None:
    ordered = sorted(np.inf if v is None else v for v in values)
    middle = ordered[len(ordered) // 2]
    return None if np.isinf(middle) else float(middle)


def _rows(rows: Sequence[Sequence[float | None]]) -> list[float | None]:
    columns = zip(*rows, strict=True)
    return [
        None if any(x is None for x in column) else float(np.mean([x or 0.0 for x in column]))
        for column in columns
    ]
