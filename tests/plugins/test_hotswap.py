"""Hot-swapping: what moves and what does not, on the shipped packages really switched."""

from __future__ import annotations

import dataclasses
import json
import sys
from pathlib import Path

import msgspec
import pytest
import torch
from red_lab.hotswap import (
    BUILDS,
    Site,
    Step,
    build_all,
    bytes_changed,
    levels_of,
    orders,
    swaps,
)
from red_lab.ranges import shipped

import redhost

ROOT = Path(__file__).parents[2]
RESULTS = ROOT / "docs" / "results" / "hotswap"
SWAPPED = "range2"


@pytest.fixture(scope="module", autouse=True)
def one_thread():
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="module")
def work(tmp_path_factory) -> Path:
    return tmp_path_factory.mktemp("hotswap")


@pytest.fixture(scope="module")
def builds(work) -> dict:
    """Return another build of one expert: of less rank, and hardly trained."""
    quick = {"quick": dataclasses.replace(BUILDS["rank 16"], epochs=2)}
    return build_all(shipped()[0], work / "builds", ids=[SWAPPED], settings=quick)


@pytest.fixture(scope="module", params=["full", "row"])
def found(request, work, builds) -> dict:
    with Site(work / request.param, backbone="tiny", router="evidence") as site:
        return {"level": request.param, **swaps(site, builds, level=request.param)}


def events(found: dict) -> dict:
    return {e["event"]: e for e in found["events"]}


def test_the_events_are_remove_add_replace_and_restore(found) -> None:
    assert [e["event"] for e in found["events"]] == ["removed", "added back", "quick", "restored"]


def test_the_swapped_experts_range_falls_and_comes_back_and_no_other_moves(found) -> None:
    start, changes = found["start"]["accuracy"], events(found)
    assert changes["removed"]["accuracy"][SWAPPED] < start[SWAPPED] - 0.05
    for event in ("added back", "restored"):
        assert changes[event]["accuracy"] == start and changes[event]["same_answers"]
    for event in changes.values():
        others = {n: a for n, a in event["accuracy"].items() if n != SWAPPED}
        assert all(a >= start[n] - 0.01 for n, a in others.items())


def test_nothing_but_the_router_moved(found) -> None:
    assert [e["bytes_changed"] for e in found["events"]] == [0, 0, 0, 0]
    assert found["start"]["bytes"]["backbone"] > 2_000_000


def test_a_replaced_build_is_another_expert_and_the_old_one_comes_back(found) -> None:
    changes = events(found)
    assert [changes[n]["same_expert"] for n in changes] == [False, True, False, True]
    assert not changes["quick"]["same_answers"]


def test_the_full_level_gives_the_same_router_back_and_a_row_moves_alone(found) -> None:
    changes = events(found)
    if found["level"] == "full":
        assert changes["added back"]["same_router"] and changes["restored"]["same_router"]
        assert not changes["removed"]["same_router"]
    else:
        moved = [changes[n]["moved"] for n in ("removed", "added back", "quick", "restored")]
        assert moved == [[], [SWAPPED], [SWAPPED], [SWAPPED]]


def test_afterwards_the_environment_is_as_it_was(found, work) -> None:
    assert not [p for p in sys.path if p.startswith(str(work))]
    with redhost.Host.open(work / "another") as host:
        folders = {x.id: x.package.folder for x in host.list_experts()}
    assert folders[SWAPPED] == next(f for f in shipped()[1] if f.name.endswith(SWAPPED))


def step(**digests: tuple[str, str]) -> Step:
    """Return a step of parts of ten bytes with digests before and after."""
    parts = {n: {"before": b, "after": a} for n, (b, a) in digests.items()}
    change = type("Change", (msgspec.Struct,), {"__annotations__": {"before": str, "after": str}})
    made = {n: change(**p) for n, p in parts.items()}
    receipt = type("Receipt", (), {"backbone": made.pop("backbone"), "experts": made})
    return Step(
        receipt=receipt,
        refused=False,
        seconds=0.0,
        accuracy={},
        answers="",
        sizes=dict.fromkeys(digests, 10),
    )


@pytest.mark.parametrize(
    ("after", "changed"),
    [
        ({"backbone": ("a", "a"), "x": ("b", "b"), "y": ("c", "c")}, 0),
        ({"backbone": ("a", "!"), "x": ("b", "b"), "y": ("c", "c")}, 10),
        ({"backbone": ("!", "!"), "x": ("!", "!"), "y": ("!", "!")}, 20),
        ({"backbone": ("a", "a"), "x": ("b", "b"), "y": ("c", "!")}, 10),
        ({"backbone": ("a", "a"), "x": ("b", "b")}, 0),
        ({"backbone": ("a", "a"), "x": ("b", "b"), "new": ("d", "d")}, 0),
    ],
)
def test_bytes_are_counted_where_a_digest_moved_but_for_the_swapped_expert(after, changed) -> None:
    before = step(backbone=("a", "a"), x=("b", "b"), y=("c", "c"))
    assert bytes_changed(before, step(**after), swapped="y") == changed


def test_levels_are_those_the_router_has() -> None:
    assert levels_of("evidence") == ("full", "row", "zero")
    assert levels_of("mlp") == ("full", "row")
    assert levels_of("somebody-elses") == ("full",)


def test_every_order_is_composed(work) -> None:
    backbone, experts = shipped()
    done = orders(backbone, experts[:3], router="centroid", cache=work / "features")
    assert (done["orders"], done["routers"]) == (6, 1)


def test_the_results_say_that_nothing_else_moved() -> None:
    metrics = json.loads((RESULTS / "metrics.json").read_text("utf-8"))
    assert metrics["orders"]["orders"] == 120 and metrics["orders"]["routers"] == 1
    assert set(metrics["levels"]) == {"full", "row", "zero"}
    for found in metrics["levels"].values():
        assert len(found["events"]) == 5 * 5
        assert not any(e["bytes_changed"] for e in found["events"])
