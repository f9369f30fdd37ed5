"""Section `answers`: latency of a text's whole answer in a warm process.

Times include tokenisation. redhost is compared with the encoder alone by transformers,
sentence-transformers and onnxruntime, and with sentence-transformers plus scikit-learn's logistic
head. All get the same real texts in turns, in one process with one thread; memory is measured in
separate processes. Takes a quarter of an hour on a quiet machine, and some minutes more the first
time; ``--runs 1 --texts 200 --backbone minilm`` is a trial of a minute.
"""

from __future__ import annotations

import platform
import random
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from importlib import metadata
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

import redhost
from red_lab.bench import Section, SectionSettings
from red_lab.bench.answers.subject import ENGINES, MAX_TOKENS, Subject, pick, runs_here
from red_lab.bench.answers.systems import (
    FLOOR,
    LARGE,
    SYSTEMS,
    WORDLESS,
    Answering,
    Case,
    cases,
    works,
)
from red_lab.bench.processes import ask, run_command
from red_lab.bench.rounds import in_turns, in_turns_over, percentile, spread, times
from red_lab.newsgroups import rows
from red_lab.progress import Bar
from red_lab.training import one_thread
from redhost.registry.environment import python_command

__all__ = ["BACKBONES", "SECTION", "by_size", "measure"]

PEERS = ("sentence-transformers", "onnxruntime", "onnxscript", "scikit-learn")


@dataclass(frozen=True, kw_only=True)
class Load:
    """The extent of a backbone's measurement.

    Attributes:
        share: Divisor of the number of texts in the largest call.
        posts: Posts of a call.
        memory: Lines of the call whose memory is measured.
    """

    share: int
    posts: int
    memory: int


BACKBONES: Mapping[str, Load] = {
    "minilm": Load(share=1, posts=64, memory=2000),
    "smollm2": Load(share=20, posts=8, memory=200),  # a text costs thirteen times as much here
}


def measure(settings: SectionSettings) -> dict[str, Any]:
    """Measure everything.

    Raises:
        MissingError: If a package of the texts, the server or a peer is not installed.
    """
    peers = _versions()
    with one_thread():
        found = {name: _measure_on(name, settings) for name in settings.backbones or BACKBONES}
    return {
        "runs": settings.runs,
        "threads": 1,
        "max_tokens": MAX_TOKENS,
        "peers": peers,
        "processor": _processor(),
        "backbones": found,
    }


NARROW = ("bf16", "fp16", "int8", "vnni")
"""Suffixes of torch's names for low-precision instructions."""

COLD = """
import sys
import torch
from transformers import AutoModel, AutoTokenizer
tokenizer, model = (x.from_pretrained(sys.argv[1]) for x in (AutoTokenizer, AutoModel))
with torch.inference_mode():
    model.eval()(**tokenizer(sys.argv[2], return_tensors="pt"))
"""
"""The minimum that a process does for one line: compute its vectors, without an answer."""


def _versions() -> dict[str, str]:
    try:
        return {name: metadata.version(name) for name in PEERS}
    except metadata.PackageNotFoundError as e:
        raise redhost.MissingError(
            "the peers are not installed",
            expected=", ".join(PEERS),
            found=f"no {e.name}",
            hint="Run 'make .venv/peers', or name other sections.",
        ) from e


def _processor() -> str:
    """Return the processor's name and its low-precision instructions."""
    found = torch.cpu.get_capabilities()
    has = [name for name in sorted(found) if found[name] is True and name.endswith(NARROW)]
    return f"{found.get('cpu_name', platform.machine())} ({', '.join(has) or 'none for few bits'})"


def _measure_on(name: str, settings: SectionSettings) -> dict[str, Any]:
    folder, load = settings.work / "answers", BACKBONES[name]
    # In a separate process: export and training leave gigabytes of memory behind.
    ask("answers.subject:prepare", name=name, folder=str(folder.absolute()))
    subject = Subject.under(folder, name)
    texts = {kind: pick(kind) for kind in ("lines", "posts")}
    memory = _memory(name, folder, texts=min(load.memory, settings.texts))
    systems = {side: SYSTEMS[side](subject) for side in filter(runs_here, SYSTEMS)}
    chosen = cases(runs=settings.runs, texts=settings.texts // load.share, posts=load.posts)
    bar, timed = Bar(f"answers {name}", total=len(chosen)), {}
    for n, case in enumerate(chosen, start=1):
        timed[case.name] = _timed(case, systems, texts[case.kind])
        bar.update(n, case.name)
    return {
        "cases": timed,
        "memory": memory,
        "engines": _engines(subject, posts=4 * load.posts),
        "cold": _cold(subject, texts["lines"][0], rounds=settings.runs),
    }


def _cold(subject: Subject, text: str, *, rounds: int) -> dict[str, Any]:
    """Return the time of a process that answers one line and exits, for each system."""
    home, exported = str(subject.home), str(subject.exported)
    commands = {
        "transformers": python_command("-c", COLD, str(subject.model), text),
        "redhost predict": python_command("-m", "redhost", "predict", "--home", home, text),
        "redhost onnx predict": python_command("-m", "redhost", "onnx", "predict", exported, text),
    }
    runs = {
        name: partial(run_command, command, OMP_NUM_THREADS="1")
        for name, command in commands.items()
    }
    seconds = in_turns(runs, rounds=rounds)
    return {
        name: {"seconds": spread(taken), "times": times(taken, seconds["transformers"])}
        for name, taken in seconds.items()
    }


def _engines(subject: Subject, *, posts: int) -> dict[str, Any]:
    """Compare the engines with torch on posts: distance of h, agreement of labels, accuracy.

    Args:
        subject: The subject that answers.
        posts: Number of posts.
    """
    chosen = random.Random(1).sample(rows("train"), posts)  # noqa: S311  (a sample, no secret)
    texts, answered = [row.text for row in chosen], dict[str, tuple[list[str], Tensor]]()
    for device in (None, *filter(runs_here, ENGINES)):
        with subject.host(device) as host:
            labels = [answer.label for answer in host.predict(texts)]
            answered[device or "torch"] = labels, host.composed.backbone.encode(texts)
    plain, h = answered["torch"]
    return {
        device: {
            "posts": posts,
            "agree": sum(a == b for a, b in zip(labels, plain, strict=True)) / posts,
            "accuracy": sum(a == r.label for a, r in zip(labels, chosen, strict=True)) / posts,
            "away": float(((own - h).norm(dim=1) / h.norm(dim=1)).max()),
        }
        for device, (labels, own) in answered.items()
    }


def _timed(
    case: Case, systems: Mapping[str, Answering], texts: list[str]
) -> dict[str, dict[str, Any]]:
    """Return the time of each system, also relative to the reference in the same round."""
    sides = {name: systems[name] for name in (LARGE if case.large else systems) if name in systems}
    seconds = in_turns_over(sides, works(case, texts))
    floor = seconds[LARGE[0] if case.large else FLOOR]
    return {
        side: {
            "seconds": spread(found),
            "p99": percentile(found, 99),
            "times": times(found, floor),
            "words": times(found, seconds[WORDLESS]),
            "rate": case.size * len(found) / sum(found),
        }
        for side, found in seconds.items()
    }


def _memory(name: str, folder: Path, *, texts: int) -> dict[str, int]:
    measured = partial(ask, "answers.systems:memory", folder=str(folder.absolute()))
    return {
        side: measured(name=name, system=side, texts=texts)["peak_bytes"]
        for side in filter(runs_here, SYSTEMS)
    }


def by_size(cases: Mapping[str, Any], floor: str | None = None) -> dict[str, Any]:
    """Return cases in the order of their numbers of texts.

    Args:
        cases: Times of every system, by case.
        floor: The system that these cases include; None for the cases without a padded pass.
    """
    sizes = {case: int(case.split()[0].replace(",", "")) for case in cases}
    chosen = (case for case, sides in cases.items() if (FLOOR in sides) == (floor is not None))
    return {case: cases[case] for case in sorted(chosen, key=lambda case: (sizes[case], case))}


SECTION = Section(
    name="answers",
    measure=measure,
    names={"systems": tuple(SYSTEMS), "floor": FLOOR, "by_size": by_size, "mib": 2**20},
)
