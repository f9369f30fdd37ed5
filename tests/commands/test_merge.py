"""merge: from the current generation to a package that passes the strict check."""

from __future__ import annotations

import json
from pathlib import Path


def test_a_composition_becomes_one_expert_that_can_be_packed(home, call) -> None:
    code, out, _ = call("merge", "all")
    assert code == 0 and "accuracy on gate rows" in out
    assert "next: redhost pack red-expert-all" in out
    assert call("check", "red-expert-all", "--strict")[0] == 0
    assert call("pack", "red-expert-all")[0] == 0
    assert list(Path("red-expert-all/dist").glob("red_expert_all-*.whl"))


def test_one_that_loses_too_much_is_refused_and_left_on_disk(home, call) -> None:
    code, out, err = call("merge", "all", "--epochs", "1")
    assert code == 1 and "accuracy on gate rows" in out and "next:" not in out
    assert err.count("\n") == 1 and "--data" in err
    assert next(Path("red-expert-all").rglob("expert.safetensors")).exists()
    assert call("merge", "twin", "--epochs", "1", "--tolerance", "100")[0] == 0


def test_json_tells_what_is_lost(home, call) -> None:
    Path("texts.txt").write_text("\n".join(f"What is {n} plus {n + 2}?" for n in range(1, 49)))
    code, out, _ = call(
        "merge", "all", "--data", "texts.txt", "--epochs", "3", "--sharpness", "0.05", "--json"
    )
    printed = json.loads(out)
    assert code == 1 and printed["generation"] == 1 and printed["epoch"] <= 3
    assert printed["before"].keys() == printed["after"].keys() > {"range3", "overall"}
    assert printed["gate_rows"].keys() == printed["before"].keys()
    assert printed["parameters"]["merged"] < printed["parameters"]["composition"]


def test_a_name_that_is_taken_is_wrong_usage_and_nothing_is_lost(home, call) -> None:
    Path("red-expert-all").mkdir()
    code, _, err = call("merge", "all")
    assert code == 2 and "red-expert-all is there already" in err and err.count("\n") == 1
