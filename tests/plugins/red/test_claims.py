"""What a RED page says of the seed's claims is chosen by its figures, on both sides of a rule."""

from __future__ import annotations

import copy
import json
import re
from pathlib import Path
from typing import Any

import pytest
from red_lab.metrics import render
from red_lab.red.experts import NAMES
from red_lab.red.measure import SHARES
from red_lab.red.report import PLACE

RED = Path(__file__).parents[3] / "docs" / "results" / "red"


DIFFICULTY, ERRORS, DRIFT, WRONG_ROUTES, BOUNDARY = range(5)


def claims(metrics: dict[str, Any]) -> list[tuple[str, str]]:
    """What the page says of every claim: whether it holds, and why."""
    text = render("red/claims", metrics, flips=SHARES, place=PLACE)
    return re.findall(r"^- 4\.[^:]+: \*\*(.+?)\*\*\. (.+)$", text, re.M)


def system(*accuracies: float, boundary: float = 0.5) -> dict[str, Any]:
    return {"domains": dict(zip(NAMES, accuracies, strict=True)), "boundary": boundary}


@pytest.fixture
def metrics() -> dict[str, Any]:
    """Figures under which every claim holds."""
    titles = ("RED", "MoE, residual", "MoE, linear")
    curve = {
        t: [0.8, 0.7, 0.6, q, 0.4, 0.3, 0.2] for t, q in zip(titles, (0.6, 0.4, 0.2), strict=True)
    }
    return {
        "systems": {
            "global": system(0.9, 0.8, 0.7, 0.6, 0.5),
            "red": system(0.9, 0.9, 0.9, 0.9, 0.8, boundary=0.9)
            | {"errors": {"wrong": 20, "one": 0.4, "ten": 0.2, "median": 1, "p90": 12, "most": 30}},
            "moe_residual": system(0.9, 0.9, 0.9, 0.9, 0.7, boundary=0.8),
            "moe_linear": system(0.6, 0.6, 0.6, 0.6, 0.5),
            "uniform_probabilities_linear": system(0.1, 0.1, 0.1, 0.1, 0.0),
            "oracle": system(1, 1, 1, 1, 1, boundary=0.85),
        },
        "relative_size": dict.fromkeys(NAMES, 0.5),
        "cosine": dict.fromkeys(NAMES, 0.9) | {"range5": None},
        "base_kept": {"RED": 0.99, "MoE, residual": 0.98, "MoE, linear": None},
        "curves": {"flipped": copy.deepcopy(curve), "worst": copy.deepcopy(curve)},
        "paired_boundary": {
            f"RED - {o}": {"mean": 0.1, "low": 0.01, "high": 0.2}
            for o in ("MoE, residual", "oracle, residual")
        },
    }


def test_every_claim_can_hold(metrics) -> None:
    assert [holds for holds, _ in claims(metrics)] == ["holds"] * 5


def test_difficulty_increases_only_if_every_range_is_harder_than_the_one_before(metrics) -> None:
    metrics["systems"]["global"]["domains"]["range3"] = 0.8
    holds, why = claims(metrics)[DIFFICULTY]
    assert holds == "does not hold" and "Easiest: range1; hardest: range5" in why


def test_errors_are_interpreted_where_most_are_slips_of_one_digit(metrics) -> None:
    found = metrics["systems"]["red"]["errors"]
    assert "20 wrong answers 40.0% are off by one and 20.0% by ten" in claims(metrics)[ERRORS][1]
    assert (
        "Half of them are off by at most 1, nine in ten by at most 12, the worst by 30."
        in claims(metrics)[ERRORS][1]
    )
    found["ten"] = 0.1
    assert claims(metrics)[ERRORS][0] == "does not hold"
    found["wrong"] = 0
    assert claims(metrics)[ERRORS] == ("not measured", "RED gives no wrong answer.")
    del metrics["systems"]["red"]["errors"]
    assert claims(metrics)[ERRORS][0] == "not measured"


def test_experts_as_long_as_h_do_not_refine_it(metrics) -> None:
    assert (
        "0 of 5" in claims(metrics)[DRIFT][1]
        and "RED 99.0%, MoE, residual 98.0%." in claims(metrics)[DRIFT][1]
    )
    metrics["relative_size"]["range2"] = 1.0
    del metrics["cosine"]
    holds, why = claims(metrics)[DRIFT]
    assert holds == "does not hold" and "0.50 to 1.00: 1 of 5" in why and "was not measured" in why


@pytest.mark.parametrize("kind", ["flipped", "worst"])
def test_wrong_routes_have_to_cost_less_in_both_ways(metrics, kind) -> None:
    assert "75.0% against 50.0%, more" in claims(metrics)[WRONG_ROUTES][1]
    metrics["curves"][kind]["MoE, residual"][3] = 0.6
    holds, why = claims(metrics)[WRONG_ROUTES]
    assert holds == "does not hold" and "75.0% against 75.0%, equal to within half" in why


@pytest.mark.parametrize("other", ["MoE, residual", "oracle, residual"])
def test_help_at_borders_is_more_than_the_mixture_and_than_the_own_expert(metrics, other) -> None:
    metrics["paired_boundary"][f"RED - {other}"]["low"] = -0.01
    assert claims(metrics)[BOUNDARY][0] == "does not hold"
    assert "+10.00 (-1.00 … +20.00)" in claims(metrics)[BOUNDARY][1]


def test_without_intervals_help_has_to_be_half_a_point(metrics) -> None:
    del metrics["paired_boundary"]
    assert claims(metrics)[BOUNDARY][0] == "holds"
    metrics["systems"]["oracle"]["boundary"] = 0.896
    assert (
        claims(metrics)[BOUNDARY][0] == "does not hold"
        and "do not help each other" in claims(metrics)[BOUNDARY][1]
    )
    metrics["systems"]["red"]["boundary"] = None
    assert claims(metrics)[BOUNDARY][0] == "not measured"


def row(metrics: dict[str, Any], name: str) -> list[str]:
    """The cells of a property in the seed's table of advantages, its name first."""
    text = render("red/claims", metrics, flips=SHARES, place=PLACE)
    [line] = re.findall(rf"^\| ({name}.*) \|$", text, re.M)
    return line.split(" | ")


def test_the_table_of_advantages_says_what_came_out(metrics) -> None:
    routes = row(metrics, "robustness")
    assert routes[1:5] == ["25.0% / 25.0%", "no router", "50.0% / 50.0%", "75.0% / 75.0%"]
    assert routes[-1] == "as the seed claims"
    metrics["curves"]["worst"]["MoE, linear"][3] = 0.6
    assert row(metrics, "robustness")[-1] == "not as the seed claims"
    frozen = row(metrics, "backbone")
    right = "frozen, 99.0% of the base's correct answers stay correct"
    assert frozen[1] == "frozen" and frozen[4] == right
    metrics["base_kept"]["MoE, linear"] = 0.0
    assert row(metrics, "backbone")[1] == right.replace("99.0%", "0.0%")


def test_a_balanced_system_is_one_whose_worst_range_is_high(metrics) -> None:
    found = row(metrics, "per range")
    assert found[4] == "0.800, 0.100" and found[-1].endswith(
        ", and above that of a mixture over the same experts"
    )
    metrics["systems"]["moe_residual"]["domains"]["range5"] = 0.797
    assert "not above that of a mixture" in row(metrics, "per range")[-1]
    metrics["systems"]["moe_linear"] = system(0.9, 0.9, 0.9, 0.9, 0.9)
    assert row(metrics, "per range")[-1] == "RED's worst range is not the highest"


def test_what_the_departures_say_of_all_runs_is_so() -> None:
    runs = {p.parent.name: json.loads(p.read_text("utf-8")) for p in RED.glob("*/metrics.json")}
    assert len(runs) > 5
    for run in runs.values():
        assert {claims(run)[n][0] for n in (DIFFICULTY, WRONG_ROUTES, BOUNDARY)} == {
            "does not hold"
        }
    assert {name for name, run in runs.items() if claims(run)[DRIFT][0] == "holds"} == {
        "smollm2-addition-held-out"
    }
    alike, drawn = runs["smollm2-addition-seed-stratified"], runs["smollm2-addition-seed"]
    assert claims(alike)[DIFFICULTY][1].endswith("hardest: range3.")
    assert "Easiest: range3; hardest: range5." in claims(drawn)[DIFFICULTY][1]
    gap = alike["paired"]["RED - MoE, residual"]
    assert gap["low"] < 0 < gap["high"]
