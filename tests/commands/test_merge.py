"""merge: from the current generation to a package that passes the strict check."""

from __future__ import annotations

import json
from pathlib import Path


def test_a_composition_becomes_one_expert_that_can_be_packed(home, call) -> None:
    code, out, _ = call("merge", "all", "--epochs", "30")
    assert code == 0 and "accuracy on gate rows" in out
    assert "next: redhost pack red-expert-all" in out
    assert call("check", "red-expert-all", "--strict")[0] == 0
    assert call("pack", "red-expert-all")[0] == 0
    assert list(Path("red-expert-all/dist").glob("red_expert_all-*.whl"))


def test_json_tells_what_is_lost(home, call) -> None:
    Path("texts.txt").write_text("\n".join(f"What is {n} plus {n + 2}?" for n in range(1, 49)))
    code, out, _ = call(
        "merge", "all", "--data", "texts.txt", "--epochs", "3", "--sharpness", "0.05", "--json"
    )
    printed = json.loads(out)
    assert code == 0 and printed["generation"] == 1 and printed["epoch"] <= 3
    assert printed["before"].keys() == printed["after"].keys() > {"range3", "overall"}
    assert printed["parameters"]["merged"] < printed["parameters"]["composition"]


def test_a_name_that_is_taken_is_wrong_usage_and_nothing_is_lost(home, call) -> None:
    Path("red-expert-all").mkdir()
    code, _, err = call("merge", "all")
    assert code == 2 and "red-expert-all is there already" in err and err.count("\n") == 1
