"""The pages of the generative study say what its results files say."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from red_lab.generative.study.page import page

RESULTS = Path(__file__).parents[3] / "docs" / "results" / "generative"


@pytest.mark.parametrize("folder", sorted(RESULTS.iterdir()), ids=lambda p: p.name)
def test_a_page_is_its_metrics(folder: Path) -> None:
    metrics = json.loads((folder / "metrics.json").read_text("utf-8"))
    assert (folder / "README.md").read_text("utf-8") == page(metrics)
    assert all((folder / f"{name}.svg").exists() for name in ("rarity", "recovered", "switch"))


def test_another_number_is_another_page() -> None:
    metrics = json.loads((RESULTS / "tiny" / "metrics.json").read_text("utf-8"))
    text = page(metrics)
    metrics["systems"]["base"]["bits"]["cpp"]["mean"] += 0.5
    assert page(metrics) != text
