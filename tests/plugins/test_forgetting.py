"""`redhost lab forgetting`: metrics begin with the model as it came."""

from __future__ import annotations

import json
from pathlib import Path

from red_lab.forgetting import STEPS

RESULTS = Path(__file__).parents[2] / "docs" / "results" / "forgetting"
METRICS = json.loads((RESULTS / "metrics.json").read_text("utf-8"))


def test_every_kind_is_read_at_every_step_and_the_first_is_before_any() -> None:
    assert [row["step"] for row in METRICS["rows"]] == list(STEPS) and STEPS[0] == 0
    assert all(row["bits"].keys() == METRICS["passages"].keys() for row in METRICS["rows"])
    assert METRICS["rows"][0]["right"] < 0.1  # a head that knows nothing yet
