"""The page of the adapters' study, from its metrics; figures choose its sentences."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

__all__ = ["AIM", "SYSTEMS", "aims", "readme_block", "write_page"]

AIM = 0.99
"""Of what the oracle gains over no adapter."""

SYSTEMS = {
    "oracle": "each domain's own adapter (domain given): PEFT with the adapter named",
    "ridge:k=1": "**the host's router, `ridge:k=1`**",
    "statistics:k=1": "the host's router, `statistics:k=1`",
    "centroid": "the host's router, `centroid`",
    "nearest centroid": "nearest centroid of mean states, by cosine",
    "PEFT's Arrow": "PEFT's Arrow, token by token in every layer",
    "X-LoRA": "X-LoRA (PEFT): all adapters on every token, weighed by a trained gate",
    "joint adapter": "one adapter trained on everybody's texts, all ranks summed",
    "uniform merge": "uniform merge (PEFT, `cat`: the sum of the updates)",
    "TIES merge": "TIES merge (PEFT, density 0.2)",
    "DARE merge": "DARE merge (PEFT, density 0.5)",
    "at random": "an adapter at random",
    "shuffled numbers, named": "the domain's own, its numbers shuffled within each tensor",
    "no adapter": "the language model alone",
}
"""Name in the metrics → the table's row."""

LIMITS = {"top half": 1.6, "all blocks": 2.1}
"""Aims for a chosen adapter over the backbone's pass."""

DIFFERENT, STEP, CHOICE = 1.3, 1.05, 0.4
"""Aims: rows that choose differently over one adapter; a token over PEFT's; ms a choice."""


LABELS = (
    "## With labels",
    "",
    "When an adapter of a sentence encoder is worth its second pass, and when heads or sums of the "
    "frozen encoder are enough: [teams with labels of their own](../text/README.md), under "
    "adapters (`redhost lab text --adapters`).",
    "",
)
"""Where label experts are measured."""


def write_page(out: Path) -> None:
    """Write the page of a folder with ``metrics.json`` and ``cost.json``."""
    found, cost = (
        json.loads((out / f"{name}.json").read_text("utf-8")) for name in ("metrics", "cost")
    )
    lines = [
        *_head(found),
        *_systems(found),
        *_domains(found),
        *_change(found),
        *LABELS,
        *_cost(cost),
    ]
    (out / "README.md").write_text("\n".join(lines) + "\n", "utf-8")


SHOWN = (
    "no adapter",
    "oracle",
    "ridge:k=1",
    "nearest centroid",
    "PEFT's Arrow",
    "X-LoRA",
    "joint adapter",
    "TIES merge",
    "at random",
    "shuffled numbers, named",
)
"""What README shows."""


def readme_block(found: Mapping[str, Any]) -> str:
    """Return the README's table of adapters, from the page's metrics."""
    lines = ["| | bits per byte | of the oracle's gain |", "|---|---|---|"]
    for key in SHOWN:
        system = found["systems"][key]
        lines.append(f"| {SYSTEMS[key]} | {system['mean']:.3f} | {system['share']:.1%} |")
    note = (
        f"{len(found['setting']['domains'])} LoRA adapters of SmolLM2-135M, each trained alone "
        f"with PEFT; one seed. {_shared(found)}[All figures](docs/results/adapters/README.md)."
    )
    return "\n".join([*lines, "", note])


def _shared(found: Mapping[str, Any]) -> str:
    """Say what sharing texts would gain, where it gains something."""
    joint, oracle = (found["systems"][name]["mean"] for name in ("joint adapter", "oracle"))
    if joint >= oracle:
        return ""
    return (
        "Where everybody's texts may be in one place, one adapter that learns all of them takes "
        f"{1 - joint / oracle:.1%} fewer bits than each domain's own. "
    )


def _head(found: Mapping[str, Any]) -> Iterator[str]:
    s = found["setting"]
    early, late = s["steps"]
    yield "# Adapters: who chooses"
    yield ""
    yield "Written by `redhost lab bench adapters`."
    yield ""
    yield (
        f"{len(s['domains'])} LoRA adapters of SmolLM2-135M, each trained alone by PEFT on one "
        "kind of text: what Django and Wagtail say to their users in fifteen languages, sources "
        f"of C++ and Python, newswire, tales, a television series. Rank {s['rank']}, all linear "
        f"layers of the top {s['blocks']} of 30 blocks; {early} steps of {s['step_tokens']} tokens "
        f"for the first {s['early']} by name, {late} for the others. A card shows {s['card']} "
        f"passages. The first {s['prompt']} tokens of each of {s['excerpts']} excerpts, from "
        "documents that nobody learnt from, are routed; the adapter that is chosen reads the "
        f"excerpt, up to {s['longest']} tokens, and the tokens after the prompt are judged "
        f"({s['bytes']:,} bytes). One seed."
    )
    yield ""


def _systems(found: Mapping[str, Any]) -> Iterator[str]:
    systems, auto, s = found["systems"], found["auto"], found["setting"]
    yield "| system | bits per byte | of the oracle's gain | 95 % | right adapter |"
    yield "|---|---|---|---|---|"
    total = s["excerpts"]
    for key, name in SYSTEMS.items():
        x = systems[key]
        wrong = found["mistakes"].get(key)
        right = "" if wrong is None else f"{1 - sum(wrong.values()) / total:.3f}"
        yield (
            f"| {name} | {x['mean']:.3f} | {x['share']:.1%} | {x['low']:.1%} … {x['high']:.1%} "
            f"| {right} |"
        )
    yield ""
    ridge, oracle, base = systems["ridge:k=1"], systems["oracle"], systems["no adapter"]
    met = "met" if ridge["share"] >= AIM else "missed"
    yield (
        "Bits per byte are means over domains, less is better; intervals are over excerpts drawn "
        "anew within each domain. The adapters are worth choosing: the right one takes "
        f"{1 - oracle['mean'] / base['mean']:.1%} fewer bits than none. `ridge:k=1` keeps "
        f"{ridge['share']:.1%} of that gain; {AIM:.0%} was the aim: {met}. As a ratio of bits it "
        f"has {ridge['of_oracle']:.1%} of the oracle's score. {_beside(systems)} In merges "
        f"each adapter weighs {_weights(found['merge_weights'])}; of TIES and DARE that is the "
        f"better of 1/{len(s['domains'])} and 1 on other documents. The joint "
        f"adapter learnt the windows of all authors, shuffled, in {s['joint_steps']} steps; "
        f"X-LoRA's gate learnt from {s['gate_windows']} of those windows. They need what the "
        "others do not: everybody's texts in one place, and a training whenever one joins. "
        f"{_shared(found)}".rstrip()
    )
    yield ""
    tried = ", ".join(f"`{kind}` {share:.3f}" for kind, share in auto["tried"].items())
    yield (
        f"By itself a host takes `{auto['kind']}` here: of card tokens held back, the kinds sent "
        f"to their own expert {tried}. {_confused(found['mistakes']['ridge:k=1'])}"
    )
    yield ""


def _beside(systems: Mapping[str, Any]) -> str:
    """Say who is ahead of the router that a host takes, and who is behind."""
    ours = systems["ridge:k=1"]["share"]
    rest = [k for k in SYSTEMS if k not in {"oracle", "ridge:k=1", "no adapter"}]
    better = [k for k in rest if systems[k]["share"] > ours]
    if not better:
        return "No other way in the table keeps more."
    named = ", ".join(f"`{k}`" if k in {"statistics:k=1", "centroid"} else k for k in better)
    return f"More is kept by: {named}."


def _weights(weights: Mapping[str, float]) -> str:
    return ", ".join(f"{w:.3g} ({way.removesuffix(' merge')})" for way, w in weights.items())


def _confused(wrong: Mapping[str, int]) -> str:
    if not wrong:
        return "`ridge:k=1` gave every excerpt to its own adapter."
    ordered = sorted(wrong.items(), key=lambda pair: (-pair[1], pair[0]))
    some = ", ".join(f"{pair} ({n})" for pair, n in ordered)
    return f"Where `ridge:k=1` chose another: {some}."


def _domains(found: Mapping[str, Any]) -> Iterator[str]:
    systems = found["systems"]
    keys = ("no adapter", "oracle", "ridge:k=1", "PEFT's Arrow", "at random")
    yield "## By domain"
    yield ""
    yield "| bits per byte | " + " | ".join(keys) + " |"
    yield "|---" * (len(keys) + 1) + "|"
    for name in found["setting"]["domains"]:
        cells = " | ".join(f"{systems[k]['bits'][name]:.3f}" for k in keys)
        yield f"| {name} | {cells} |"
    yield ""


def _change(found: Mapping[str, Any]) -> Iterator[str]:
    c = found["change"]
    yield "## One joins, and leaves"
    yield ""
    same = "did not change" if c["adapters_equal"] else "CHANGED"
    back = "bit for bit the first again" if c["router_restored"] else "NOT the first again"
    yield (
        f"The router is solved without {c['newcomer']}, with it, and without it again, in "
        f"{', '.join(f'{s:.1f}' for s in c['seconds'])} seconds. The adapters' files {same}, and "
        f"the last router is {back}. {c['newcomer'].capitalize()} takes {c['bits'][0]:.3f} bits "
        f"per byte before it joins and {c['bits'][1]:.3f} after; of {c['others']} excerpts of "
        f"other domains {c['others_moved']} have another adapter than before."
    )
    yield ""


def _cost(cost: Mapping[str, Any]) -> Iterator[str]:
    yield "## What it costs"
    yield ""
    yield (
        f"SmolLM2-135M, texts of {cost['tokens']} tokens, {cost['threads']} thread. Systems take "
        "turns, round by round: medians of the rounds' own ratios, and their quartiles. "
        "Ours stand over the host's own pass, PEFT's over that of "
        "transformers."
    )
    yield ""
    batches = sorted(cost["passes"], key=int)
    names = {
        "top half": f"one adapter, on the top {cost['blocks']} of 30 blocks",
        "all blocks": "one adapter, on all blocks",
        "different": f"rows choose differently, top {cost['blocks']} blocks",
        "PEFT, named": f"PEFT, one adapter named, top {cost['blocks']} blocks",
        "PEFT, mixed batch": "PEFT, mixed batch (`adapter_names`)",
    }
    yield "| over a pass without adapters | " + " | ".join(f"batch {b}" for b in batches) + " |"
    yield "|---" * (len(batches) + 1) + "|"
    for key, name in names.items():
        cells = " | ".join(_ratio(cost["passes"][b]["over_backbone"][key]) for b in batches)
        yield f"| {name} | {cells} |"
    yield f"| rounds | {' | '.join(str(cost['passes'][b]['rounds']) for b in batches)} |"
    yield ""
    yield "| aim | found | |"
    yield "|---|---|---|"
    yield from (
        f"| {what} | {value} | {'met' if ok else 'missed'} |" for what, value, ok in aims(cost)
    )


def aims(cost: Mapping[str, Any]) -> Iterator[tuple[str, str, bool]]:
    """Yield what was aimed at, what was found, and whether that is enough."""
    batches = sorted(cost["passes"], key=int)
    for batch in batches:
        found = cost["passes"][batch]
        for key, limit in LIMITS.items():
            ratio = found["over_backbone"][key]["ratio"]
            yield (
                f"one adapter, {key}, batch {batch}: at most {limit} ×",
                f"{ratio:.2f} ×",
                ratio <= limit,
            )
        ratio = found["different_over_one"]["ratio"]
        what = f"rows choose differently, batch {batch}: at most {DIFFERENT} × of one adapter"
        yield what, f"{ratio:.2f} ×", ratio <= DIFFERENT
    ratio = cost["step"]["over_peft"]["ratio"]
    yield f"a token of generation: at most {STEP} × PEFT's", f"{ratio:.2f} ×", ratio <= STEP
    for batch in batches:
        found = cost["choice"][batch]
        ms = found["ms"]["median"]
        what = f"choosing among {found['of']:,}, batch {batch}: at most {CHOICE} ms of CPU a text"
        yield what, f"{ms:.2f} ms", ms <= CHOICE


def _ratio(x: Mapping[str, float]) -> str:
    return f"{x['ratio']:.2f} × ({x['low']:.2f} … {x['high']:.2f})"
