"""Render later sections of the page: imbalance, divergence, gradients, switches, product, time."""

from __future__ import annotations

from collections.abc import Mapping

from red_lab.metrics import Metrics

__all__ = ["conflict", "divergence", "product", "rarity", "seconds", "spread", "switch"]

_WHERE = ("mean", "worst")
SCENES = {
    "rare": "Rare in weight: equal rows of every domain, weight one hundredth for the rare one",
    "few": "Rare in weight and in rows: also one hundredth of its fit rows",
}


def rarity(metrics: Metrics) -> list[str]:
    """Return the section on traffic in which one domain is a hundred times rarer."""
    systems = metrics["systems"]
    shown = ("average", "robust", "monolith, traffic", "monolith, regret game")
    return [
        "## One domain a hundred times rarer",
        "",
        "Regret of the worst domain in bits per byte, for the same linear router trained on the "
        "same rows for the same steps.",
        "",
        *(line for scene in SCENES for line in _scene(metrics, scene)),
        "Compared with monoliths, regret of the worst domain under each seed's own traffic: "
        + "; ".join(f"{name}: {spread(systems[name]['worst_regret'])}" for name in shown)
        + ".",
        "",
        "![worst regret when a domain is rare](rarity.svg)",
        "",
    ]


def _scene(metrics: Metrics, scene: str) -> list[str]:
    rarity = metrics["rarity"][scene]
    return [
        f"### {SCENES[scene]}",
        "",
        "| rare domain | average loss | robust | difference | robust / average |",
        "|---" * 5 + "|",
        *(
            f"| {d} | {spread(t['average'])} | {spread(t['robust'])} | {spread(t['difference'])} "
            f"| {_ratio(t['ratio'])} |"
            for d, t in rarity["turns"].items()
        ),
        f"| mean over rare domains | | | | {_ratio(rarity['ratio'])} |",
        "",
    ]


def divergence(metrics: Metrics) -> list[str]:
    """Return the section on the divergence of the domains, and on monoliths relative to it."""
    measured = metrics["divergence"]
    each = ", ".join(f"{d} {t['mean']:.3f}" for d, t in measured["token_nats_by_domain"].items())
    return [
        "## Divergence of the domains",
        "",
        "The Jensen–Shannon divergence of the domains is computed with equal weights, each domain "
        "represented by its expert. By passage it is "
        f"{spread(measured['passage_nats'], 4)} nats of at most log K = "
        f"{measured['most_nats']['mean']:.4f} ({_saturation(measured)}), or "
        f"{spread(measured['bits_per_byte'], 4)} bits per byte. By token, between the experts' "
        f"next-token distributions, it is {spread(measured['token_nats'], 4)} nats on average "
        f"({each}), or {spread(measured['token_bits_per_byte'], 4)} bits per byte.",
        "",
        *_gaps(metrics),
    ]


def _gaps(metrics: Metrics) -> list[str]:
    keys = [f"{where}_gap_{what}_share" for what in ("passage", "token") for where in _WHERE]
    return [
        "Gap of each monolith to the domains' own experts, relative to the divergence by passage "
        "and by token (negative: the monolith is better than the experts), and robust router "
        "minus monolith in bits per byte (negative: the router is better):",
        "",
        "| monolith | mean gap / passage divergence | worst gap / passage divergence | mean gap / "
        "token divergence | worst gap / token divergence | router − monolith, mean regret "
        "| router − monolith, worst regret |",
        "|---" * 7 + "|",
        *(
            f"| {name.removeprefix('monolith, ')} "
            + "".join(f"| {spread(t[key], 2)} " for key in keys)
            + f"| {spread(t['router_less_mean'], 4)} | {spread(t['router_less_worst'], 4)} |"
            for name, t in metrics["monoliths"].items()
        ),
        "",
    ]


def conflict(metrics: Metrics) -> list[str]:
    """Return the section on the domains' gradients in the monolith."""
    lines = [
        "## Gradients of the domains in the balanced monolith",
        "",
        "| time in training | mean cosine | smallest | share below zero |",
        "|---|---|---|---|",
    ]
    lines += [
        f"| {when} | {spread(t['mean'])} | {spread(t['least'])} | {t['negative']['mean']:.2f} |"
        for when, t in metrics["conflict"].items()
    ]
    return [*lines, ""]


def switch(metrics: Metrics) -> list[str]:
    """Return the section on documents that change their domain."""
    measured = metrics["switch"]
    lines = [
        "## Documents that change their domain half-way",
        "",
        f"{measured['documents']} documents, all ordered pairs of domains. The table gives the "
        "number of tokens of the new domain until the new domain's expert first has the largest "
        "weight, and bits per byte after the switch. For comparison, the base has "
        f"{measured['bits']['base']['mean']:.3f} and the own expert "
        f"{measured['bits']['own expert']['mean']:.3f} bits per byte.",
        "",
        "| router | tokens, median | tokens, 90 % of documents | never, share | bits per byte "
        "after |",
        "|---" * 5 + "|",
    ]
    lines += [
        f"| {name} | {_tokens(t['median'])} | {_tokens(t['most'])} | {t['never']:.2f} "
        f"| {spread(measured['bits'][name])} |"
        for name, t in measured["routers"].items()
    ]
    return [*lines, "", "![weights around the switch](switch.svg)", ""]


def product(metrics: Metrics) -> list[str]:
    """Return the section on packages: the same experts composed by a host."""
    measured = metrics["product"]
    if measured is None:
        return []
    return [
        "## Through packages",
        "",
        "The experts as packages, composed with the router `causal` from "
        f"cards of at most {metrics['setting']['card']:,} tokens. Seeds: {measured['seeds']}. "
        f"Composing takes {spread(measured['seconds'], 1)} seconds, "
        f"{spread(measured['router_seconds'], 1)} of them for the router. "
        "The rows `product` of the tables are the answers of this composition's bus.",
        "",
        "Mean weight of the column `backbone`, which adds nothing, on test texts, by seed: "
        + "; ".join(
            ", ".join(f"{d} {w:.2f}" for d, w in weights.items()) for weights in measured["weights"]
        )
        + ". Rows without that column are the same packages composed without it.",
        "",
        "One domain is added to the others and removed again; bits per byte of the other domains "
        "before, with it, and after:",
        "",
        "| domain added | before | with it | after |",
        "|---|---|---|---|",
        *(
            f"| {c['domain']} | {_row(c['before'])} | {_row(c['with'])} | {_row(c['after'])} |"
            for c in measured["changed"]
        ),
        "",
        f"With it, the bits per byte of the others rise by {measured['most_lost']:+.4f} at most. "
        f"Composing takes {spread(measured['attach_seconds'], 1)} seconds with it and "
        f"{spread(measured['remove_seconds'], 1)} without.",
        "",
    ]


def seconds(metrics: Metrics) -> list[str]:
    """Return the section on time and memory."""
    lines = [
        "## Time and memory",
        "",
        f"Training time, median over seeds; peak memory {metrics['peak_mib']:,.0f} MiB.",
        "",
        "| model | seconds |",
        "|---|---|",
    ]
    lines += [f"| {name} | {value:.1f} |" for name, value in metrics["seconds"].items()]
    return [*lines, ""]


def spread(interval: Mapping[str, float], digits: int = 3) -> str:
    """Return a mean with the half-width of its interval."""
    half = (interval["high"] - interval["low"]) / 2
    return f"{interval['mean']:.{digits}f}" + (f" ± {half:.{digits}f}" if half else "")


def _saturation(measured: Metrics) -> str:
    share = measured["passage_nats"]["mean"] / measured["most_nats"]["mean"]
    return (
        f"{share:.1%} of it: passages identify their domain, and longer ones would add nothing"
        if share > 0.95  # noqa: PLR2004
        else f"{share:.1%} of it"
    )


def _ratio(value: float | None) -> str:
    return "–" if value is None else f"{value:.2f}"


def _tokens(value: float | None) -> str:
    return "never" if value is None else f"{value:.0f}"


def _row(values: list[float]) -> str:
    return " ".join(f"{v:.3f}" for v in values)
