"""Two strangers' data sets of people's texts compose, by the tutorial's commands and no options."""

from __future__ import annotations

import json
import random
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from red_lab.newsgroups import TEAMS, encoder, lines, rows

import redhost

STRANGERS = {"desk": ("computers", "science"), "forum": ("leisure", "politics", "religion")}
"""9 and 11 labels, none shared; neither knows of the other."""

LEARNT, UNSEEN = 400, 80
"""Texts of each stranger, all of the training file."""


def texts_of(name: str) -> tuple[list[redhost.Row], list[redhost.Row]]:
    """Return the rows that a stranger learns from, and some that nobody sees."""
    labels = {label for team in STRANGERS[name] for label in TEAMS[team]}
    own = [row for row in rows("train") if row.label in labels]
    chosen = random.Random(0).sample(own, LEARNT + UNSEEN)
    return chosen[:LEARNT], chosen[LEARNT:]


@dataclass(frozen=True)
class Desk:
    """An environment with a backbone on MiniLM, and who types commands there."""

    venv: Any
    home: Path

    def types(self, *words: str) -> str:
        done = self.venv.run(*words, home=self.home)
        assert done.returncode == 0, f"{words}: {done.stdout}{done.stderr}"
        return str(done.stdout)


@pytest.fixture(scope="module")
def desk(make_venv, tmp_path_factory) -> Desk:
    folder = tmp_path_factory.mktemp("strangers")
    made = Desk(make_venv(folder / "venv"), folder / "home")
    nobodys = folder / "nobodys.txt"
    nobodys.write_text("\n".join(lines()[:64]), "utf-8")
    made.types("new-backbone", "mine", "--from", f"hf:{encoder()}", "--background", str(nobodys))
    project = str(made.venv.folder / "red-backbone-mine")
    done = made.venv.pip("install", "--no-deps", "--no-build-isolation", project)
    assert done.returncode == 0, done.stderr
    return made


def wheel_of(name: str, desk: Desk) -> str:
    """Make a stranger's package as the tutorial does."""
    project, data = f"red-expert-{name}", desk.venv.folder / f"{name}.jsonl"
    learnt = [json.dumps({"text": row.text, "label": row.label}) for row in texts_of(name)[0]]
    data.write_text("\n".join(learnt), "utf-8")
    desk.types("new-expert", name, "--backbone", "mine")
    desk.types("train-expert", project, "--data", str(data))
    desk.types("pack", project)
    [wheel] = (desk.venv.folder / project / "dist").glob("*.whl")
    return str(wheel)


def answers(desk: Desk, rows: Sequence[redhost.Row]) -> list[str]:
    """Return the label that each row gets."""
    found = json.loads(desk.types("predict", "--json", *(row.text for row in rows)))
    return [str(answer["label"]) for answer in found]


def right(labels: Sequence[str], rows: Sequence[redhost.Row]) -> float:
    """Return the share of rows that have their label."""
    return sum(y == row.label for y, row in zip(labels, rows, strict=True)) / len(rows)


@pytest.fixture(scope="module")
def before(desk) -> float:
    """Return the share of the first stranger's rows that get their label while it is alone."""
    first, second = STRANGERS
    desk.types("add", wheel_of(first, desk), "--backbone", "mine")
    unseen = texts_of(first)[1]
    alone = right(answers(desk, unseen), unseen)
    desk.types("add", wheel_of(second, desk))
    return alone


def test_the_second_stranger_is_let_in_and_the_first_loses_little(desk, before) -> None:
    first, second = STRANGERS
    beside = {
        name: right(answers(desk, texts_of(name)[1]), texts_of(name)[1]) for name in STRANGERS
    }
    assert before > 0.6
    assert beside[second] > 0.6
    assert beside[first] > before - 0.1


def test_they_read_words_by_default_and_are_better_than_pooled_scikit_learn(desk, before) -> None:
    linear_model = pytest.importorskip("sklearn.linear_model")
    text = pytest.importorskip("sklearn.feature_extraction.text")
    learnt, unseen = (
        [row for name in STRANGERS for row in texts_of(name)[part]] for part in (0, 1)
    )
    record = json.loads(desk.types("status", "--json"))
    assert before and record["router"].startswith("words ")
    counts = text.TfidfVectorizer(sublinear_tf=True)
    model = linear_model.LogisticRegression(C=10, max_iter=1000)
    model.fit(counts.fit_transform([r.text for r in learnt]), [r.label for r in learnt])
    theirs = right([*model.predict(counts.transform([r.text for r in unseen]))], unseen)
    assert right(answers(desk, unseen), unseen) > theirs
