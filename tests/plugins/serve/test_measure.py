"""The measurements, short, on servers in this process; no figure is asserted but what must be 0."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import pytest
from redhost_serve import http_cost, load_test_run, report
from redhost_serve.client import Client
from redhost_serve.load_test import distinguishing_texts, golden_answers
from redhost_serve.process import ServerProcess
from redhost_serve.server import running
from redhost_serve.service import Options
from redhost_serve.soak import soak

import redhost

ROOT = Path(__file__).parents[3]
TOKEN = "a token that nobody guesses"


def test_the_page_is_written_from_its_metrics() -> None:
    folder = ROOT / "docs" / "results" / "serve"
    metrics = json.loads((folder / "metrics.json").read_text("utf-8"))
    assert "\n".join(report.page(metrics)) == (folder / "README.md").read_text("utf-8")


def test_a_command_writes_its_part_and_leaves_the_other(tmp_path) -> None:
    metrics = json.loads((ROOT / "docs/results/serve/metrics.json").read_text("utf-8"))
    for part in ("storm", "soak", "bench"):
        report.note(tmp_path, **{part: metrics[part]})
    assert (tmp_path / "README.md").read_text() == "\n".join(
        report.page(metrics | _machine(tmp_path))
    )


def _machine(folder: Path) -> dict[str, object]:
    return {"machine": json.loads((folder / "metrics.json").read_text())["machine"]}


def test_the_load_test_counts_what_it_did(home, open_live, monkeypatch) -> None:
    monkeypatch.setattr(load_test_run, "SETTLE", 0.2)
    texts = distinguishing_texts(
        redhost.Host.open(home, plugins=redhost.plugins.Plugins(())), (1, 2), 2
    )
    with running(open_live(home), token=TOKEN) as (url, _):
        golden = golden_answers(url, (1, 2), texts, token=TOKEN)
        found = load_test_run._under_load(
            ServerProcess(url=url, pid=os.getpid()),
            home,
            golden,
            token=TOKEN,
            seconds=1.5,
            swaps=9,
            count=2,
        )
    assert (found["swaps"]["done"], found["swaps"]["refused"], found["alive"]) == (6, 3, 1)
    assert {found["answers"][x] for x in ("failed", "mixed", "stale")} == {0}
    assert found["memory"]["before"] > 0


def test_the_bench_compares_like_with_like(home, open_live, monkeypatch) -> None:
    monkeypatch.setattr(http_cost, "QUERIES", 5)
    host = redhost.Host.open(home, plugins=redhost.plugins.Plugins(()))
    texts = [row.text for row in host.composed.evaluation[:4]]
    with (
        running(open_live(home)) as (batched, _),
        running(open_live(home), options=Options(batch=1)) as (single, service),
    ):
        query = http_cost._latency(host, batched, texts)
        urls = {"batched": batched, "one_at_a_time": single}
        rates = http_cost._rates(host, urls, texts, count=4, seconds=0.3)
        counts = service.metrics.text().decode()
    assert query["ratio"] > 0 and rates["ratio"] > 0
    at_once = {line for line in counts.splitlines() if 'batch_texts_bucket{le="1.0"}' in line}
    assert at_once.pop().split()[-1] == _value(counts, "redhost_batch_texts_count")


def _value(text: str, name: str) -> str:
    return next(x.split()[-1] for x in text.splitlines() if x.startswith(f"{name} "))


def test_without_the_server_the_lab_says_what_to_install(monkeypatch) -> None:
    from red_lab.bench.command import server_bench

    assert server_bench().name == "bench"
    monkeypatch.setitem(sys.modules, "redhost_serve.cli", None)
    with pytest.raises(redhost.MissingError, match="pip install redhost-serve") as e:
        server_bench()
    assert e.value.exit_code == 3


def test_a_soak_changes_experts_between_answers(home, open_live) -> None:
    host = redhost.Host.open(home, plugins=redhost.plugins.Plugins(()))
    texts, ids = [row.text for row in host.composed.evaluation], host.composed.bus.ids
    seen, columns = list[int](), len(host.composed.bus.columns)
    with running(open_live(home), token=TOKEN) as (url, _):
        found = soak(
            ServerProcess(url=url, pid=os.getpid()),
            texts,
            ids,
            token=TOKEN,
            answers=1280,
            changes=4,
            progress=lambda done, of: seen.append(of - done),
        )
        with Client(url) as client:
            weights = client.infer(texts[:1]).body["outputs"]
    assert (seen[0], seen[-1]) == (1216, 0)
    points = found["points"]
    assert [p["answers"] for p in points[:2]] == [0, 64] and points[-1]["answers"] == 1280
    assert [points[0]["changes"], points[-1]["changes"]] == [0, 4]
    assert next(o["shape"] for o in weights if o["name"] == "weights") == [1, columns]  # all back
    assert found["growth"] == points[-1]["memory"] / points[1]["memory"] - 1


def test_a_soak_that_is_refused_says_so(home, open_live) -> None:
    with (
        running(open_live(home), token=TOKEN) as (url, _),
        pytest.raises(redhost.errors.PluginError) as e,
    ):
        soak(
            ServerProcess(url=url, pid=os.getpid()),
            ["What is 1 plus 1?"],
            ["red.nobody"],
            token=TOKEN,
            answers=1280,
            changes=2,
            progress=lambda *_: None,
        )
    assert e.value.found == "404"
