"""`redhost lab ranks`: every way has every rank, and a cut is by what weighs most."""

from __future__ import annotations

import json
from pathlib import Path

import torch
from red_lab.ranks.measure import METHODS, RANKS, heaviest_first

import redhost

RESULTS = Path(__file__).parents[2] / "docs" / "results" / "ranks"
METRICS = json.loads((RESULTS / "metrics.json").read_text("utf-8"))


def test_every_subject_has_every_rank_in_every_way() -> None:
    for subject in ("newswire", "ranges"):
        routed = METRICS[subject]["routed"]
        assert routed.keys() == METHODS.keys()
        assert all(line.keys() == {str(r) for r in RANKS} for line in routed.values())


def test_the_pages_say_what_was_found() -> None:
    """Little is lost to a package for each rank, much more to a cut; linear heads do as well."""
    for subject in ("newswire", "ranges"):
        found = METRICS[subject]
        assert all(cell["mean"] > -0.015 for cell in found["less apart"].values())
        nested, *cut = (found["routed"][m]["4"] for m in ("nested", "cut", "heaviest"))
        assert all(nested["low"] > other["high"] for other in cut)
    newswire = METRICS["newswire"]
    assert newswire["without"]["mean"] >= newswire["routed"]["nested"]["32"]["mean"]


def test_units_come_by_falling_weight_and_say_the_same() -> None:
    generator = torch.Generator().manual_seed(0)
    U, V = (torch.randn(*shape, generator=generator) for shape in ((6, 4), (4, 6)))
    expert = redhost.plugins.LowRank(U=U, V=V, activation="gelu", space="hidden")
    moved, z = heaviest_first(expert), torch.randn(5, 4, generator=generator)
    torch.testing.assert_close(moved(z), expert(z))
    weights = (moved.U.norm(dim=1) * moved.V.norm(dim=0)).tolist()
    assert weights == sorted(weights, reverse=True) != (U.norm(dim=1) * V.norm(dim=0)).tolist()
