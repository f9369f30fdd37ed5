"""The study of ports: its pairs, its bad encoders, and the page of its figures."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import torch
from red_lab.port.measure import BAD, bad_encoders
from red_lab.port.report import retained
from red_lab.port.subjects import JUDGE, LEARN, PAIRS, teams

ROOT = Path(__file__).resolve().parents[2]


def test_what_is_retained_is_the_share_of_retraining_s_gain() -> None:
    nothing = np.array([1.0, 0, 0, 0] * 50)
    retrained, half = np.ones(200), np.array([1.0, 1, 0.5, 0] * 50)
    found = retained(half, retrained, nothing)
    assert found["share"] == 0.5 and found["low"] < 0.5 < found["high"]
    assert retained(nothing, retrained, nothing)["share"] == 0
    assert retained(retrained, retrained, nothing) == {"share": 1.0, "low": 1.0, "high": 1.0}


def test_test_rows_are_none_that_a_team_learns() -> None:
    for validation in (True, False):
        every = teams("sums", validation=validation)
        learnt = {r.text for team in every for r in team.learn}
        assert all(len(t.learn) == LEARN and len(t.judge) == JUDGE for t in every)
        assert learnt.isdisjoint(r.text for team in every for r in team.judge)


def test_bad_encoders_give_what_they_say_and_the_same_every_time() -> None:
    h = torch.randn((6, 200), generator=torch.Generator().manual_seed(0))
    texts = [f"text {n}" for n in range(6)]
    places = {text: n for n, text in enumerate(texts)}
    made = bad_encoders(lambda some: h[[places[t] for t in some]])
    assert len(made) == 3 * BAD >= 20
    for name, encode in made.items():
        assert torch.equal(encode(texts), encode(texts)), name
        assert not torch.allclose(encode(texts), h), name
    assert torch.linalg.matrix_rank(made["4 of its directions"](texts)) == 4
    dealt = made["the vector of another text, 0"](texts)
    assert {tuple(row) for row in dealt.tolist()} == {tuple(row) for row in h.tolist()}


def test_the_figures_hold_what_the_page_says() -> None:
    folder = ROOT / "docs/results/port"
    metrics = json.loads((folder / "metrics.json").read_text("utf-8"))
    assert metrics["pairs"].keys() == PAIRS.keys() and not metrics["validation"]
    for pair in metrics["pairs"].values():
        assert {"retrained", "one answer", "random weights"} < pair["accuracy"].keys()
        assert pair["most seconds"] <= 60
    bad = metrics["bad"].values()
    assert sum(row["ports"] for row in bad) >= 20
    assert all(row["refused"] == row["ports"] for row in bad)
    # What sentences say of the figures, here and in docs/results/README.md and docs/porting.md.
    shares = {name: pair["retained"]["ported"]["share"] for name, pair in metrics["pairs"].items()}
    assert all((share > 0.9) == ("-next" in name) for name, share in shares.items())
    adapters = metrics["adapters"]["systems"]
    assert adapters["frozen"]["mean"] >= adapters["retrained"]["mean"]
