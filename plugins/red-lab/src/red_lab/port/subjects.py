"""The subjects of the study: backbones and their next versions, and teams with their rows."""

from __future__ import annotations

import hashlib
import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from importlib.resources import files
from pathlib import Path

import redhost
from red_lab.newsgroups import encoder
from red_lab.port.versions import further_trained
from red_lab.red.run import smollm2_file
from red_lab.text.corpora import CORPORA
from redhost.core.training.context import AuthoringContext
from redhost.core.training.new_backbone import BackbonePlan, new_backbone
from redhost.core.types import BackgroundRow

__all__ = ["JUDGE", "LEARN", "PAIRS", "TOKENS", "Pair", "Team", "open_backbone", "teams"]

LEARN, JUDGE = 400, 200
"""Maximum number of training and of test texts of a team: those of the smallest hash."""

TOKENS = 64
"""Maximum number of tokens of real texts."""

LARGEST = 50
"""The largest operand of sums."""


@dataclass(frozen=True, kw_only=True)
class Pair:
    """Two backbones, and the corpus of the experts that are ported from one to the other.

    Attributes:
        old: The backbone that experts are trained on.
        new: The backbone that they are ported to.
        corpus: The experts' texts: one of `CORPORA`, or ``sums``.
        title: The relation of the new backbone to the old one.
    """

    old: str
    new: str
    corpus: str
    title: str


PAIRS: Mapping[str, Pair] = {
    f"{p.old} → {p.new}, {p.corpus}": p
    for p in (
        Pair(old="tiny", new="tiny-next", corpus="sums", title="further trained, on subtraction"),
        Pair(
            old="minilm",
            new="minilm-next",
            corpus="newsgroups",
            title="further trained, on what people of a series answer each other",
        ),
        Pair(
            old="minilm",
            new="minilm-next",
            corpus="newswire",
            title="further trained, on what people of a series answer each other",
        ),
        Pair(
            old="smollm2",
            new="smollm2-next",
            corpus="newsgroups",
            title="further trained, on lines of a series",
        ),
        Pair(
            old="minilm",
            new="smollm2",
            corpus="newsgroups",
            title="another model: other tokens, width and purpose",
        ),
        Pair(
            old="smollm2",
            new="minilm",
            corpus="newsgroups",
            title="another model: other tokens, width and purpose",
        ),
    )
}


@dataclass(frozen=True, kw_only=True)
class Team:
    """One author's training and test rows.

    Attributes:
        name: The expert's id.
        learn: Labelled training rows.
        judge: Test rows.
    """

    name: str
    learn: Sequence[redhost.Row]
    judge: Sequence[redhost.Row]


def teams(corpus: str, *, validation: bool) -> list[Team]:
    """Return the teams of a corpus.

    Args:
        corpus: One of `CORPORA`, or ``sums``.
        validation: Evaluate on held-out training rows; test files are not opened.
    """
    if corpus == "sums":
        return _sums(validation=validation)
    read, names = CORPORA[corpus].rows, CORPORA[corpus].teams
    parts = [read(part, validation) for part in ("train", "test")]
    return [
        Team(
            name=name,
            learn=_first([r for r in parts[0] if r.domain == name], LEARN),
            judge=_first([r for r in parts[1] if r.domain == name], JUDGE),
        )
        for name in names
    ]


def open_backbone(name: str, corpus: str, *, work: Path) -> tuple[Path, AuthoringContext]:
    """Return a backbone's package, made if missing, and its authoring context.

    Args:
        name: Its name in `PAIRS`.
        corpus: The corpus of its background card.
        work: The folder for packages and features.
    """
    folder = _package(name, corpus, work=work)
    return folder, redhost.authoring.open_for_training(folder, cache=work / "cache")


def _package(name: str, corpus: str, *, work: Path) -> Path:
    if name == "tiny":
        return Path(str(files("red_backbone_tiny")))
    project = work / "packages" / f"red-backbone-{name}-{corpus}"
    if (made := next(project.glob("src/*/backbone.json"), None)) is not None:
        return made.parent
    shutil.rmtree(project, ignore_errors=True)
    plan = BackbonePlan(id=name, source=_SOURCES[name](work))
    if name == "tiny-next":
        new_backbone(project, plan, rows=_differences(), background=_plain_background())
    else:
        plan = replace(plan, pooling="mean", max_tokens=TOKENS)
        new_backbone(project, plan, background=CORPORA[corpus].background())
    return next((project / "src").iterdir())


_SOURCES: Mapping[str, Callable[[Path], str]] = {
    "tiny-next": lambda work: f"hf:{_tiny_model(work)}",
    "minilm": lambda _: f"hf:{encoder()}",
    "minilm-next": lambda work: f"hf:{further_trained('minilm', work)}",
    "smollm2": lambda _: f"gguf:{smollm2_file()}",
    "smollm2-next": lambda work: f"hf:{further_trained('smollm2', work)}",
}


def _tiny_model(work: Path) -> Path:
    """Return a folder with the tiny model alone, without the manifest of its package."""
    folder, package = work / "tiny", files("red_backbone_tiny")
    folder.mkdir(parents=True, exist_ok=True)
    for name in ("config.json", "tokenizer.json", "tokenizer_config.json", "model.safetensors"):
        (folder / name).write_bytes(package.joinpath(name).read_bytes())
    return folder


def _sums(*, validation: bool) -> list[Team]:
    """Return teams that classify a sum's size, the order of its operands, or its first tens."""
    pairs = [(a, b) for a in range(1, LARGEST + 1) for b in range(1, LARGEST + 1)]
    answers: Mapping[str, Callable[[int, int], str]] = {
        "size": lambda a, b: ("small", "middle", "large")[(a + b > 40) + (a + b > 60)],  # noqa: PLR2004
        "order": lambda a, b: "first" if a > b else "second",
        "start": lambda a, _: f"{(a - 1) // 10}x",
    }
    found = []
    for name, answer in answers.items():
        rows = [
            redhost.Row(text=f"What is {a} plus {b}?", label=answer(a, b), domain=name)
            for a, b in pairs
        ]
        ordered = _first(rows, len(rows))
        # A pair has the same index for every team, so no team trains on another's test pairs.
        judge = ordered[LEARN : LEARN + JUDGE] if validation else ordered[-JUDGE:]
        found.append(Team(name=name, learn=ordered[:LEARN], judge=judge))
    return found


def _differences() -> list[redhost.Row]:
    """Return subtractions, each labelled with the tens of the difference."""
    return [
        redhost.Row(text=f"What is {a} minus {b}?", label=f"{(a - b) // 10}")
        for a in range(1, 2 * LARGEST)
        for b in range(1, a + 1, 3)
    ]


def _plain_background() -> list[BackgroundRow]:
    texts = CORPORA["newswire"].background()
    return list(texts)


def _first(rows: Sequence[redhost.Row], most: int) -> list[redhost.Row]:
    """Return the `most` rows whose texts have the smallest hash."""
    return sorted(rows, key=lambda r: hashlib.sha256(f"port {r.text}".encode()).digest())[:most]
