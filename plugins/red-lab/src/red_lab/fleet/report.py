"""The page of `redhost lab fleet`."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator, Mapping
from typing import Any

from red_lab.metrics import Metrics

__all__ = ["page"]

MIB = 2**20


def page(metrics: Metrics) -> str:
    """Return the page for metrics of the schema ``redhost-lab.fleet/1``."""
    return "\n".join(_lines(metrics)) + "\n"


def _lines(metrics: Metrics) -> Iterator[str]:
    yield "# A fleet"
    yield ""
    yield from _prose(
        "Written by `redhost lab fleet` from `metrics.json`; do not edit. "
        f"{metrics['machine']['cores']} cores that others share."
    )
    for name, section in (
        ("storm", _storm),
        ("rollouts", _rollouts),
        ("canaries", _canaries),
        ("cost", _cost),
        ("throughput", _throughput),
        ("ray", _ray),
        ("growth", _growth),
    ):
        if name in metrics:
            yield ""
            yield from section(metrics[name])


def _prose(text: str) -> list[str]:
    return textwrap.wrap(text, 98)


def _storm(s: Mapping[str, Any]) -> Iterator[str]:
    weather = ", ".join(f"{kind} {n} times" for kind, n in s["weather"].items())
    yield "## The storm"
    yield ""
    yield from _prose(
        f"{s['clients']} clients ask {s['replicas']} replicas of one machine without a pause for "
        f"{s['seconds']:.0f} seconds. Each replica is a process that follows a store which speaks "
        f"S3, through a network that is {weather}: slow is 100 ms for each part of an "
        "answer, gone every connection cut, half a push "
        "that is killed on its way. The pointer moves "
        f"{s['swaps']} times, and {s['kills']} replicas are killed (SIGKILL) and start again."
    )
    yield ""
    yield "| | |"
    yield "|---|---|"
    yield f"| answers | {s['answers']:,} |"
    yield f"| failed | {s['failed']} |"
    yield f"| asked again, as their replica was killed | {s['retried']} |"
    yield f"| mixed | {s['mixed']} |"
    yield f"| stale: more than 2 s after the pointer moved, the store in reach | {s['stale']} |"
    yield f"| seconds in which the store was gone | {s['outage_seconds']:.0f} |"
    took = s["last_swap_seconds"]
    yield (
        "| from the pointer's move to the last replica's first answer, the last swap of each "
        f"| {min(took):.2f} to {max(took):.2f} s |"
    )


def _rollouts(r: Mapping[str, Any]) -> Iterator[str]:
    limits = r["limits"]
    yield "## Canaries, simulated"
    yield ""
    yield from _prose(
        f"{r['rollouts']:,} canaries of each kind, at most {r['labels']:,} labelled texts, a look "
        f"every {r['look']}. Limits: {limits['alarm']:.0%} of those that are as good may end, "
        f"{limits['miss']:.0%} of those that are worse "
        f"by {100 * limits['margin']:.0f} point may be "
        "promoted. Five experts with equal shares of the texts. *Better* is how often the canary "
        "alone is right: the more often the two differ, the more labels it takes to tell them "
        "apart."
    )
    yield ""
    yield "| canary | ended | after (median) | promoted | after (median) | runs on |"
    yield "|---|---|---|---|---|---|"
    for row in r["rows"]:
        yield (
            f"| {row['kind']} | {row['end']:.1%} | {_count(row['end_after'])} "
            f"| {row['promote']:.1%} | {_count(row['promote_after'])} | {row['hold']:.1%} |"
        )


def _canaries(c: Mapping[str, Any]) -> Iterator[str]:
    yield "## Canaries on real posts"
    yield ""
    yield from _prose(
        f"Five teams' experts on 20 Newsgroups, MiniLM, are production: {c['accuracy']:.3f} of "
        f"{c['posts']:,} posts that came later are right; up to 5 % are to be declined, and count "
        "as wrong. A canary has a new expert of one team, "
        "made from what became of its rows, or another router. What both answer is labelled in "
        f"{c['rollouts']:,} orders, at most {c['labels']:,} posts each, under the limits above. "
        "*By* is what the canary gains or loses over all posts; *better* how often it alone is "
        "right. Orders are drawn from one set of posts, so the shares of ends tell how sure the "
        "judge is of these very canaries, not how often it errs in general."
    )
    yield ""
    yield (
        "| canary | by, points | better | ended | after (median) | promoted | after (median) "
        "| runs on |"
    )
    yield "|---|---|---|---|---|---|---|---|"
    for row in c["rows"]:
        yield (
            f"| {row['kind']} | {100 * (row['better'] - row['worse']):+.1f} | {row['better']:.1%} "
            f"| {row['end']:.1%} | {_count(row['end_after'])} "
            f"| {row['promote']:.1%} | {_count(row['promote_after'])} | {row['hold']:.1%} |"
        )
    yield ""
    yield from _prose(
        "Drift of the texts that production gave to each expert, from its card, in standard "
        "deviations of the card's rows; texts in brackets. The posts of the first line are those "
        "that experts and cards were made of."
    )
    yield ""
    experts = list(c["drift"][0]["drift"])
    yield f"| texts | {' | '.join(experts)} |"
    yield "|---" * (len(experts) + 1) + "|"
    for row in c["drift"]:
        cells = (_drift(row["drift"].get(i)) for i in experts)
        yield f"| {row['texts']} | {' | '.join(cells)} |"


def _drift(found: Mapping[str, float] | None) -> str:
    return "–" if found is None else f"{found['distance']:.2f} ({found['texts']:,})"


def _count(n: float | None) -> str:
    return "–" if n is None else f"{n:,.0f}"


def _cost(c: Mapping[str, Any]) -> Iterator[str]:
    yield "## What a canary costs"
    yield ""
    yield from _prose(
        f"Two generations of {c['heads']} heads on one "
        "MiniLM, whole answers in process, one thread, "
        "in turns; overheads are medians of the rounds' "
        "own ratios, with their quartiles. *Half and "
        "half*: each text is answered by one of them, in one pass of the encoder. *Mirror*: both "
        "answer every text. *Twice* is what it costs without sharing the pass. The second "
        f"generation's memory is {c['memory']:.2%} of the encoder's weights. The aim is 2 %."
    )
    yield ""
    yield "| texts | one generation | half and half | mirror | twice |"
    yield "|---|---|---|---|---|"
    for row in c["rows"]:
        cells = " | ".join(_overhead(row[name]) for name in ("split", "mirror", "twice"))
        yield f"| {row['texts']} | {1e3 * row['seconds']['median']:.1f} ms | {cells} |"


def _overhead(o: Mapping[str, float]) -> str:
    return f"{o['ratio']:+.1%} ({o['low']:+.1%} to {o['high']:+.1%})"


def _throughput(t: Mapping[str, Any]) -> Iterator[str]:
    first = t["rows"][0]["answers_a_second"]
    yield "## Replicas of one machine"
    yield ""
    yield from _prose(
        f"{t['clients']} clients, one text a request, "
        f"{t['seconds']:.0f} seconds each; the clients "
        "run on the same cores, one thread a replica. More replicas than cores give nothing."
    )
    yield ""
    yield "| replicas | answers a second | over one |"
    yield "|---|---|---|"
    for row in t["rows"]:
        rate = row["answers_a_second"]
        yield f"| {row['replicas']} | {rate:.0f} | {rate / first:.2f} |"


def _ray(t: Mapping[str, Any]) -> Iterator[str]:
    first = t["rows"][0]["answers_a_second"]
    yield "## Nodes of Ray"
    yield ""
    yield from _prose(
        "The same through Ray Serve, one replica on each node; the nodes are processes of the same "
        "machine, and Ray's own run on its cores as well."
    )
    yield ""
    yield "| nodes | answers a second | over one |"
    yield "|---|---|---|"
    for row in t["rows"]:
        rate = row["answers_a_second"]
        yield f"| {row['nodes']} | {rate:.0f} | {rate / first:.2f} |"


def _growth(g: Mapping[str, Any]) -> Iterator[str]:
    yield "## A swap over many replicas, on paper"
    yield ""
    link, store = g["link"] / MIB, g["store"] / MIB
    yield from _prose(
        f"A look every {g['poll']} s, {link:.0f} MiB/s "
        f"to each replica, {store:,.0f} MiB/s from the "
        "store in all. The formula is an upper bound; "
        "beside it a simulation of each look and each "
        "byte. See [Fleets](../../fleet.md) for the formula."
    )
    yield ""
    yield (
        "| what is new | replicas | half follow within | the last within | formula | moved "
        "| looks a second |"
    )
    yield "|---|---|---|---|---|---|---|"
    for row in g["rows"]:
        yield (
            f"| {row['plan']} | {row['replicas']:,} | {row['median']:.1f} s | {row['last']:.1f} s "
            f"| {row['formula']:.1f} s | {row['bytes'] / MIB:,.0f} MiB | {row['requests']:,.0f} |"
        )
