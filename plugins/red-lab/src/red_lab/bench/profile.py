"""Section `profile`: the time of one `predict` and of one `recompose`, by step.

Each run is a real command in a separate process, with the functions of each step wrapped
(`profile_child`); the result is the median over runs of each step. The composition on SmolLM2 is
built here from five random low-rank experts, since none ships. Takes about five minutes.
"""

from __future__ import annotations

import json
import shutil
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from statistics import median
from typing import Any

from red_lab.bench import Section, SectionSettings
from red_lab.bench.processes import run_command
from red_lab.bench.profile_child import Clock
from redhost.registry.environment import python_command

__all__ = ["PREDICT", "RECOMPOSE", "SECTION"]

QUESTION = "What is 37 plus 12?"
REPEATS = 30

Steps = Mapping[str, Sequence[str]]
"""Step → its functions, as ``module:function`` where they are used."""

CORE, REGISTRY = "redhost.core", "redhost.registry"

_BACKBONE: Steps = {
    "build the trunk": [f"{CORE}.backbones.backbone:_package_trunk"],
    "fingerprint of the backbone": [f"{CORE}.backbones.backbone:Backbone.fingerprint"],
    "tokens": [f"{CORE}.backbones.encoder:TextEncoder.tokens"],
    "trunk": [f"{CORE}.backbones.encoder:TextEncoder.hidden_states"],
}

PREDICT: Steps = {
    **_BACKBONE,
    "settings, lock, plugins": [
        f"{CORE}.session:load_settings",
        f"{CORE}.session:read_lock",
        f"{CORE}.plugins.manager:Plugins.__init__",
    ],
    "read the generation's record": [
        f"{REGISTRY}.home.generations:Generations.current",
        f"{REGISTRY}.home.generations:Generations.load",
        f"{REGISTRY}.home.generations:Generations.file",
    ],
    "read stored bytes": [f"{REGISTRY}.home.store:Store.get", f"{REGISTRY}.home.store:Store.file"],
    "check stored bytes: hashes, headers, contract": [
        f"{REGISTRY}.home.store:read_backbone",
        f"{REGISTRY}.home.store:read_expert",
        f"{CORE}.model.stored:read_manifest",
    ],
    "build experts": [f"{CORE}.model.stored:make_expert_module"],
    "canaries": [f"{CORE}.model.build:check_canary"],
    "cards": [f"{CORE}.model.build:read_card", f"{CORE}.model.stored:read_card"],
    "router and bus": [
        f"{CORE}.model.stored:make_router",
        f"{CORE}.model.stored:build_bus",
    ],
    "background and evaluation rows": [
        f"{CORE}.model.stored:rows_of",
    ],
    "bus": [f"{CORE}.bus.bus:Bus.forward"],
    "print": ["redhost.commands.compose:print_json"],
}

RECOMPOSE: Steps = {
    **_BACKBONE,
    "what is installed, and its verdicts": [f"{CORE}.composition.recompose:select_installed"],
    "read and check packages": [
        f"{REGISTRY}.environment.status:read_expert",
        f"{CORE}.model.build:read_backbone",
        f"{CORE}.model.build:audit_installed",
    ],
    "build experts": [f"{CORE}.composition.prepare:make_expert"],
    "canaries": [f"{CORE}.model.build:check_canary"],
    "cards": [f"{CORE}.model.build:read_card"],
    "check on the background card": [f"{CORE}.composition.prepare:check_live"],
    "feature cache": [f"{CORE}.backbones.feature_cache:FeatureCache.encode"],
    "what columns learn from": [f"{CORE}.composition.train:columns_data"],
    "train the router": [f"{CORE}.composition.train:train_router"],
    "judge on gate rows": [f"{CORE}.composition.gates:judge_gates"],
    "digests before and after": [f"{CORE}.composition.recompose:_digests"],
    "load the current generation": [f"{CORE}.composition.recompose:_load_previous"],
    "write": [f"{CORE}.composition.recompose:publish"],
}


def measure(settings: SectionSettings) -> dict[str, Any]:
    """Run the commands; every cold run is a separate process."""
    with tempfile.TemporaryDirectory() as folder:
        home, cold = Path(folder, "home"), Path(folder, "cold")
        run_command(python_command("-m", "redhost", "recompose", "--home", str(home)))
        ask = ["predict", "--json", "--home", str(home), QUESTION]
        predict = [_run(ask, PREDICT, repeats=REPEATS) for _ in range(settings.runs)]
        fresh = ["recompose", "--json", "--home", str(cold)]
        again = ["recompose", "--json", "--home", str(home)]

        def forget() -> None:
            shutil.rmtree(cold, ignore_errors=True)

        first = [_run(fresh, RECOMPOSE, before=forget) for _ in range(settings.runs)]
        cached = [_run(again, RECOMPOSE) for _ in range(settings.runs)]
    large = _warm_smollm2(runs=settings.runs, work=settings.work)
    runs = {
        "predict, a process of its own": [r["cold"] for r in predict],
        "predict, the process is warm (tiny)": [w for r in predict for w in r["warm"]],
        "predict, the process is warm (SmolLM2-135M)": large,
        "recompose, nothing remembered": [r["cold"] for r in first],
        "recompose, features remembered": [r["cold"] for r in cached],
    }
    return {
        "runs": settings.runs,
        "lost": sorted({place for r in (*predict, *first, *cached) for place in r["lost"]}),
        "steps": {name: _medians(found) for name, found in runs.items()},
    }


def _warm_smollm2(*, runs: int, work: Path) -> list[dict[str, float]]:
    """Answer on SmolLM2-135M with five random experts; return the seconds by step of each run."""
    from red_lab.cost import Load, build_bus  # torch, once the commands are done
    from red_lab.models import in_memory, open_source

    backbone = open_source("smollm2", seed=0, work=work)
    bus = build_bus("linear", Load(config="smollm2-135m"), width=backbone.width)
    composed = in_memory(backbone, bus, kind="linear")
    composed.answer([QUESTION])
    clock = Clock()
    for step, places in PREDICT.items():
        for place in places:
            clock.wrap(step, place)
    return clock.repeated(lambda: composed.answer([QUESTION]), runs)


def _run(
    command: Sequence[str],
    steps: Steps,
    *,
    repeats: int = 0,
    before: Callable[[], None] | None = None,
) -> dict[str, Any]:
    """Run one process; return its seconds by step, the end of the process included."""
    if before is not None:
        before()
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder, "out.json")
        module = "red_lab.bench.profile_child"
        child = python_command("-m", module, str(time.time()), str(out))
        run_command([*child, json.dumps(steps), str(repeats), *command])
        ended = time.time()
        found: dict[str, Any] = json.loads(out.read_text("utf-8"))
    found["cold"]["Python ends"] = ended - found["ended"]
    return found


def _medians(runs: Sequence[Mapping[str, float]]) -> dict[str, float]:
    """Return each step's median; a step that did not occur in a run counts as zero."""
    steps = sorted({step for run in runs for step in run})
    return {step: median(run.get(step, 0.0) for run in runs) for step in steps}


SECTION = Section(name="profile", measure=measure)
