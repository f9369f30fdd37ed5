"""`redhost lab sparse`: operations follow the active experts, and dense rows are the measure."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from red_lab.sparse import RANK, ROWS, WIDTH, measure

RESULTS = Path(__file__).parents[2] / "docs" / "results" / "sparse"


def test_operations_are_those_of_the_gate_and_k_experts() -> None:
    for row in measure(runs=1)["rows"]:
        gate, expert = 2 * WIDTH * row["experts"], 4 * WIDTH * RANK
        assert row["flops"] == ROWS * (gate + row["k"] * expert)
        assert row["flops_ratio"] == pytest.approx(row["k"] / row["experts"], abs=0.02)


def test_every_number_of_experts_has_a_row_that_runs_them_all() -> None:
    metrics = json.loads((RESULTS / "metrics.json").read_text("utf-8"))
    dense = [r for r in metrics["rows"] if r["k"] == r["experts"]]
    assert len(dense) == 3 and all(r["seconds_ratio"] == 1 for r in dense)
