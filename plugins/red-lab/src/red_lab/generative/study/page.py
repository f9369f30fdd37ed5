"""The page of `redhost lab generative`: a function of its metrics and of nothing else."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from red_lab.generative.study.aims import aims, beyond, sides
from red_lab.generative.study.page_parts import (
    conflict,
    divergence,
    product,
    rarity,
    seconds,
    switch,
)
from red_lab.metrics import Metrics

__all__ = ["page"]


def page(metrics: Metrics) -> str:
    """Return the page for metrics of the schema ``red-lab.generative/1``."""
    return "\n".join(
        [
            *_head(metrics),
            *_aims_section(metrics),
            *_systems(metrics),
            *_simplex(metrics),
            *rarity(metrics),
            *divergence(metrics),
            *conflict(metrics),
            *switch(metrics),
            *product(metrics),
            *seconds(metrics),
        ]
    )


def _head(metrics: Metrics) -> list[str]:
    s, b = metrics["setting"], metrics["backbone"]
    sources = ", ".join(f"{k} {v}" for k, v in metrics["texts"]["sources"].items())
    return [
        f"# Generative experts on {metrics['name']}",
        "",
        f"Written by `redhost lab generative --backbone {metrics['name']}` from `metrics.json`; "
        "do not edit. Bits per byte on test passages unless stated otherwise; means and 95 % "
        f"intervals (Student's t) over {metrics['seeds']} seeds. A seed changes initial weights, "
        "batches and which domain is rare, never the texts.",
        "",
        f"Backbone of width {b['width']} and vocabulary {b['vocabulary']:,}. "
        f"Domains: {', '.join(metrics['domains'])}; texts that Python and packages carry "
        f"({sources}), dealt by whole documents. Tokens of a domain, at most: "
        + ", ".join(f"{p} {n:,}" for p, n in s["tokens"].items())
        + ".",
        "",
        f"Experts: rank {s['rank']}, {s['epochs']} epochs of AdamW {s['learning_rate']:g}, weight "
        f"decay {s['weight_decay']:g}, dropout {s['dropout']:g}, penalty {s['off_domain']:g} on "
        "what they add to the background's logits. A monolith is one adapter of K times the rank "
        "that visits as many tokens as the experts together, without that penalty. "
        f"{metrics['parameters']['experts']:,} numbers in all experts, as many in a monolith, "
        f"{metrics['parameters']['router']:,} in a router.",
        "",
        *_routers(metrics),
    ]


def _routers(metrics: Metrics) -> list[str]:
    distilled = metrics["distilled"]
    return [
        "Routers are linear on [z | c], c a causal memory of what was read; all learn from `fit` "
        "tokens and are kept by `gate` tokens. The average-loss router and the monolith of the "
        "same name see traffic in which one domain is a hundred times rarer than each other one: "
        f"{', '.join(metrics['rare'])} by seed. `robust` plays against the worst regret, each "
        "domain's loss less that of its own expert on the same tokens; `robust shares` divides "
        "that by what the expert gains on the base. `bayes` is the exact causal "
        "posterior of a uniform mixture of whole passages: it needs every expert's head product. "
        "`distilled` learnt the posterior over experts of the whole passage; its model of a "
        f"passage is {_plain(distilled['passage_nats'])} nats from that teacher's, its weights "
        f"{_plain(distilled['token_nats'])} nats a token.",
        "",
    ]


def _aims_section(metrics: Metrics) -> list[str]:
    lines = ["## What came out", ""]
    lines += [
        f"- {'met' if met else '**MISSED**'}: {statement}." for met, statement in aims(metrics)
    ]
    lines += ["", *(f"- {statement}" for statement in (*sides(metrics), beyond(metrics)))]
    return [
        *lines,
        "",
        "Neither side gets the domain. Whatever the model, its worst regret against exact "
        "experts is at least the capacity of the channel from domain to passage, at most log K "
        "nats a passage; a normalised gate obeys the same floor as a monolith.",
        "",
    ]


def _systems(metrics: Metrics) -> list[str]:
    domains = metrics["domains"]
    lines = [
        "## Every system",
        "",
        f"| system | {' | '.join(domains)} | least recovered |",
        "|---" * (len(domains) + 2) + "|",
    ]
    for name, system in metrics["systems"].items():
        cells = " | ".join(_interval(system["bits"][d]) for d in domains)
        lines.append(f"| {name} | {cells} | {100 * system['least_recovered']['mean']:.1f} % |")
    return [
        *lines,
        "",
        "Recovered is (base − system) / (base − own expert), here of the domain where it is "
        "least. Mixtures are Σ γ_k p_k unless `residual` stands beside: softmax(W (h + Σ γ_k Δ_k)),"
        " one head product a token however many experts there are.",
        "",
        "![recovered share by domain](recovered.svg)",
        "",
    ]


def _simplex(metrics: Metrics) -> list[str]:
    quantiles = list(metrics["systems"]["base"]["regret_quantiles"])
    named = " | ".join(f"{100 * float(q):.0f} %" for q in quantiles)
    lines = [
        "## Over all mixtures of traffic",
        "",
        "Bits per byte are linear in the shares of bytes λ, so the worst mixture is one domain. "
        f"Quantiles of regret against the own expert over {metrics['setting']['draws']:,} draws "
        "of λ from Dirichlet(1).",
        "",
        f"| system | mean | worst domain | mean regret | worst regret | {named} |",
        "|---" * (5 + len(quantiles)) + "|",
    ]
    for name, system in metrics["systems"].items():
        tail = " | ".join(f"{system['regret_quantiles'][q]:+.4f}" for q in quantiles)
        cells = " | ".join(
            _interval(system[key]) for key in ("mean", "worst", "mean_regret", "worst_regret")
        )
        lines.append(f"| {name} | {cells} | {tail} |")
    return [*lines, ""]


def _interval(interval: Mapping[str, float], digits: int = 3) -> str:
    half = (interval["high"] - interval["low"]) / 2
    spread = f" ± {half:.{digits}f}" if half else ""
    return f"{interval['mean']:.{digits}f}{spread}"


def _plain(interval: Mapping[str, Any]) -> str:
    return f"{interval['mean']:.3f}"
