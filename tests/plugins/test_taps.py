"""`redhost lab taps`: rows find their own expert, places differ."""

from __future__ import annotations

import json
from pathlib import Path

from red_lab.taps_measure import NAMES, PLACES, TWIN, own_rows

import redhost

RESULTS = Path(__file__).parents[2] / "docs" / "results" / "taps"


def test_every_place_is_measured_in_order() -> None:
    metrics = json.loads((RESULTS / "metrics.json").read_text("utf-8"))
    assert list(metrics["places"]) == [p.name for p in PLACES]


def test_places_have_names_of_their_own_and_the_twin_is_first() -> None:
    assert len({p.name for p in PLACES}) == len(PLACES) and PLACES[0] == TWIN
    assert all(p.writes == "final" or int(p.reads) <= int(p.writes) for p in PLACES)


def test_every_row_is_answered_by_its_own_expert() -> None:
    rows = [redhost.Row(text=str(n), label="1", domain=NAMES[n % 2]) for n in range(4)]
    hits = {NAMES[0]: [1.0, 0.0], NAMES[1]: [0.5, 0.25]}
    assert own_rows(rows, hits).tolist() == [1.0, 0.5, 0.0, 0.25]
