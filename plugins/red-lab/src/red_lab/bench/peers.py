"""Section `peers`: redhost compared with other adapter libraries, on the same work in one run.

Each library has its own processes; the systems of one process take turns.
"""

from __future__ import annotations

import itertools
import json
import shutil
from collections.abc import Callable
from functools import partial
from importlib import metadata
from pathlib import Path
from typing import Any

import safetensors.torch
import torch
from redhost_author.training.context import open_backbone
from torch import Tensor

import redhost
from red_lab.arithmetic import prompt
from red_lab.bench import Section, SectionSettings, peers_here, peers_hub
from red_lab.bench.peers_here import HINT, peft
from red_lab.bench.peers_model import CLASSIFIER, IDS
from red_lab.bench.processes import ask
from red_lab.cost import CLASSES
from red_lab.metrics import cached_json
from red_lab.models import open_source, plain
from red_lab.progress import Bar
from red_lab.ranges import shipped

__all__ = ["SECTION", "adapters_python", "measure", "open_trunk", "texts", "write_model"]

ADAPTERS = Path("build/peers-adapters")
"""AdapterHub requires an older transformers, so it has its own virtual environment."""

TRUNKS = ("smollm2", "tiny")
ROWS = 64
"""Texts whose token ids are written next to a model."""


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
    jobs = _forward(folders, python, rounds=settings.runs)
    found, bar = {}, Bar("peers", total=len(jobs))
    for n, (name, job) in enumerate(jobs.items(), start=1):
        found[name] = cached_json(parts / f"{name}.json", job)
        bar.update(n, name)
    results = _tell(found, runs=settings.runs)
    shutil.rmtree(parts)  # all is measured: the next run starts anew
    return results


def _forward(
    folders: dict[str, Path], python: Path, *, rounds: int
) -> dict[str, Callable[[], dict[str, Any]]]:
    """Return the jobs that measure overhead and memory, by name."""
    jobs: dict[str, Callable[[], dict[str, Any]]] = {}
    for name, path in folders.items():
        folder = str(path)
        jobs[f"forward {name}"] = partial(ask, "peers_here:measure", folder=folder, rounds=rounds)
        jobs[f"hub {name}"] = partial(
            ask, "peers_hub:measure", python=python, folder=folder, rounds=rounds
        )
        for system in peers_here.SYSTEMS:
            jobs[f"memory {name} {system}"] = partial(
                ask, "peers_here:memory", folder=folder, system=system
            )
        for system in peers_hub.SYSTEMS:
            jobs[f"memory {name} {_hubs(system)}"] = partial(
                ask, "peers_hub:memory", python=python, folder=folder, system=system
            )
    return jobs


def _tell(found: dict[str, Any], *, runs: int) -> dict[str, Any]:
    """Return the section's results."""
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
    }


def _hubs(system: str) -> str:
    """Return the name of an AdapterHub system: its floor uses another transformers version."""
    return "hub floor" if system == "floor" else system


def _memory(found: dict[str, Any], name: str) -> dict[str, Any]:
    systems = (*peers_here.SYSTEMS, *map(_hubs, peers_hub.SYSTEMS))
    return {s: found[f"memory {name} {s}"]["peak_bytes"] for s in systems}


def adapters_python(folder: Path = ADAPTERS) -> Path:
    """Return the Python interpreter of the environment that has AdapterHub's `adapters`.

    Raises:
        MissingError: If there is none.
    """
    python = folder / "bin" / "python"
    if not python.exists() or not list(folder.glob("lib/*/site-packages/adapters")):
        raise redhost.MissingError(
            "the peers are not installed",
            expected=f"AdapterHub's adapters in {folder}",
            found="none",
            hint=HINT,
        )
    return python.absolute()


def open_trunk(name: str) -> redhost.plugins.TextEncoder:
    """Open the trunk of a backbone with transformers, on which every system is measured.

    Args:
        name: ``smollm2``, or ``tiny`` for the installed one.

    Raises:
        MissingError: If its package is not installed.
    """
    if name == "tiny":
        return redhost.Backbone.load(f"hf:{shipped()[0]}").trunk
    return open_source(name, seed=0, work=Path()).trunk


def texts(count: int) -> list[str]:
    """Return questions of two numbers of two digits each."""
    pairs = itertools.product(range(10, 51), repeat=2)
    return [prompt(a, b) for a, b in itertools.islice(pairs, 0, None, 7)][:count]


def token_ids(trunk: redhost.plugins.TextEncoder, count: int) -> Tensor:
    """Return the token ids ``(N, T)`` of texts of one length."""
    return torch.tensor([trunk.tokens(text) for text in texts(count)])


def write_model(name: str, folder: Path) -> Path:
    """Write a trunk, its classifier and the token ids of real texts, unless they exist.

    Args:
        name: ``smollm2``, whose classifier is random, or ``tiny``.
        folder: The folder to write to.
    """
    done = folder / IDS
    if not done.exists():
        trunk = open_trunk(name)
        plain(trunk.model).save_pretrained(folder)
        safetensors.torch.save_file({"weight": _classifier(name, trunk.width)}, folder / CLASSIFIER)
        done.write_text(json.dumps(token_ids(trunk, ROWS).tolist()), "utf-8")  # last: all is there
    return folder


def _classifier(name: str, width: int) -> Tensor:
    if name == "tiny":
        weight = open_backbone(shipped()[0])[1].classifier
        if weight is not None:
            return weight.clone()
    generator = torch.Generator().manual_seed(0)
    return torch.randn(CLASSES, width, generator=generator).div(width**0.5)


SECTION = Section(name="peers", measure=measure)
