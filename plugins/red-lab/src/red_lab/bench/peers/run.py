"""Measure all libraries, each in its own processes; the systems of one process take turns."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from functools import partial
from importlib import metadata
from pathlib import Path
from typing import Any

from red_lab.bench.peers import forward, hub
from red_lab.bench.peers.folders import write_model
from red_lab.bench.peers.libraries import adapters_python, peft
from red_lab.bench.peers.worker import ask
from red_lab.bench.section import SectionSettings
from red_lab.bench.trunks import TRUNKS
from red_lab.metrics import cached_json
from red_lab.progress import Bar

__all__ = ["CAP", "SLACK", "measure"]

CAP = 100.0
"""Maximum seconds of X-LoRA's training, whether or not it reaches the target."""

ROLES = {"same rows": ["fit"], "all rows": ["fit", "train"]}
"""Training rows of X-LoRA's router: those of redhost's router, or the experts' training rows too,
since it has more to learn and gets closer with more rows."""

SLACK = 0.01
"""X-LoRA's target is this much below the lower of redhost's accuracy and its adapters' oracle."""


def measure(settings: SectionSettings) -> dict[str, Any]:
    """Measure everything; an interrupted run resumes.

    Raises:
        MissingError: If a compared library is not installed.
    """
    peft()
    python = adapters_python()
    work = settings.work / "peers" / metadata.version("red-backbone-tiny")
    parts = work / f"parts-{settings.runs}"
    parts.mkdir(parents=True, exist_ok=True)
    folders = {name: write_model(name, work / name) for name in TRUNKS}
    jobs = {
        **_forward(folders, python, rounds=settings.runs),
        **_changes(folders, work, python, rounds=settings.runs),
    }
    found, bar = {}, Bar("peers", total=len(jobs) + 1)
    for n, (name, job) in enumerate(jobs.items(), start=1):
        found[name] = cached_json(parts / f"{name}.json", job)
        bar.update(n, name)
    target = min(found["oracle"]["oracle"], found["redhost"]["changes"]["add"]["accuracy"]) - SLACK
    options = {"folder": str(folders["tiny"]), "work": str(work), "target": target, "cap": CAP}
    xlora = {}
    for name, roles in ROLES.items():
        job = partial(ask, "adding:measure", roles=roles, **options)
        xlora[name] = cached_json(parts / f"x-lora {name}.json", job)
    bar.update(len(jobs) + 1, "x-lora")
    results = _tell(found, xlora, target=target, runs=settings.runs)
    shutil.rmtree(parts)  # all is measured: the next run starts anew
    return results


def _forward(
    folders: dict[str, Path], python: Path, *, rounds: int
) -> dict[str, Callable[[], dict[str, Any]]]:
    """Return the jobs that measure overhead and memory, by name."""
    jobs: dict[str, Callable[[], dict[str, Any]]] = {}
    for name, path in folders.items():
        folder = str(path)
        jobs[f"forward {name}"] = partial(ask, "forward:measure", folder=folder, rounds=rounds)
        jobs[f"hub {name}"] = partial(
            ask, "hub:measure", python=python, folder=folder, rounds=rounds
        )
        for system in forward.SYSTEMS:
            jobs[f"memory {name} {system}"] = partial(
                ask, "forward:memory", folder=folder, system=system
            )
        for system in hub.SYSTEMS:
            jobs[f"memory {name} {_hubs(system)}"] = partial(
                ask, "hub:memory", python=python, folder=folder, system=system
            )
    return jobs


def _changes(
    folders: dict[str, Path], work: Path, python: Path, *, rounds: int
) -> dict[str, Callable[[], dict[str, Any]]]:
    """Return the jobs that measure changes and the router's training, by name."""
    tiny, here = str(folders["tiny"]), str(work)
    return {
        "redhost": partial(ask, "changes:measure", work=here, rounds=rounds),
        "oracle": partial(ask, "adding:adapters", folder=tiny, work=here),
        "peft": partial(ask, "changes_peft:measure", folder=tiny, work=here, rounds=rounds),
        "adapters": partial(ask, "hub:changes", python=python, folder=tiny, rounds=rounds),
        "large": partial(ask, "adding:large", folder=str(folders["smollm2"]), rounds=rounds),
    }


def _tell(
    found: dict[str, Any], xlora: dict[str, Any], *, target: float, runs: int
) -> dict[str, Any]:
    """Return the section's results."""
    ours = found["redhost"]
    add = ours["changes"]["add"]
    return {
        "runs": runs,
        "threads": found["forward tiny"]["threads"],
        "versions": {
            "peft": metadata.version("peft"),
            "transformers": metadata.version("transformers"),
            "torch": metadata.version("torch"),
            "beside adapters": found["hub tiny"]["versions"],
        },
        "forward": {
            name: {
                "tokens": found[f"forward {name}"]["tokens"],
                "systems": found[f"forward {name}"]["systems"],
                "hub": {_hubs(k): x for k, x in found[f"hub {name}"]["systems"].items()},
            }
            for name in TRUNKS
        },
        "memory": {name: _memory(found, name) for name in TRUNKS},
        "changes": {
            "redhost": ours["changes"],
            "peft": found["peft"]["changes"],
            "adapters": _bare(found["adapters"]),
        },
        "live": {"redhost": ours["live"], "peft": found["peft"]["live"]},
        "adding": {
            "target": target,
            "cap": CAP,
            "redhost": {
                "seconds": add["seconds"]["median"],
                "router_seconds": add["router_seconds"]["median"],
                "accuracy": add["accuracy"],
            },
            "x-lora": {n: _bare(x) for n, x in xlora.items()},
            "oracle": found["oracle"]["oracle"],
            "large": _bare(found["large"]),
        },
    }


def _hubs(system: str) -> str:
    """Return the name of an AdapterHub system: its floor uses another transformers version."""
    return "hub floor" if system == "floor" else system


def _bare(results: dict[str, Any]) -> dict[str, Any]:
    return {k: v for k, v in results.items() if k != "peak_bytes"}


def _memory(found: dict[str, Any], name: str) -> dict[str, Any]:
    systems = (*forward.SYSTEMS, *map(_hubs, hub.SYSTEMS))
    return {s: found[f"memory {name} {s}"]["peak_bytes"] for s in systems}
