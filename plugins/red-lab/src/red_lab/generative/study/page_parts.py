"""The later sections of the page: imbalance, divergence, gradients, switches, product, seconds."""

from __future__ import annotations

from collections.abc import Mapping

from red_lab.metrics import Metrics

__all__ = ["conflict", "divergence", "product", "rarity", "seconds", "spread", "switch"]

_WHERE = ("mean", "worst")
SCENES = {
    "rare": "Rare in weight: as many rows of every domain, the rare one counts a hundredth",
    "few": "Rare in weight and in rows: a hundredth of its fit rows as well",
}


def rarity(metrics: Metrics) -> list[str]:
    """Return the section on traffic in which one domain is a hundred times rarer."""
    systems = metrics["systems"]
    beside = ("average", "robust", "monolith, traffic", "monolith, regret game")
    return [
        "## One domain a hundred times rarer",
        "",
        "Worst domain's regret, bits per byte, of the same linear form trained on the same rows "
        "for the same steps.",
        "",
        *(line for scene in SCENES for line in _scene(metrics, scene)),
        "Beside the monolith, under each seed's own traffic, worst domain's regret: "
        + ", ".join(f"{name} {spread(systems[name]['worst_regret'])}" for name in beside)
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
        f"| mean over turns | | | | {_ratio(rarity['ratio'])} |",
        "",
    ]


def divergence(metrics: Metrics) -> list[str]:
    """Return the section on how far apart the domains are, and where monoliths stand."""
    measured = metrics["divergence"]
    each = ", ".join(f"{d} {t['mean']:.3f}" for d, t in measured["token_nats_by_domain"].items())
    return [
        "## How far apart the domains are",
        "",
        "Jensen–Shannon divergence of the domains, the experts standing in for them, all alike: "
        f"{spread(measured['passage_nats'], 4)} nats a passage of at most log K = "
        f"{measured['most_nats']['mean']:.4f} ({_saturation(measured)}), which is "
        f"{spread(measured['bits_per_byte'], 4)} bits per byte. The experts' next-token "
        f"distributions are {spread(measured['token_nats'], 4)} nats apart on a mean token "
        f"({each}): "
        f"{spread(measured['token_bits_per_byte'], 4)} bits per byte.",
        "",
        *_gaps(metrics),
    ]


def _gaps(metrics: Metrics) -> list[str]:
    keys = [f"{where}_gap_{what}_share" for what in ("passage", "token") for where in _WHERE]
    return [
        "Gap of each monolith to the domains' own experts as a share of the passages' divergence "
        "and of the tokens' (below zero it is better than they are), and the robust router less "
        "the monolith, bits per byte (below zero the router is better):",
        "",
        "| monolith | mean gap, of passages' | worst gap | mean gap, of tokens' | worst gap "
        "| router less it, mean | at worst regret |",
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
    """Return the section on gradients of domains in the monolith."""
    lines = [
        "## Gradients of the domains in the balanced monolith",
        "",
        "| when | mean cosine | least | share below zero |",
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
        f"{measured['documents']} documents, all ordered pairs of domains. Tokens of the new "
        "domain that a router had read when its own expert first had the largest weight, and bits "
        "per byte after the switch; base "
        f"{measured['bits']['base']['mean']:.3f}, own expert "
        f"{measured['bits']['own expert']['mean']:.3f}.",
        "",
        "| router | median | 90 % of documents | never | bits per byte after |",
        "|---" * 5 + "|",
    ]
    lines += [
        f"| {name} | {_tokens(t['median'])} | {_tokens(t['most'])} | {t['never']:.2f} "
        f"| {spread(measured['bits'][name])} |"
        for name, t in measured["routers"].items()
    ]
    return [*lines, "", "![weights around the switch](switch.svg)", ""]


def product(metrics: Metrics) -> list[str]:
    """Return the section on packages: what a host does with the same experts."""
    measured = metrics["product"]
    if measured is None:
        return []
    return [
        "## Through packages",
        "",
        "The experts as packages, composed by `redhost.compose` under the router `causal` from "
        f"cards of at most {metrics['setting']['card']:,} tokens, {measured['seeds']} seeds: "
        f"{spread(measured['seconds'], 1)} seconds, "
        f"{spread(measured['router_seconds'], 1)} of them for the router. "
        "Rows `product` of the tables are what its bus answers.",
        "",
        "Mean weight of the column `backbone`, which changes nothing, on test texts, by seed: "
        + "; ".join(
            ", ".join(f"{d} {w:.2f}" for d, w in weights.items()) for weights in measured["weights"]
        )
        + ". The rows without that column are the same packages composed without it.",
        "",
        "One domain added to the others and removed again: bits per byte of the others before, "
        "with it, and after.",
        "",
        "| domain | before | with it | after |",
        "|---|---|---|---|",
        *(
            f"| {c['domain']} | {_row(c['before'])} | {_row(c['with'])} | {_row(c['after'])} |"
            for c in measured["changed"]
        ),
        "",
        f"The others lose {measured['most_lost']:+.4f} at most with it. "
        f"{spread(measured['attach_seconds'], 1)} seconds to compose with it, "
        f"{spread(measured['remove_seconds'], 1)} without.",
        "",
    ]


def seconds(metrics: Metrics) -> list[str]:
    """Return the section on time and memory."""
    lines = [
        "## Seconds and memory",
        "",
        f"Median over seeds; {metrics['peak_mib']:,.0f} MiB at most.",
        "",
        "| trained | seconds |",
        "|---|---|",
    ]
    lines += [f"| {name} | {value:.1f} |" for name, value in metrics["seconds"].items()]
    return [*lines, ""]


def spread(interval: Mapping[str, float], digits: int = 3) -> str:
    """Return a mean with half its interval."""
    half = (interval["high"] - interval["low"]) / 2
    return f"{interval['mean']:.{digits}f}" + (f" ± {half:.{digits}f}" if half else "")


def _saturation(measured: Metrics) -> str:
    share = measured["passage_nats"]["mean"] / measured["most_nats"]["mean"]
    return (
        f"{share:.1%} of it: passages are long enough to tell, and longer ones add nothing"
        if share > 0.95  # noqa: PLR2004
        else f"{share:.1%} of it"
    )


def _ratio(value: float | None) -> str:
    return "–" if value is None else f"{value:.2f}"


def _tokens(value: float | None) -> str:
    return "never" if value is None else f"{value:.0f}"


def _row(values: list[float]) -> str:
    return " ".join(f"{v:.3f}" for v in values)
