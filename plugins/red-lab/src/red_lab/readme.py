"""Render the generated blocks of README and docs from results files."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from red_lab.adapters.page import readme_block as adapters_block
from red_lab.bench.growth_page import page as growth_page
from red_lab.bench.peers.tables import aims
from red_lab.bench.profile import tables
from red_lab.bench.scale.page import page as scale_page
from red_lab.report import NAMES

__all__ = [
    "BLOCKS",
    "PAGES",
    "answers_block",
    "generative_block",
    "install_block",
    "peers_block",
    "ranges_block",
    "refresh",
    "refresh_here",
    "text_block",
]

ROWS = (
    "backbone",
    "best_single",
    "uniform",
    "sum",
    "routed",
    "mixture",
    "single_adapter",
    "oracle",
)


def ranges_block(metrics: Mapping[str, Any]) -> str:
    """Return the README's table of the tiny ranges."""
    default = f"routed_{metrics['default_router']}"
    lines = ["| system | accuracy on unseen pairs | 95 % |", "|---|---|---|"]
    for key in ROWS:
        name = default if key == "routed" else key
        a = metrics["systems"][name]["accuracy"]
        title = f"**{NAMES[name]} (the default)**" if key == "routed" else NAMES[name]
        lines.append(f"| {title} | {a['mean']:.3f} | {a['low']:.3f}–{a['high']:.3f} |")
    gap = metrics["paired"][f"{metrics['default_router']} - backbone"]
    note = (
        f"{metrics['splits']} splits, {metrics['rows']} rows; router over backbone "
        f"{100 * gap['mean']:+.1f} points ({100 * gap['low']:+.1f} … {100 * gap['high']:+.1f}); "
        f"the backbone saw {metrics['share']:.0%} of the experts' training pairs. "
        "[All figures](docs/results/tiny-ranges/README.md)."
    )
    return "\n".join([*lines, "", note])


def peers_block(found: Mapping[str, Any]) -> str:
    """Return the README's table of redhost and its peers."""
    lines = ["| target | measured | |", "|---|---|---|"]
    lines += [
        f"| {what} | {value} | {'met' if ok else 'missed'} |" for what, value, ok in aims(found)
    ]
    v = found["versions"]
    provisional = "Provisional (busy machine), see the page. " if "note" in found else ""
    note = (
        f"{provisional}PEFT {v['peft']}, adapters {v['beside adapters']['adapters']}. "
        "[All systems, and where the peers are better](docs/results/bench/README.md)."
    )
    return "\n".join([*lines, "", note])


def answers_block(found: Mapping[str, Any]) -> str:
    """Return the README's table of the cost of an answer, compared with encoders alone."""
    titles = {
        "transformers, padded": "transformers, padded: encoding only",
        "transformers, padded, bf16": "transformers in bfloat16, padded: encoding only",
        "sentence-transformers": "sentence-transformers: encoding only",
        "sentence-transformers, bf16": "sentence-transformers in bfloat16: encoding only",
        "onnxruntime": "onnxruntime: encoding only",
        "redhost": "**redhost: answers of five experts**",
        "redhost, bf16": "**redhost in bfloat16**, `--device bf16`: answers of five experts",
        "redhost, onnx-int8": "redhost on onnxruntime, int8: answers of five experts",
    }
    cases = found["backbones"]["minilm"]["cases"]
    [many] = (name for name, sides in cases.items() if "transformers, padded" not in sides)
    lines = [
        f"| time relative to transformers, padded | 1 line | 64 lines | {many}: lines per second |",
        "|---" * 4 + "|",
    ]
    for side, title in titles.items():
        if side not in cases["1 line"]:  # not supported by the processor
            continue
        ratios = (cases[case][side]["times"]["ratio"] for case in ("1 line", "64 lines"))
        rate = f"{cases[many][side]['rate']:,.0f}" if side in cases[many] else ""
        lines.append(f"| {title} | {' | '.join(f'{x:.2f}' for x in ratios)} | {rate} |")
    note = (
        f"all-MiniLM-L6-v2, {found['threads']} thread of {found['processor']}, from text to "
        f"result; one run, medians of rounds. A single padded batch of {many} would be mostly "
        "padding, so it was not measured. [All figures, and which targets are missed]"
        "(docs/results/bench/README.md#whole-answers)."
    )
    return "\n".join([*lines, "", note])


def text_block(metrics: Mapping[str, Any]) -> str:
    """Return the README's table of teams on real texts."""
    corpora = [m for name, m in metrics.items() if name.endswith(" minilm")]
    corpora.sort(key=lambda m: m["corpus"])
    titles = {
        "": "best single model of the same features, pooled rows of all teams",
        "monolith words": "logistic regression on word counts (no encoder), pooled rows",
        "routed": "**the teams' experts, `redhost recompose`**",
        "no expert, ridge": "no expert: ridge regression from the cards' sums",
        "random experts": "experts with shuffled parameters",
        "oracle": "experts, oracle routing (label-informed)",
    }
    names = " | ".join(m["corpus"] for m in corpora)
    lines = [f"| accuracy | {names} |", "|---" * (len(corpora) + 1) + "|"]
    for key, title in titles.items():
        cells = (m["systems"][key or m["best"]]["accuracy"] for m in corpora)
        lines.append(f"| {title} | {' | '.join(f'{a:.3f}' for a in cells)} |")
    rows, seeds = (", ".join(str(m[key]) for m in corpora) for key in ("rows", "seeds"))

    def away(other: str) -> str:
        pairs = ((m["systems"]["routed"], m["systems"][other or m["best"]]) for m in corpora)
        return ", ".join(f"{100 * (a['accuracy'] - b['accuracy']):+.1f}" for a, b in pairs)

    note = (
        f"Test rows: {rows}; seeds: {seeds}. Difference of the teams' experts, in percentage "
        f"points: {away('')} to the best model of the pooled rows, {away('no expert, ridge')} to "
        "the regression without experts. [All figures](docs/results/text/README.md)."
    )
    return "\n".join([*lines, "", note])


def generative_block(metrics: Mapping[str, Any]) -> str:
    """Return the README's table of generative experts."""
    systems, domains = metrics["systems"], metrics["domains"]
    monoliths = [name for name in systems if name.startswith("monolith")]
    best = min(monoliths, key=lambda name: sum(systems[name]["bits"][d]["mean"] for d in domains))
    titles = {
        "base": "the language model alone",
        best: f"one adapter of the experts' total size, all domains (best of {len(monoliths)})",
        "product, residual": "**five experts, `redhost recompose`**",
        "product, mixture": "five experts, `redhost recompose --router causal-mixture`",
        "robust": "five experts, the robust causal router of the study",
        "oracle": "oracle routing: each domain's own expert",
    }
    head = " | ".join(domains)
    lines = [
        f"| bits per byte | {head} | smallest share of the gain |",
        "|---" * (len(domains) + 2) + "|",
    ]
    for name, title in titles.items():
        system = systems[name]
        cells = " | ".join(f"{system['bits'][d]['mean']:.3f}" for d in domains)
        share = "" if name == "base" else f"{system['least_recovered']['mean']:.0%}"
        lines.append(f"| {title} | {cells} | {share} |")
    packed = min(metrics["seeds"], metrics["setting"]["products"])
    note = (
        f"Held-out documents; {metrics['seeds']} seeds, {packed} of them through packages and "
        "`redhost recompose`. "
        f"[All figures](docs/results/generative/{metrics['name']}/README.md)."
    )
    return "\n".join([*lines, "", note])


def install_block(found: Mapping[str, Any]) -> str:
    """Return the README's sentences on the size and time of an installation."""
    demo, dev = (
        {key: sum(step[key] for step in found["steps"][kind]) for key in ("mib", "seconds")}
        for kind in ("demo", "dev")
    )
    torch = found["steps"]["demo"][0]
    return (
        f"`make demo` installs {demo['mib']:,} MiB, {torch['mib']:,} of them torch and its "
        f"dependencies; `make test` installs {dev['mib']:,} MiB more. They took "
        f"{demo['seconds']:,} and {dev['seconds']:,} seconds when "
        "[measured](docs/results/install/README.md), without pip's cache. A second run installs "
        "nothing."
    )


PAGES = ("README.md", "docs/profiles.md", "docs/scale.md")
"""Pages that contain blocks."""

BLOCKS: Mapping[str, tuple[str, Callable[[Mapping[str, Any]], str]]] = {
    "tiny-ranges": ("docs/results/tiny-ranges/metrics.json", ranges_block),
    "text": ("docs/results/text/metrics.json", text_block),
    "answers": ("docs/results/bench/answers.json", answers_block),
    "peers": ("docs/results/bench/peers.json", peers_block),
    "adapters": ("docs/results/adapters/metrics.json", adapters_block),
    "generative": ("docs/results/generative/smollm2/metrics.json", generative_block),
    "install": ("docs/results/install/metrics.json", install_block),
    "profile": ("docs/results/bench/profile.json", tables),
    "scale": ("docs/results/bench/scale.json", scale_page),
    "growth": ("docs/results/bench/growth.json", growth_page),
}
"""Name of a block → its results file, and the function that renders it."""


def refresh(text: str, *, root: Path) -> str:
    """Return a page with every block rendered again whose results file exists.

    A block is the text between ``<!-- results: NAME -->`` and ``<!-- /results -->``.
    """
    for name, (file, write) in BLOCKS.items():
        path = root / file
        if not path.exists():
            continue
        start, end = f"<!-- results: {name} -->\n", "<!-- /results -->"
        before, found, rest = text.partition(start)
        if found:
            _, _, after = rest.partition(end)
            body = write(json.loads(path.read_text("utf-8")))
            text = f"{before}{start}{body}\n{end}{after}"
    return text


def refresh_here() -> None:
    """Refresh the blocks in the pages of the current folder, if it has them."""
    for page in map(Path, PAGES):
        if page.exists() and "<!-- results: " in page.read_text("utf-8"):
            page.write_text(refresh(page.read_text("utf-8"), root=Path()), "utf-8")
