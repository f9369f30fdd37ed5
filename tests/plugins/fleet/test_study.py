"""The fleet's study: what counts as stale, and figures that hold what is promised."""

from __future__ import annotations

import json
import random
from pathlib import Path

import pytest
from redhost_fleet.rollout import DRIFTED, Limits
from redhost_fleet.study.growth import PLANS, Plan, bound, simulate
from redhost_fleet.study.rollouts import KINDS, rollout
from redhost_fleet.study.storm import stale

ROOT = Path(__file__).parents[3]
MOVES = [(0.0, 0.1, 1), (10.0, 10.1, 2), (20.0, 20.1, 1)]


@pytest.mark.parametrize(
    ("sent", "generation", "late"),
    [(5, 1, 0), (12.0, 1, 0), (12.2, 1, 1), (9.0, 2, 1), (15, 2, 0), (23, 2, 1), (5, 3, 1)],
)
def test_an_answer_is_stale_two_seconds_after_the_pointer_moved(sent, generation, late) -> None:
    assert stale([(sent, sent + 0.5, generation)], MOVES, []) == late


def test_an_outage_stops_the_clock_which_starts_anew() -> None:
    seen = [(16.9, 17.0, 1)]
    assert stale(seen, MOVES, []) == 1
    assert stale(seen, MOVES, [(11.0, 15.0)]) == 0
    assert stale([(17.1, 17.2, 1)], MOVES, [(11.0, 15.0)]) == 1
    assert stale(seen, MOVES, [(5.0, 9.0)]) == 1  # it was over when the pointer moved


@pytest.mark.parametrize("plan", PLANS.values(), ids=PLANS)
@pytest.mark.parametrize("replicas", [1, 30])
def test_the_formula_bounds_the_simulation_and_is_near(plan: Plan, replicas: int) -> None:
    followed = simulate(plan, replicas, seed=1)
    assert len(followed) == replicas and followed == sorted(followed)
    assert followed[-1] <= bound(plan, replicas) + 0.02
    assert followed[-1] >= bound(plan, replicas) - plan.poll - 0.02


def test_a_canary_that_is_worse_ends_and_one_that_is_as_good_does_not() -> None:
    worse = rollout(random.Random(1), better=0, worse=0.1, one=False, labels=2000, limits=Limits())
    assert worse[0] == "end" and worse[1] < 500
    good = rollout(random.Random(1), better=0, worse=0, one=False, labels=2000, limits=Limits())
    assert good[0] == "promote"


def test_the_figures_hold_what_is_promised() -> None:
    folder = ROOT / "docs/results/fleet"
    metrics = json.loads((folder / "metrics.json").read_text("utf-8"))
    storm = metrics["storm"]
    assert storm["answers"] >= 100_000 and storm["replicas"] == 8 and storm["kills"] >= 1
    assert (storm["failed"], storm["mixed"], storm["stale"]) == (0, 0, 0)
    good = [row for row in metrics["rollouts"]["rows"] if row["kind"].startswith("as good")]
    assert len(metrics["rollouts"]["rows"]) == len(KINDS)
    assert all(row["end"] <= 0.01 for row in good)
    for row in metrics["canaries"]["rows"]:  # three points worse on real posts: never promoted
        loss = row["worse"] - row["better"]
        assert row["end"] == 1 if loss >= 0.03 else row["end"] < 1
        assert row["promote"] == 0 if loss >= 0.01 else True
    like, later, *strange = metrics["canaries"]["drift"]
    own = [d for row in (like, later) for d in row["drift"].values()]
    other = [d for row in strange for d in row["drift"].values()]
    assert max(d["distance"] for d in own) < DRIFTED < min(d["distance"] for d in other)
