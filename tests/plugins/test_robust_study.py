"""The study of uneven traffic: who is rare, what a gate sees, one page."""

from __future__ import annotations

import dataclasses
import json
import math
from pathlib import Path

import pytest
import torch
from red_lab.intervals import over_seeds
from red_lab.matched.apart import Alone
from red_lab.matched.data import DataPart, Problem
from red_lab.matched.systems import Recipe
from red_lab.robust import STUDY
from red_lab.robust import gates as growing
from red_lab.robust.finite import closed_forms, general, random_game, samples
from red_lab.robust.gates import SETTINGS, centroid_gate, linear_gate, train_gate
from red_lab.robust.traffic import (
    RARER,
    UnevenTraffic,
    aggregate,
    domain_losses,
    lay_out,
    router_rows,
    train_monolith,
    untrained,
)
from redhost_robust import mixture_losses

from redhost.core.bus.bus import LayerNorm

DOMAINS = ("a", "b", "c", "d", "e")
WIDTH, EACH = 12, 3
SHORT = Recipe(epochs=2, batch=64, learning_rate=1e-2, weight_decay=0.01, dropout=0.1)


@pytest.fixture(autouse=True)
def _one_thread():
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def made_up(kind: str, *, seed: int = 0) -> Problem:
    """Gaussian classes in five domains, through a classifier or with labels of the experts' own."""
    generator = torch.Generator().manual_seed(seed)
    classes = EACH * len(DOMAINS)
    means = 1.5 * torch.randn(classes, WIDTH, generator=generator)
    norm = LayerNorm(width=WIDTH, eps=1e-5)

    def part(rows: int) -> DataPart:
        target = torch.arange(rows) % classes
        h = means[target] + torch.randn(rows, WIDTH, generator=generator)
        return DataPart(h=h, z=norm(h), target=target, owner=target // EACH)

    test = part(300)
    return Problem(
        name=kind,
        domains=DOMAINS,
        labels_of=tuple(tuple(f"{d}{n}" for n in range(EACH)) for d in DOMAINS),
        train=part(3000),
        valid=part(300),
        test=test,
        clusters=tuple(str(n) for n in range(len(test))),
        norm=norm,
        classifier=torch.randn(classes, WIDTH, generator=generator) if kind == "hidden" else None,
    )


@pytest.fixture(scope="module", params=["hidden", "labels"])
def traffic(request) -> UnevenTraffic:
    torch.set_num_threads(1)
    return lay_out(made_up(request.param), recipe=SHORT, seed=1, tick=lambda _: None)


def test_the_rare_domain_is_a_hundred_times_rarer(traffic: UnevenTraffic) -> None:
    assert traffic.rare == 1
    f = traffic.frequencies
    assert f.sum() == pytest.approx(1) and f[0] / f[1] == pytest.approx(RARER)
    sizes = {len(p) for p in traffic.even}
    assert len(sizes) == 1
    thinned = [len(p) for p in traffic.seen(traffic.even, thinned=True)]
    assert thinned[1] == max(2, round(sizes.pop() / RARER)) and len(set(thinned)) == 2
    whole = [len(p) for p in aggregate(traffic, thinned=False)]
    few = [len(p) for p in aggregate(traffic, thinned=True)]
    assert len(set(whole)) == 1 and few[1] == max(2, round(whole[1] / RARER))


def test_no_row_of_the_traffic_was_trained_on_by_an_expert(traffic: UnevenTraffic) -> None:
    own = {row.numpy().tobytes() for row in traffic.problem.train.h}
    assert not own & {row.numpy().tobytes() for p in traffic.even for row in p.h}


def test_a_gate_sees_how_well_each_expert_alone_answers(traffic: UnevenTraffic) -> None:
    problem, part = traffic.problem, traffic.problem.test.of(2)
    z, log_p = router_rows(problem, traffic.experts, part)
    assert z is part.z and log_p.shape == (len(part), 5)
    own = Alone(
        traffic.experts[2],
        classifier=problem.classifier,
        first=0 if problem.classifier is not None else 2 * EACH,
    )
    with torch.no_grad():
        loss = float(own.loss(part.h, part.z, part.target))
    assert -float(log_p[:, 2].mean()) == pytest.approx(loss, abs=1e-5)
    if problem.classifier is None:
        others = [k for k in range(5) if k != 2]
        assert float(log_p[:, others].max()) == pytest.approx(math.log(1e-12), abs=1e-4)


def test_a_robust_gate_has_a_smaller_worst_regret_than_an_average_one() -> None:
    """Of experts with labels of their own: a row sent elsewhere has no chance."""
    traffic = lay_out(made_up("labels"), recipe=SHORT, seed=1, tick=lambda _: None)
    rows = traffic.router_rows(traffic.even)
    tests = traffic.router_rows(traffic.by_domain(traffic.problem.test))
    own = torch.stack([-log_p[:, k].mean() for k, (_, log_p) in enumerate(tests)])
    even = torch.full((5,), 0.2)
    worst = []
    for start, moves in ((traffic.frequencies, False), (even, True)):
        gate = linear_gate(traffic)
        settings = dataclasses.replace(SETTINGS, steps=500)
        train_gate(gate, traffic, rows, start=start, moves=moves, seed=0, settings=settings)
        with torch.no_grad():
            worst.append(float((mixture_losses(gate, tests) - own).max()))
    assert worst[1] < 0.6 * worst[0]


def test_a_centroid_gate_is_begun_at_the_domains_means(traffic: UnevenTraffic) -> None:
    rows = traffic.router_rows(traffic.even)
    gate = centroid_gate(traffic, rows)
    for k, (z, _) in enumerate(rows):
        torch.testing.assert_close(gate.get_parameter("means")[k], z.mean(0))
    with torch.no_grad():
        right = [float((gate(z).argmax(-1) == k).double().mean()) for k, (z, _) in enumerate(rows)]
    assert min(right) > 0.4


def test_a_monolith_has_as_many_parameters_as_all_experts(traffic: UnevenTraffic) -> None:
    model = untrained(traffic.problem, rank=5 * traffic.problem.rank, seed=0)
    experts = sum(p.numel() for e in traffic.experts for p in e.parameters())
    assert sum(p.numel() for p in model.parameters()) == experts


def test_a_monolith_learns(traffic: UnevenTraffic) -> None:
    parts = aggregate(traffic, thinned=False)
    even = torch.full((5,), 0.2)
    fresh = untrained(traffic.problem, rank=5 * traffic.problem.rank, seed=0)
    model = train_monolith(traffic, parts, recipe=SHORT, start=even, moves=True, seed=0)
    tests = traffic.by_domain(traffic.problem.test)
    with torch.no_grad():
        assert domain_losses(model, tests).max() < domain_losses(fresh, tests).max()


def test_intervals_over_seeds_are_students() -> None:
    interval = over_seeds([1.0, 2.0, 3.0, 4.0, 5.0])
    half = 2.776 * math.sqrt(2.5) / math.sqrt(5)
    assert interval["mean"] == 3 and interval["high"] - 3 == pytest.approx(half)
    assert over_seeds([2.0]) == {"mean": 2.0, "low": 2.0, "high": 2.0}


def test_finite_games_have_their_known_values() -> None:
    assert max(f["error"] for f in closed_forms()) < 1e-7
    assert general(games=2)["most"] < 1e-6
    assert samples(games=1)["most"] < 0.01
    assert random_game(0, domains=3, symbols=7).experts.shape == (3, 7)


def test_the_same_command_twice_gives_one_page_and_goes_on_from_what_is_there(
    tmp_path, monkeypatch
) -> None:
    monkeypatch.setattr("red_lab.matched.data.load", lambda _, **__: made_up("labels"))
    monkeypatch.setattr("red_lab.robust.recipe", lambda _: SHORT)
    short = dataclasses.replace(SETTINGS, steps=20)
    for name in ("SETTINGS", "AGAIN"):
        monkeypatch.setattr(f"red_lab.robust.measure.{name}", short)
    monkeypatch.setattr(growing, "ROWS", (10,))
    monkeypatch.setattr(growing, "UNITS", (0,))
    written = []
    for name in ("one", "two"):
        path = STUDY.run(parts=["text"], seeds=1, out=tmp_path / name, work=tmp_path / "work")
        metrics = json.loads(path.read_text("utf-8"))
        assert (path.parent / "README.md").read_text("utf-8") == STUDY.page(metrics)
        written.append(metrics)
    assert written[0] == written[1]
    scenes = written[0]["tasks"]["text"]["scenes"]
    assert scenes.keys() == {"weights", "rows"}
    robust = scenes["weights"]["systems"]["robust"]
    assert robust["worst_regret"]["low"] <= robust["worst_regret"]["mean"]
    assert (tmp_path / "one" / "regret.svg").read_bytes() == (
        tmp_path / "two" / "regret.svg"
    ).read_bytes()


def test_the_committed_studies_have_five_seeds_or_more() -> None:
    folder = Path(__file__).parents[2] / "docs" / "results" / "robust"
    metrics = json.loads((folder / "metrics.json").read_text("utf-8"))
    for task in ("arithmetic", "text"):
        assert metrics["tasks"][task]["seeds"] >= 5
