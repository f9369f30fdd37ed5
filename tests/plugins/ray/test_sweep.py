"""Sweeps: what each router is worth, the same from any number of workers, and nothing twice."""

from __future__ import annotations

from pathlib import Path

import pytest
import redhost_ray.jobs
import torch
from redhost_ray.cache import JobCache
from redhost_ray.workers import open_workers
from redhost_report.evaluation import mixtures, outside

import redhost
from redhost.core.evaluation.evaluate import evaluate
from redhost.core.evaluation.with_router import with_router

ROWS = [
    redhost.Row(text=f"{name} {n}", label=f"{name}{n % 2}", domain=name)
    for name in ("east", "west", "north")
    for n in range(20)
]


@pytest.fixture
def host(redhost_fake_expert, tmp_path: Path) -> redhost.Host:
    for seed, name in enumerate(("east", "west", "north")):
        redhost_fake_expert(name, labels=(f"{name}0", f"{name}1"), seed=seed)
    host = redhost.Host.open(tmp_path / "home", backbone="tiny-random")
    host.recompose()
    return host


def test_each_router_is_worth_what_it_is_worth_here(host) -> None:
    before = host.generations.current()
    kinds, seeds = ["centroid", "mlp", "shortlist"], [0, 3]  # the last one is a plugin's
    found = redhost_ray.jobs.sweep(host.session, routers=kinds, seeds=seeds, rows=ROWS)
    assert [(s.router, s.seed) for s in found] == [(k, s) for k in kinds for s in seeds]
    composed, results = host.composed, {s.router: s.evaluation for s in found if s.seed == 0}
    for kind in ("centroid", "shortlist"):
        mine = with_router(
            composed,
            kind=kind,
            ids=composed.bus.ids,
            encode=host.encoder(composed),
            plugins=host.plugins,
        )
        expected, result = evaluate(mine, ROWS, encode=host.encoder(mine)), results[kind]
        assert result is not None
        assert (result.overall, result.table) == (expected.overall, expected.table)
    assert host.generations.current() == before


def test_workers_change_nothing_and_what_is_done_is_not_done_again(host, tmp_path) -> None:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        one = redhost_ray.jobs.sweep(host.session, routers=["linear"], seeds=[0, 1], rows=ROWS)
        workers = open_workers("local", 2)
        many = redhost.Host.open(host.home, backbone="tiny-random", workers=workers)
        cache = JobCache(tmp_path / "jobs")
        two = redhost_ray.jobs.sweep(
            many.session,
            pool=workers.pool,
            routers=["linear"],
            seeds=[0, 1],
            rows=ROWS,
            cache=cache,
        )
    finally:
        torch.set_num_threads(before)
    assert [s.evaluation for s in one] == [s.evaluation for s in two]
    assert len(list((tmp_path / "jobs").iterdir())) == 2


def test_an_unknown_kind_is_refused_before_anything_is_computed(host) -> None:
    with pytest.raises(redhost.errors.UnknownNameError, match="unknown built-in router 'centriod'"):
        redhost_ray.jobs.sweep(host.session, routers=["centroid", "centriod"], rows=ROWS)


def test_without_rows_there_is_nothing_to_judge_on(host) -> None:
    with pytest.raises(redhost.MissingError, match="ships no evaluation rows"):
        redhost_ray.jobs.sweep(host.session, routers=["centroid"])
    with pytest.raises(redhost.MissingError, match="ships no evaluation rows"):
        outside(host, ["elsewhere"])
    with pytest.raises(redhost.MissingError, match="ships no evaluation rows"):
        mixtures(host)
