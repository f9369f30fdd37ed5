"""Render the tables of the section on other libraries, and check its targets."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from red_lab.bench.peers.limits import BATCH, CARD

__all__ = ["aims", "large", "page", "times_ours"]

TITLES = {
    "floor": "plain forward",
    "redhost": "**redhost**, five experts, whole pass",
    "redhost bus": "**redhost**, bus timed separately, router `evidence`",
    "redhost bus, linear": "redhost, bus timed separately, router `linear`",
    "peft one": "PEFT, one of five adapters active",
    "peft five": "PEFT, five adapters active",
    "peft mixed": "PEFT, mixed batch (`adapter_names`)",
    "peft merged": "PEFT, one adapter merged",
    "x-lora": "PEFT X-LoRA over five",
    "hub floor": "plain forward, the transformers version of `adapters`",
    "adapters fuse": "`adapters`, Fuse of five",
    "adapters average": "`adapters`, Average of five",
}
MOST = "all rows"
"""The training rows with which X-LoRA is most accurate."""

TIMES_PEFT, TIMES_XLORA, SWAP = 10, 50, 0.05
"""Targets: peers' overhead and time to add over redhost's, at least; seconds of a swap, at most."""


def page(found: Mapping[str, Any]) -> str:
    """Return the section's tables."""
    noted = [found["note"]] if "note" in found else []
    parts = [*noted, _settings(found), *(_forward(name, found) for name in found["forward"])]
    parts += [_changes(found), _live(found), _adding(found), _aims(found), BETTER]
    parts += ["![Overhead over the plain forward](peers.svg)"]
    return "\n\n".join("\n".join(part) if not isinstance(part, str) else part for part in parts)


BETTER = """Where the peers are better: a merged LoRA adapter has no overhead; a bus always has.
LoRA adapts inside the blocks, so it can learn what a residual on the last hidden state cannot.
Loading, deleting and hot-swapping an adapter take milliseconds, since nothing is checked, trained,
evaluated or written to disk; the caller must name the adapter. On a backbone as small as the tiny
one, the few calls of the router cost as much as a block."""


def _settings(found: Mapping[str, Any]) -> str:
    v = found["versions"]
    other = ", ".join(f"{k} {x}" for k, x in sorted(v["beside adapters"].items()))
    return (
        "Each system has five experts or adapters with the same budget of parameters (D²/2): LoRA "
        "on q and v at the nearest rank, bottlenecks after every block for `adapters`. Settings: "
        f"eval mode, inference mode, float32, no KV cache, {found['threads']} threads; "
        f"{found['runs']} rounds at the largest batch and three times as many at smaller ones. "
        "Every pass runs immediately after a plain forward. Its overhead is the median over these "
        "pairs; for the bus alone it is the ratio of medians. The baseline of every system is a "
        "plain transformers forward with a classifier on the last token, in the same process. "
        "Adapters have random weights, since times depend on shapes alone. "
        f"PEFT {v['peft']}, transformers {v['transformers']}, torch {v['torch']}; in a separate "
        f"environment {other}."
    )


def _forward(name: str, found: Mapping[str, Any]) -> Iterator[str]:
    measured = found["forward"][name]
    systems, memory = {**measured["systems"], **measured["hub"]}, found["memory"][name]
    batches = sorted(systems["floor"], key=int)
    yield f"**{name}**, {measured['tokens']} tokens per text: overhead over the plain forward, with"
    yield "quartiles over rounds in brackets, and the peak memory of a process that runs only this"
    yield "system, once, at the largest batch."
    yield ""
    yield f"| system | {' | '.join(f'batch {b}' for b in batches)} | peak memory |"
    yield "|---" * (2 + len(batches)) + "|"
    for key, title in TITLES.items():
        cells = [_cell(key, systems[key][b]) for b in batches]
        peak = f"{memory[key] / 2**20:,.0f} MiB" if memory.get(key) else ""
        yield f"| {title} | {' | '.join(cells)} | {peak} |"


def _cell(key: str, measured: Mapping[str, Any]) -> str:
    if key.endswith("floor"):
        return f"{1000 * measured['seconds']['median']:.1f} ms"
    o = measured["overhead"]
    digits = 2 if "bus" in key else 1
    return f"{o['ratio']:+.{digits}%} ({o['low']:+.{digits}%}…{o['high']:+.{digits}%})"


def _changes(found: Mapping[str, Any]) -> Iterator[str]:
    alone = ("redhost", None, None)
    rows = {
        "**redhost**, `Host.attach`, `detach`, `replace`": ("redhost", "add", "remove", "swap"),
        "**redhost**, bus only, weights in memory": (*alone, "bus swap, answered"),
        "**redhost**, the same without an answer": (*alone, "bus swap"),
        "PEFT, `load_adapter`, `delete_adapter`, `hotswap_adapter`": (
            "peft",
            "add",
            "remove",
            "swap",
        ),
        "`adapters`, `load_adapter`, `delete_adapter`": ("adapters", "add", "remove", None),
    }
    yield "Time in milliseconds until the next right answer after one change to five experts, on"
    yield "the tiny backbone. A host reads and checks the package, encodes its card, trains the"
    yield "router, evaluates every domain, writes a generation to disk, loads it and answers. The"
    yield "peers read a file, and the caller names the adapter. `adapters` has random weights: an"
    yield "answer counts as right if it is that of the intended adapters. All systems answer one"
    yield "text at a time; redhost's answers are bitwise identical in any batch."
    yield ""
    yield "| system | add | remove | swap | right answers |"
    yield "|---|---|---|---|---|"
    for title, (side, *names) in rows.items():
        timings = found["changes"][side]
        cells = [_ms(timings[n]["seconds"]) if n else "" for n in names]
        right = all(timings[n]["correct"] for n in names if n)
        yield f"| {title} | {' | '.join(cells)} | {'all' if right else 'NO'} |"


def _live(found: Mapping[str, Any]) -> Iterator[str]:
    yield "Swaps while a client sends requests without a pause and holds no lock. Both versions of"
    yield "the expert answer the requested texts correctly. redhost's swap reads, verifies, loads"
    yield "and warms up a generation."
    yield ""
    yield "| system | swap, ms | swaps | answers | wrong | errors |"
    yield "|---|---|---|---|---|---|"
    for title, key in (("**redhost**, `Live.swap`", "redhost"), ("`hotswap_adapter`", "peft")):
        t = found["live"][key]
        yield (
            f"| {title} | {_ms(t['seconds'])} | {t['swaps']} | {t['answers']:,} | {t['wrong']} "
            f"| {t['errors']} |"
        )


def _adding(found: Mapping[str, Any]) -> Iterator[str]:
    a = found["adding"]
    ours, big = a["redhost"], large(a)
    yield "Adding a sixth expert to five on the tiny backbone; accuracy on held-out rows. X-LoRA"
    yield f"has to reach {a['target']:.3f}, one point below the lower of two accuracies: redhost's,"
    yield f"and that of X-LoRA's own adapters under oracle routing ({a['oracle']:.3f}). X-LoRA's"
    yield "seconds are those of its training steps alone. redhost's include everything up to the"
    yield f"next right answer; {ours['router_seconds']:.3f} s of them train the router. On the rows"
    yield "that train redhost's router (`same rows`) X-LoRA overfits, so it was also trained on"
    yield "these together with the experts' rows (`all rows`). Its settings and those of its"
    yield "adapters are the best of six and of eight tried on held-out rows, which favours X-LoRA."
    yield ""
    yield "| system | rows | seconds | steps | accuracy | best accuracy |"
    yield "|---" * 6 + "|"
    yield f"| **redhost**, `Host.attach` | | {ours['seconds']:.3f} | | {ours['accuracy']:.3f} | |"
    for name, x in a["x-lora"].items():
        best = f"{x['best']['accuracy']:.3f} after {x['best']['seconds']:.1f} s"
        end = "reached" if x["reached"] else f"stopped at {a['cap']:.0f} s"
        yield (
            f"| X-LoRA, {name} | {x['rows']:,} | {x['seconds']:.1f}, {end} | {x['steps']:,} "
            f"| {x['accuracy']:.3f} | {best} |"
        )
    yield ""
    yield (
        "An estimate for SmolLM2, from shapes alone: a training step of X-LoRA's router over six "
        f"adapters takes {big['step']:.2f} s for {big['rows']} rows, so the "
        f"{a['x-lora'][MOST]['steps']} steps that the tiny backbone needs with all rows take "
        f"{big['x-lora']:.0f} s. redhost encodes the newcomer's card ({big['rows']} rows in "
        f"{big['encode']:.2f} s, twice) and trains its router ({1000 * big['router']:.0f} ms): "
        f"{big['redhost']:.2f} s. The number of steps is that of the tiny backbone."
    )


def large(adding: Mapping[str, Any]) -> dict[str, float]:
    """Return the estimate for SmolLM2: seconds of a step, of encoding, of both routers."""
    seconds = {name: part["median"] for name, part in adding["large"].items()}
    return {
        **seconds,
        "rows": BATCH,
        "x-lora": seconds["step"] * adding["x-lora"][MOST]["steps"],
        "redhost": seconds["encode"] * CARD / BATCH + seconds["router"],
    }


def times_ours(found: Mapping[str, Any], name: str, batch: str) -> float:
    """Return how many times the bus's overhead PEFT with five adapters has."""
    systems = found["forward"][name]["systems"]
    theirs, ours = (systems[s][batch]["overhead"]["ratio"] for s in ("peft five", "redhost bus"))
    return float(theirs / ours)


def aims(found: Mapping[str, Any]) -> list[tuple[str, str, bool]]:
    """Return each target, the measured value, and whether the target is met."""
    rows = []
    for batch in sorted(found["forward"]["smollm2"]["systems"]["floor"], key=int):
        times = times_ours(found, "smollm2", batch)
        ours = "redhost's overhead (router `evidence`, the default)"
        what = f"PEFT, five adapters: at least {TIMES_PEFT} × {ours}, SmolLM2, batch {batch}"
        rows.append((what, f"{times:.1f} ×", times >= TIMES_PEFT))
    rows += _adding_aims(found["adding"])
    swap = found["changes"]["redhost"]["bus swap, answered"]["seconds"]["median"]
    what = f"swap on the bus, weights in memory, answer included: at most {1000 * SWAP:.0f} ms"
    rows.append((what, f"{1000 * swap:.1f} ms", swap <= SWAP))
    wrong = found["live"]["redhost"]["wrong"]
    rows.append(("wrong answers during live swaps: none", str(wrong), wrong == 0))
    return rows


def _adding_aims(adding: Mapping[str, Any]) -> Iterator[tuple[str, str, bool]]:
    """Yield how much faster adding is; a run that was stopped gives a lower bound."""
    ours, big = adding["redhost"], large(adding)
    what = f"adding a sixth expert: at most 1/{TIMES_XLORA} of X-LoRA's retraining time"
    for name, x in adding["x-lora"].items():
        times = x["seconds"] / ours["seconds"]
        stopped = f"accuracy not reached; stopped at {times:.0f} × redhost's time"
        value = f"1/{times:.0f}" if x["reached"] else stopped
        yield f"{what}, tiny, {name}", value, times >= TIMES_XLORA
    times = big["x-lora"] / big["redhost"]
    yield f"{what}, SmolLM2, {MOST}, estimated", f"1/{times:.0f}", times >= TIMES_XLORA


def _aims(found: Mapping[str, Any]) -> Iterator[str]:
    yield "| target | measured | |"
    yield "|---|---|---|"
    for what, value, met in aims(found):
        yield f"| {what} | {value} | {'met' if met else '**missed**'} |"


def _ms(seconds: Mapping[str, float]) -> str:
    return (
        f"{1000 * seconds['median']:.1f} ({1000 * seconds['low']:.1f}–{1000 * seconds['high']:.1f})"
    )
