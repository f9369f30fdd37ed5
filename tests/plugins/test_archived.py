"""Studies that have been removed: pages name the commit that has the code, the index lists them."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
from pages.page import ARCHIVED, ROOT, archived_at

RESULTS = ROOT / "docs" / "results"
FOLDERS = [path.parent for path in sorted(RESULTS.rglob("README.md")) if archived_at(path.parent)]


def metrics(study: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((RESULTS / study / "metrics.json").read_text("utf-8"))
    return found


def command_of(folder: Path) -> str:
    line = ARCHIVED.search((folder / "README.md").read_text("utf-8"))
    assert line
    return line["study"]


def test_the_index_lists_exactly_the_archived_pages_with_their_commits() -> None:
    _, _, section = (RESULTS / "README.md").read_text("utf-8").partition("## Archived\n")
    listed = re.findall(
        r"^\| \[([\w-]+)\]\((\S+)/README\.md\) \| `lab (\S+)` \| (\S+) \|", section, re.M
    )
    assert listed == [(f.name, f.name, command_of(f), archived_at(f)) for f in FOLDERS]


@pytest.mark.parametrize("folder", FOLDERS, ids=lambda f: f.name)
def test_an_archived_page_says_at_its_head_which_commit_has_the_code(folder) -> None:
    text = (folder / "README.md").read_text("utf-8")
    assert ARCHIVED.match(text.splitlines()[2])
    for picture in re.findall(r"\]\(([\w-]+\.svg)\)", text):
        assert (folder / picture).exists()
    assert (folder / "metrics.json").exists()


# -- what docs and the index say of them ----------------------------------------------------------


def test_each_row_of_the_sparse_mixture_is_relative_to_one_that_runs_all_experts() -> None:
    dense = [r for r in metrics("sparse")["rows"] if r["k"] == r["experts"]]
    assert len(dense) == 3 and all(r["seconds_ratio"] == 1 for r in dense)


def test_removing_an_expert_changes_what_is_stacked_on_it_and_nothing_side_by_side() -> None:
    stacked, beside = metrics("stacking")["systems"][:2]
    assert stacked["all"]["low"] == pytest.approx(1.0) == beside["withdrawn"]["low"]
    assert stacked["withdrawn"]["high"] < 0.96 and beside["changed by withdrawal"]["high"] == 0


def test_every_tap_is_worse_than_the_bus_which_is_measured_first() -> None:
    (name, bus), *others = metrics("taps")["places"].items()
    assert name == "the bus" and len(others) > 4
    assert all(place["alone"]["mean"] < bus["alone"]["mean"] for _, place in others)


def test_the_base_stage_was_measured_from_before_its_first_step() -> None:
    found = metrics("forgetting")
    assert found["rows"][0]["step"] == 0 and found["rows"][0]["right"] < 0.1
    assert all(row["bits"].keys() == found["passages"].keys() for row in found["rows"])


def test_figures_of_several_answers_a_text_are_of_test_rows() -> None:
    assert not any(corpus["validation"] for corpus in metrics("several").values())


def test_a_merged_expert_loses_next_to_nothing_and_averages_do() -> None:
    """Averages are the backbone on sums, and ruin newswire."""
    found = metrics("merging")
    ranges, newswire, adapters = found["ranges"], found["newswire"], found["adapters"]
    assert ranges["less routed"]["fold 0"]["high"] > 0 > ranges["less routed"]["averaged"]["high"]
    assert ranges["accuracy"]["averaged"]["mean"] == ranges["accuracy"]["nothing"]["mean"]
    for name in ("updates averaged", "parameters averaged"):
        assert adapters["accuracy"][name]["mean"] == ranges["accuracy"]["nothing"]["mean"]
    assert newswire["less routed"]["fold 0"]["high"] > 0
    assert newswire["less routed"]["averaged"]["high"] < -0.4
    for section in (ranges, newswire):
        folds = [section["accuracy"][f"fold {rho:g}"]["mean"] for rho in (0, 0.05, 0.2)]
        assert max(folds) - min(folds) < 0.01
    assert ranges["accuracy"]["routed"]["low"] > adapters["accuracy"]["routed"]["high"]


def test_ports_keep_their_share_and_bad_encoders_are_refused() -> None:
    """Here, and in docs/results/README.md and docs/porting.md."""
    found = metrics("port")
    assert not found["validation"]
    for pair in found["pairs"].values():
        assert {"retrained", "one answer", "random weights"} < pair["accuracy"].keys()
        assert pair["most seconds"] <= 60
    bad = found["bad"].values()
    assert sum(row["ports"] for row in bad) >= 20
    assert all(row["refused"] == row["ports"] for row in bad)
    shares = {name: pair["retained"]["ported"]["share"] for name, pair in found["pairs"].items()}
    assert all((share > 0.9) == ("-next" in name) for name, share in shares.items())
    adapters = found["adapters"]["systems"]
    assert adapters["frozen"]["mean"] >= adapters["retrained"]["mean"]


def test_mixtures_are_sharper_than_the_dense_head_and_red_is_sharpest() -> None:
    for task in metrics("sharpness").values():
        top = {name: found["median"] for name, found in task["systems"].items()}
        dense = top.pop("dense head")
        assert dense < min(top.values()) and max(top.values()) == top["RED"]
        assert all(found["residual"] < 0.05 for found in task["systems"].values())


def test_gradients_of_domains_oppose_one_another_less_where_experts_are_apart() -> None:
    for task in metrics("gradients").values():
        for when in ("start", "end"):
            whole, apart = (task[m][when]["mean"]["mean"] for m in ("monolith", "modular"))
            assert whole < 0 and abs(apart) < abs(whole)


def test_truncated_experts_lose_some_points_on_smollm2_and_none_on_the_tiny_backbone() -> None:
    """Beside experts of that rank, which are still measured."""
    for run, nested in metrics("nested").items():
        ranks = metrics(f"red/{run}")["ablations"]["rank"]
        lost = [ranks[r]["RED"]["mean"] - nested[r]["RED"]["mean"] for r in nested]
        least, most = (0.01, 0.05) if run.startswith("smollm2") else (-0.001, 0.001)
        assert least < min(lost) and max(lost) < most, run


def test_a_change_takes_the_host_less_than_a_tenth_of_a_second_and_misses_its_aim() -> None:
    found = metrics("changes")
    host, peft = (found["changes"][who].values() for who in ("redhost", "peft"))
    assert all(change["seconds"]["median"] < 0.1 for change in host)
    assert all(change["seconds"]["median"] < 0.01 for change in peft)
    added = found["adding"]
    times = added["x-lora"]["all rows"]["seconds"] / added["redhost"]["seconds"]
    assert round(times) == 17  # the aim was 50
