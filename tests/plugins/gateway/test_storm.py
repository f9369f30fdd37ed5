"""Requests through a gateway whose upstreams fail: no answer of another request, none hung."""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from pathlib import Path

import msgspec
import pytest
from click.testing import CliRunner
from redhost_gateway.cli import gateway
from redhost_gateway.cli import storm as gateway_storm
from redhost_gateway.faulty_upstream import TOKENS, FaultyUpstream
from redhost_gateway.report import note, page
from redhost_gateway.settings import Limits, UpstreamSettings, upstreams_of
from redhost_gateway.storm import BEHAVIOURS, Outcomes, is_own, storm
from redhost_gateway.upstream import Upstream
from redhost_serve.cli import storm as serve_storm

import redhost

ROOT = Path(__file__).parents[3]


def test_every_request_gets_its_own_answer_or_one_clear_error(
    composed_home, listening, gateway_of, until
) -> None:
    with listening(FaultyUpstream()) as one, listening(FaultyUpstream()) as two:
        url, state = gateway_of(composed_home, one, two, limits={"read": 4.0, "retries": 3})
        found = asyncio.run(storm(url, requests=1000, clients=400))
        assert (found.of_another, found.hung, found.unexpected) == (0, 0, 0)
        ended = sum(found.counts.values(), Counter[str]())
        assert ended.total() == 1000 and ended["200"] > 900
        assert {"429", "500", "502", "broken"} <= ended.keys()
        assert set(found.counts["plain"]) == {"200"} == set(found.counts["drop-first"])
        assert state.in_progress == 0 == state.serving.users
        until(lambda: not any(u.in_flight for u in state.upstreams))  # but for a check


def test_an_upstream_that_restarts(composed_home, listening, gateway_of) -> None:
    with listening(FaultyUpstream()) as one:
        url, _ = gateway_of(composed_home, one)
        port = int(one.rpartition(":")[2])
        before = asyncio.run(storm(url, requests=50, clients=10))
    down = asyncio.run(storm(url, requests=50, clients=10))
    assert set(down.counts["plain"]) == {"502"} and down.hung == 0
    with listening(FaultyUpstream(), port):
        after = asyncio.run(storm(url, requests=50, clients=10))
    assert set(before.counts["plain"]) == {"200"} == set(after.counts["plain"])


def test_control_what_would_be_noticed() -> None:
    event = b'data: {"id":"id-1"}\n\n'
    assert is_own(TOKENS * event + b"data: [DONE]\n\n", "id-1", stream=True)
    assert not is_own(TOKENS * event, "id-2", stream=True)
    assert not is_own((TOKENS - 1) * event, "id-1", stream=True)  # one is missing
    mixed = (TOKENS - 1) * event + event.replace(b"-1", b"-2")
    assert not is_own(mixed, "id-1", stream=True)
    assert is_own(b'{"id":"id-1"}', "id-1", stream=False)
    assert not is_own(b'{"error":{"message":"id-1"}}', "id-11", stream=False)
    found = Outcomes()
    for outcome in ("other", "hung", "200", "418"):
        found.add("", outcome)
    assert (found.of_another, found.hung, found.unexpected) == (1, 1, 1)
    assert sum(share for share, _ in BEHAVIOURS.values()) == pytest.approx(1)


def test_the_page_is_what_its_metrics_say(tmp_path) -> None:
    folder = ROOT / "docs/results/gateway"
    metrics = json.loads((folder / "metrics.json").read_text("utf-8"))
    assert "\n".join(page(metrics)) == (folder / "README.md").read_text("utf-8")
    assert metrics["storm"]["of_another"] == metrics["storm"]["hung"] == 0
    assert note(tmp_path, **{k: metrics[k] for k in ("storm", "overhead")}).exists()


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ([], "--upstream URL"),
        (["--upstream", "ftp://x"], "ftp://x"),
        (["--upstream", "localhost:8801"], "Write http://localhost:8801."),
        (["--upstream", "http://x", "--model", "a"], "NAME=VALUE"),
        (["--upstream", "http://x", "--limit", "reads=1"], "requests=NUMBER"),
        (["--upstream", "http://x?key=1"], "without ? and #"),
        (["--upstream", "http://x:port"], "http://HOST:PORT"),
        (["--upstream", "http://"], "http://HOST:PORT"),
        (["--upstream", "me:s3cret@x:1"], "Write http://x:1."),
        (["--config", "no.toml"], "no.toml"),
    ],
)
def test_what_the_command_refuses(options, named, tmp_path) -> None:
    failed = CliRunner().invoke(gateway, ["--home", str(tmp_path), "--port", "0", *options])
    assert isinstance(failed.exception, redhost.UsageError) and named in str(failed.exception)
    assert failed.exception.exit_code == 2
    assert "s3cret" not in str(failed.exception)


def test_outside_a_clone_it_writes_nowhere_by_itself(tmp_path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    for command in (gateway_storm, serve_storm):
        ended = CliRunner().invoke(command, [])
        assert ended.exit_code == 2 and "--out" in ended.output
    assert not list(tmp_path.iterdir())


def test_a_file_with_a_key_that_nobody_knows_is_exit_2(tmp_path) -> None:
    (file := tmp_path / "gateway.toml").write_text('[[upstream]]\nadress = "http://a"\n')
    with pytest.raises(redhost.UsageError, match="adress"):
        upstreams_of([], models=[], loads="none", config=file)


def test_upstreams_from_a_file(tmp_path) -> None:
    file = tmp_path / "gateway.toml"
    file.write_text(
        '[[upstream]]\nurl = "http://a:1/v1/"\nloads = "vllm"\nkey-file = "key"\n'
        '[upstream.models]\nbackbone = "llama"\n'
    )
    [given, read] = upstreams_of(["http://b"], models=["x=y"], loads="none", config=file)
    assert (given.address, given.models, given.loads) == ("http://b", {"x": "y"}, "none")
    assert (read.address, read.models, read.loads) == ("http://a:1", {"backbone": "llama"}, "vllm")
    assert read.key_file == "key"
    with pytest.raises(redhost.errors.SettingsError, match="cannot read key"):
        Upstream(read, limits=Limits())
    (tmp_path / "key").write_text("s3cret\n")
    keyed = msgspec.structs.replace(read, key_file=str(tmp_path / "key"))
    assert Upstream(keyed, limits=Limits()).own_headers == {"authorization": "Bearer s3cret"}
    for unfit in ("", "s3cret\nother", "kéy"):  # no header could hold it
        (tmp_path / "key").write_text(unfit)
        with pytest.raises(redhost.errors.SettingsError, match="visible ASCII") as refused:
            Upstream(keyed, limits=Limits())
        assert "s3cret" not in str(refused.value)


def test_a_model_has_the_names_that_its_server_lists() -> None:
    upstream = Upstream(UpstreamSettings(url="http://a"), limits=Limits())
    upstream.listed = (
        {"id": "base", "aliases": ["base", "basis"]},  # as llama.cpp writes them
        {"id": "code", "aliases": None},
        {"id": "tales", "aliases": 5},
    )
    assert upstream.names == {"base", "basis", "code", "tales"}
