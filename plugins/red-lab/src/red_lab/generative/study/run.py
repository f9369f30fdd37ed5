"""`redhost lab generative`: seeds of one backbone, saved as they finish, and one page."""

from __future__ import annotations

import hashlib
import json
import logging
import re
from collections.abc import Callable, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import redhost
from red_lab.generative.corpora import PARTS, Corpora, read_corpora
from red_lab.generative.study.context import StudyContext
from red_lab.generative.study.figures import draw
from red_lab.generative.study.page import page
from red_lab.generative.study.plan import plan
from red_lab.generative.study.seed import one_seed
from red_lab.generative.study.setting import SMOLLM2, TINY, StudySetting
from red_lab.generative.study.summary import SCHEMA, summarise
from red_lab.generative.tiny import tiny_language_model
from red_lab.metrics import cached_json, write_results
from red_lab.red.run import smollm2_file

__all__ = ["context_for", "name_of", "open_source", "run", "study"]

log = logging.getLogger("red_lab")


def run(
    *, source: str, seeds: int, out: Path, work: Path, say: Callable[[str], None] = log.info
) -> Path:
    """Measure missing results; write metrics.json, the page and the figures.

    Args:
        source: ``tiny``, ``smollm2``, ``gguf:FILE`` or ``hf:NAME``.
        seeds: Number of seeds.
        out: The folder for results; a folder with the backbone's name is made in it.
        work: The folder for states, experts and tables.
        say: Called with progress messages.

    Returns:
        The path of metrics.json.
    """
    name, setting = name_of(source), TINY if source == "tiny" else SMOLLM2
    if source.startswith("hf:") and not Path(source[3:]).expanduser().is_dir():
        setting = replace(setting, products=0)  # a package names a hub's commit, not its branch
    folder = work / "generative"
    context = context_for(open_source(source, work=work), setting=setting, folder=folder)
    return study(context, name=name, seeds=seeds, out=out / name, folder=folder, say=say)


def context_for(
    backbone: redhost.Backbone,
    *,
    setting: StudySetting,
    folder: Path,
    corpora: Corpora | None = None,
) -> StudyContext:
    """Return the context of a backbone over the study's texts."""
    texts = corpora or read_corpora(sizes=setting.sizes)
    return StudyContext(backbone, texts, setting=setting, folder=folder / "features")


def study(
    context: StudyContext,
    *,
    name: str,
    seeds: int,
    out: Path,
    folder: Path,
    say: Callable[[str], None] = log.info,
) -> Path:
    """Measure every seed, and write the results.

    Stages are cached under a digest of backbone, texts and setting, so that results of another
    study are never reused.
    """
    own = folder / f"{name}-{_digest(context)}"
    own.mkdir(parents=True, exist_ok=True)
    fresh = [n for n in range(seeds) if not (own / f"seed{n}.json").exists()]
    if fresh:
        say(f"{name}: {len(fresh)} of {seeds} seeds to do\n{plan(context, seeds=len(fresh))}")
        context.remember(tuple(PARTS))
    measured = []
    for n in range(seeds):

        def measure(n: int = n) -> dict[str, Any]:
            return one_seed(
                context, seed=n, folder=own, say=lambda what: say(f"{name}, seed {n}: {what}")
            )

        measured.append(cached_json(own / f"seed{n}.json", measure))
    out.mkdir(parents=True, exist_ok=True)
    return _write(context, measured, name=name, out=out)


def open_source(source: str, *, work: Path) -> redhost.Backbone:
    """Open the bare backbone of a source; `tiny` is pretrained if it does not exist yet."""
    if source == "tiny":
        source = f"hf:{tiny_language_model(work)}"
    if source == "smollm2":
        source = f"gguf:{smollm2_file()}"
    return redhost.Backbone.load(source, task=redhost.plugins.Plugins().task("generation"))


def name_of(source: str) -> str:
    """Return the name of a source's results."""
    if source in {"tiny", "smollm2"}:
        return source
    return re.sub(r"[^a-z0-9.]+", "-", Path(source.partition(":")[2]).stem.lower()).strip("-")


def _write(
    context: StudyContext, measured: Sequence[dict[str, Any]], *, name: str, out: Path
) -> Path:
    metrics = {
        "schema": SCHEMA,
        "name": name,
        **_facts(context),
        **summarise(measured, draws=context.setting.draws),
    }
    return write_results(metrics, out, page=page, draw=draw, sort_keys=False)


def _facts(context: StudyContext) -> dict[str, Any]:
    """Return the facts of the study: backbone, texts and setting."""
    width, count = context.backbone.width, len(context.domains)
    adapters = 2 * width * context.setting.rank * count
    return {
        "backbone": {
            "fingerprint": context.fingerprint,
            "width": width,
            "vocabulary": len(context.head),
        },
        "texts": {"digest": context.corpora.digest, "sources": dict(context.corpora.sources)},
        "setting": asdict(context.setting),
        "parameters": {
            "experts": adapters,
            "monolith": adapters,
            "router": count * (context.backbone.bus_config().router_width + 1),
        },
        "passages": {
            d: {p: len(context.texts(d, p)) for p in context.setting.tokens}
            for d in context.domains
        },
    }


def _digest(context: StudyContext) -> str:
    setting = json.dumps(asdict(context.setting), sort_keys=True)
    key = f"{context.fingerprint}\n{context.corpora.digest}\n{setting}"
    return hashlib.sha256(key.encode()).hexdigest()[:12]
