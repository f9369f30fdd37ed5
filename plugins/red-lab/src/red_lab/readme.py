"""Keep the numbers of README and docs equal to the results files they come from."""

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
    """Return the README's table of redhost beside its peers."""
    lines = ["| aim | found | |", "|---|---|---|"]
    lines += [
        f"| {what} | {value} | {'met' if ok else 'missed'} |" for what, value, ok in aims(found)
    ]
    v = found["versions"]
    provisional = "Provisional, from a busy machine; the page says how. " if "note" in found else ""
    note = (
        f"{provisional}PEFT {v['peft']}, adapters {v['beside adapters']['adapters']}. "
        "[Every system, and what the peers do better](docs/results/bench/README.md)."
    )
    return "\n".join([*lines, "", note])


def answers_block(found: Mapping[str, Any]) -> str:
    """Return the README's table of what an answer costs, beside encoders that give vectors."""
    titles = {
        "transformers, padded": "transformers, padded: vectors",
        "transformers, padded, bf16": "transformers in bfloat16, padded: vectors",
        "sentence-transformers": "sentence-transformers: vectors",
        "sentence-transformers, bf16": "sentence-transformers in bfloat16: vectors",
        "onnxruntime": "onnxruntime: vectors",
        "redhost": "**redhost: answers of five experts**",
        "redhost, bf16": "**redhost in bfloat16**, `--device bf16`: answers of five experts",
        "redhost, onnx-int8": "redhost on onnxruntime, int8: answers of five experts",
    }
    cases = found["backbones"]["minilm"]["cases"]
    [many] = (name for name, sides in cases.items() if "transformers, padded" not in sides)
    lines = [f"| × transformers, padded | 1 line | 64 lines | {many}, a second |", "|---" * 4 + "|"]
    for side, title in titles.items():
        if side not in cases["1 line"]:  # a processor has no such products
            continue
        ratios = (cases[case][side]["times"]["ratio"] for case in ("1 line", "64 lines"))
        rate = f"{cases[many][side]['rate']:,.0f}" if side in cases[many] else ""
        lines.append(f"| {title} | {' | '.join(f'{x:.2f}' for x in ratios)} | {rate} |")
    note = (
        f"all-MiniLM-L6-v2, {found['threads']} thread of {found['processor']}, from text to "
        "result; one run, medians of rounds. One padded pass of many lines is mostly filling, so "
        "it has no rate. [All figures, and which aims are missed]"
        "(docs/results/bench/README.md#whole-answers)."
    )
    return "\n".join([*lines, "", note])


def text_block(metrics: Mapping[str, Any]) -> str:
    """Return the README's table of teams on real texts."""
    corpora = [m for name, m in metrics.items() if name.endswith(" minilm")]
    corpora.sort(key=lambda m: m["corpus"])
    titles = {
        "": "the best model of the same features that learnt from everybody's rows",
        "monolith words": "logistic regression on everybody's word counts, no encoder",
        "routed": "**the teams' experts, `redhost recompose`**",
        "no expert, ridge": "no expert: regression from the cards' sums",
        "random experts": "experts whose weights are shuffled",
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
        f"Rows: {rows}; seeds: {seeds}. In points, the teams' experts are {away('')} from the best "
        f"model that learnt from everybody's rows, and {away('no expert, ridge')} from no expert. "
        "[All figures](docs/results/text/README.md)."
    )
    return "\n".join([*lines, "", note])


def generative_block(metrics: Mapping[str, Any]) -> str:
    """Return the README's table of generative experts."""
    systems, domains = metrics["systems"], metrics["domains"]
    monoliths = [name for name in systems if name.startswith("monolith")]
    best = min(monoliths, key=lambda name: sum(systems[name]["bits"][d]["mean"] for d in domains))
    titles = {
        "base": "the language model alone",
        best: f"one adapter of the experts' size on all domains, the best of {len(monoliths)}",
        "product, residual": "**five experts, `redhost recompose`**",
        "product, mixture": "five experts, `redhost recompose --router causal-mixture`",
        "robust": "five experts, the robust causal router of the study",
        "oracle": "each domain's own expert (domain given)",
    }
    head = " | ".join(domains)
    lines = [f"| bits per byte | {head} | of the gain, least |", "|---" * (len(domains) + 2) + "|"]
    for name, title in titles.items():
        system = systems[name]
        cells = " | ".join(f"{system['bits'][d]['mean']:.3f}" for d in domains)
        share = "" if name == "base" else f"{system['least_recovered']['mean']:.0%}"
        lines.append(f"| {title} | {cells} | {share} |")
    packed = min(metrics["seeds"], metrics["setting"]["products"])
    note = (
        f"Documents nobody learnt from; {metrics['seeds']} seeds, {packed} of them through "
        "packages and `redhost recompose`. "
        f"[All figures](docs/results/generative/{metrics['name']}/README.md)."
    )
    return "\n".join([*lines, "", note])


def install_block(found: Mapping[str, Any]) -> str:
    """Return the README's sentences on what make installs."""
    demo, dev = (
        {key: sum(step[key] for step in found["steps"][kind]) for key in ("mib", "seconds")}
        for kind in ("demo", "dev")
    )
    torch = found["steps"]["demo"][0]
    return (
        f"The first installs {demo['mib']:,} MiB, {torch['mib']:,} of them torch with what it "
        f"needs, the second {dev['mib']:,} more; {demo['seconds']:,} and {dev['seconds']:,} "
        "seconds where they were [measured](docs/results/install/README.md), without pip's cache. "
        "A second time nothing is installed."
    )


PAGES = ("README.md", "docs/profiles.md", "docs/scale.md")
"""Where blocks stand."""

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
"""Name of a block in a page → the file its numbers come from, and how it is written."""


def refresh(text: str, *, root: Path) -> str:
    """Return a page with every block whose results file exists written anew.

    A block stands between ``<!-- results: NAME -->`` and ``<!-- /results -->``.
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
    """Write the results into the pages of the project at hand, if this is one."""
    for page in map(Path, PAGES):
        if page.exists() and "<!-- results: " in page.read_text("utf-8"):
            page.write_text(refresh(page.read_text("utf-8"), root=Path()), "utf-8")
