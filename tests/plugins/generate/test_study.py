"""The page of `redhost lab decoding` is its metrics'; ratios are those within a round."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from redhost_generate.study import STUDY, prompts, summarise
from redhost_generate.systems import FLOATS, MIXED, SHIPPED, TOGETHER, VLLM

SYSTEMS = (TOGETHER, "redhost, one by one", MIXED, "PEFT, one by one")

PAGE = Path(__file__).parents[3] / "docs" / "results" / "decoding"


def test_the_page_is_written_from_its_metrics() -> None:
    metrics = json.loads((PAGE / "metrics.json").read_text("utf-8"))
    assert STUDY.page(metrics) == (PAGE / "README.md").read_text("utf-8")
    for systems in metrics["tasks"].values():
        assert systems[TOGETHER]["ratio"] == 1
        assert all(0 <= row["same"] <= 1 for row in systems.values())


def test_what_the_index_says_of_it_is_so() -> None:
    tasks = json.loads((PAGE / "metrics.json").read_text("utf-8"))["tasks"]
    ratios = {n: {name: row["ratio"] for name, row in tasks[n].items()} for n in tasks}
    assert min(ratios[n][name] for n in ("1", "8", "32") for name in (MIXED, VLLM)) > 1
    assert max(ratios["1"][name] for name in (FLOATS, SHIPPED)) < 1
    assert min(ratios[n][name] for n in ("8", "32") for name in (FLOATS, SHIPPED)) > 1


def test_texts_have_prompts_of_their_own() -> None:
    made = prompts(32)
    assert len({*made}) == 32 and len({len(p.split()) for p in made}) > 4


def test_a_ratio_is_the_median_of_the_rounds() -> None:
    def cell(ours: float, theirs: float) -> dict[str, dict[str, float]]:
        rates = dict.fromkeys(SYSTEMS, theirs) | {TOGETHER: ours}
        return {n: {"rate": r, "first": 1.0, "same": 1.0} for n, r in rates.items()}

    found = summarise("8", [cell(10, 5), cell(9, 9), cell(30, 20)])
    assert found[MIXED]["ratio"] == pytest.approx(1.5)
    assert found[TOGETHER]["rate"] == 10
