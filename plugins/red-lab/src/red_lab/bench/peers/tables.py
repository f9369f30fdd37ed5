"""The peers section's tables, and whether what was aimed at was reached."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from red_lab.bench.peers.limits import BATCH, CARD

__all__ = ["aims", "large", "page", "times_ours"]

TITLES = {
    "floor": "plain forward",
    "redhost": "**redhost**, five experts, whole pass",
    "redhost bus": "**redhost**, the bus timed apart, router `evidence`",
    "redhost bus, linear": "redhost, the bus timed apart, router `linear`",
    "peft one": "PEFT, one of five adapters active",
    "peft five": "PEFT, five adapters active",
    "peft mixed": "PEFT, mixed batch (`adapter_names`)",
    "peft merged": "PEFT, one adapter merged",
    "x-lora": "PEFT X-LoRA over five",
    "hub floor": "plain forward, the transformers of `adapters`",
    "adapters fuse": "`adapters`, Fuse of five",
    "adapters average": "`adapters`, Average of five",
}
MOST = "all rows"
"""With which X-LoRA comes farthest."""

TIMES_PEFT, TIMES_XLORA, SWAP = 10, 50, 0.05
"""At least so many times our overhead, so many times our adding; seconds of a swap at most."""


def page(found: Mapping[str, Any]) -> str:
    """Return the section's tables."""
    noted = [found["note"]] if "note" in found else []
    parts = [*noted, _settings(found), *(_forward(name, found) for name in found["forward"])]
    parts += [_changes(found), _live(found), _adding(found), _aims(found), BETTER]
    parts += ["![Overhead over the plain forward](peers.svg)"]
    return "\n\n".join("\n".join(part) if not isinstance(part, str) else part for part in parts)


BETTER = """What peers do better: a merged LoRA adapter costs nothing at all, and a bus always costs
something. LoRA adapts inside the blocks, so it can learn what a residual on the last state
cannot. Loading, deleting and hot-swapping an adapter take milliseconds, for nothing is checked,
learnt, judged or written to disk, and whoever asks must name the adapter. On a backbone as small
as the tiny one the router's few calls weigh as much as a block."""


def _settings(found: Mapping[str, Any]) -> str:
    v = found["versions"]
    other = ", ".join(f"{k} {x}" for k, x in sorted(v["beside adapters"].items()))
    return (
        f"Five experts or adapters each, on one budget of parameters (D²/2): LoRA on q and v at "
        "the rank that comes nearest, bottlenecks after every block for `adapters`. Eval mode, "
        "inference mode, float32, no cache of keys, threads: "
        f"{found['threads']}; {found['runs']} rounds at the largest batch and three times as many "
        "at smaller ones. Every pass runs just after the plain forward, and its overhead is the "
        "median of the pairs' own; of the bus alone it is the ratio of medians. Every side's "
        "floor is the plain transformers forward with a classifier on the last token, in its own "
        "process. Weights of adapters are random here, for seconds depend on shapes alone. "
        f"PEFT {v['peft']}, transformers {v['transformers']}, torch {v['torch']}; in an "
        f"environment of its own {other}."
    )


def _forward(name: str, found: Mapping[str, Any]) -> Iterator[str]:
    measured = found["forward"][name]
    systems, memory = {**measured["systems"], **measured["hub"]}, found["memory"][name]
    batches = sorted(systems["floor"], key=int)
    yield f"**{name}**, {measured['tokens']} tokens a text: overhead over the plain forward,"
    yield "quartiles of the rounds in brackets, and the peak memory of a process that does only"
    yield "this, once, at the largest batch."
    yield ""
    yield f"| system | {' | '.join(f'batch {b}' for b in batches)} | peak |"
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
        "**redhost**, the bus alone, weights in memory": (*alone, "bus swap, answered"),
        "**redhost**, the same without the answer": (*alone, "bus swap"),
        "PEFT, `load_adapter`, `delete_adapter`, `hotswap_adapter`": (
            "peft",
            "add",
            "remove",
            "swap",
        ),
        "`adapters`, `load_adapter`, `delete_adapter`": ("adapters", "add", "remove", None),
    }
    yield "Time until the next right answer beside five, on the tiny backbone; milliseconds. A"
    yield "host reads and checks the package, encodes its card, trains the router, judges every"
    yield "domain, writes a generation to disk, loads it and answers; the peers read a file, and"
    yield "whoever asks names the adapter. `adapters` has random weights: an answer is right if it"
    yield "is that of the adapters meant. All answer one text at a time; redhost's"
    yield "bits are the same beside any others."
    yield ""
    yield "| | add | remove | swap | answers right |"
    yield "|---|---|---|---|---|"
    for title, (side, *names) in rows.items():
        timings = found["changes"][side]
        cells = [_ms(timings[n]["seconds"]) if n else "" for n in names]
        right = all(timings[n]["correct"] for n in names if n)
        yield f"| {title} | {' | '.join(cells)} | {'all' if right else 'NO'} |"


def _live(found: Mapping[str, Any]) -> Iterator[str]:
    yield "Swapped while a client asks without a pause, and without a lock of the client's own:"
    yield "texts that both builds answer rightly. redhost's swap reads, verifies, loads and warms"
    yield "up a generation."
    yield ""
    yield "| | swap, ms | swaps | answers | wrong | errors |"
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
    yield "Adding a sixth to five, tiny backbone, accuracy on held-out rows. X-LoRA was to reach "
    yield f"{a['target']:.3f}, one point below the lower of redhost's accuracy and of what its"
    yield f"own adapters can, each asked for its own domain ({a['oracle']:.3f}). Its seconds are"
    yield "those of the steps alone; redhost's are everything, up to the next right answer, and"
    yield f"{ours['router_seconds']:.3f} s of them train the router. With the rows that redhost's"
    yield "router has X-LoRA learns them by heart, so it also gets the experts' own. Its settings,"
    yield "and those of its adapters, are the best of six and eight tried on held-out rows, a"
    yield "choice in its favour."
    yield ""
    yield "| | rows | seconds | steps | accuracy | at best |"
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
        f"On SmolLM2, shapes alone: a step of X-LoRA's router over six adapters, "
        f"{big['rows']} rows, takes {big['step']:.2f} s, so the {a['x-lora'][MOST]['steps']} steps "
        f"of the tiny backbone with all rows take {big['x-lora']:.0f} s. redhost encodes the "
        f"newcomer's card ({big['rows']} rows in {big['encode']:.2f} s, twice) and trains its "
        f"router ({1000 * big['router']:.0f} ms): {big['redhost']:.2f} s. An estimate: the steps "
        "are the tiny backbone's."
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
    """Return what was aimed at, what was found, and whether that is enough."""
    rows = []
    for batch in sorted(found["forward"]["smollm2"]["systems"]["floor"], key=int):
        times = times_ours(found, "smollm2", batch)
        ours = "our overhead under `evidence`, the default"
        what = f"PEFT's five adapters: at least {TIMES_PEFT} × {ours}, SmolLM2, batch {batch}"
        rows.append((what, f"{times:.1f} ×", times >= TIMES_PEFT))
    rows += _adding_aims(found["adding"])
    swap = found["changes"]["redhost"]["bus swap, answered"]["seconds"]["median"]
    what = f"swap on the bus after weights are read, answer included: at most {1000 * SWAP:.0f} ms"
    rows.append((what, f"{1000 * swap:.1f} ms", swap <= SWAP))
    wrong = found["live"]["redhost"]["wrong"]
    rows.append(("wrong answers during live swaps: none", str(wrong), wrong == 0))
    return rows


def _adding_aims(adding: Mapping[str, Any]) -> Iterator[tuple[str, str, bool]]:
    """Yield how much faster adding is; who never came so far was stopped, which bounds it."""
    ours, big = adding["redhost"], large(adding)
    what = f"adding one to five: at most 1/{TIMES_XLORA} of X-LoRA's retraining"
    for name, x in adding["x-lora"].items():
        times = x["seconds"] / ours["seconds"]
        stopped = f"it never got there; stopped at {times:.0f} × our time"
        value = f"1/{times:.0f}" if x["reached"] else stopped
        yield f"{what}, tiny, {name}", value, times >= TIMES_XLORA
    times = big["x-lora"] / big["redhost"]
    yield f"{what}, SmolLM2, {MOST}, estimated", f"1/{times:.0f}", times >= TIMES_XLORA


def _aims(found: Mapping[str, Any]) -> Iterator[str]:
    yield "| aim | found | |"
    yield "|---|---|---|"
    for what, value, met in aims(found):
        yield f"| {what} | {value} | {'met' if met else '**missed**'} |"


def _ms(seconds: Mapping[str, float]) -> str:
    return (
        f"{1000 * seconds['median']:.1f} ({1000 * seconds['low']:.1f}–{1000 * seconds['high']:.1f})"
    )
