"""`redhost serve` as a process: it follows its environment, and ends on a signal."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from redhost_author.testing import backbone_project, expert_project
from redhost_serve.client import Client
from redhost_serve.listener import bind
from redhost_serve.service import Service
from redhost_serve.watch import Watch, packages_changed
from warm_start import warm_command

import redhost
from redhost.testing import Environment

TEXTS = ["one 1", "two 2"]


@pytest.fixture(scope="module")
def projects(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """A tiny random backbone and two experts on it, as projects."""
    folder = tmp_path_factory.mktemp("projects")
    backbone = backbone_project(folder / "red-backbone-tiny-random")
    experts = {
        name: expert_project(folder / f"red-expert-{name}", name, backbone)
        for name in ("one", "two")
    }
    return {"backbone": backbone, **experts}


@pytest.fixture
def place(tmp_path: Path, projects: dict[str, Path]) -> Environment:
    """An environment that only other processes see, with the backbone and the first expert."""
    folder = tmp_path / "environment"
    folder.mkdir()
    place = Environment(folder)
    place.install(projects["backbone"])
    place.install(projects["one"])
    return place


@contextmanager
def serve(place: Environment, home: Path, *options: str) -> Iterator[tuple[Client, Any]]:
    command = warm_command("-m", "redhost", "serve", "--home", str(home), "--port", "0")
    environment = {**os.environ, "PYTHONPATH": str(place.folder), "OMP_NUM_THREADS": "1"}
    chosen = ["--backbone", "tiny-random", *options]
    with subprocess.Popen(
        [*command, *chosen],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=environment,
    ) as child:
        try:
            url = child.stdout.readline().strip().partition(" on ")[2]
            assert url, child.stderr.read()
            with Client(url) as client:
                yield client, child
        finally:
            if child.poll() is None:
                child.send_signal(signal.SIGINT)


def model(client: Client) -> dict[str, Any]:
    client.connection.close()  # an idle one may be gone by now; the next is opened by itself
    found, *_ = client.get("/v1/models").body["data"]
    return found


def until(client: Client, true: Any) -> dict[str, Any]:
    """Wait until what the server says of its model is so."""
    found: dict[str, Any] = {}
    for _ in range(600):
        found = model(client)
        if true(found):
            return found
        time.sleep(0.2)
    raise AssertionError(found)


def settled(generation: int | None, state: str) -> Any:
    return lambda m: (
        m["generation"] == generation and m["candidate"] and m["candidate"]["state"] == state
    )


def test_what_is_installed_in_another_shell_is_served_without_a_restart(
    place, tmp_path, projects
) -> None:
    with serve(place, tmp_path / "home", "--watch") as (client, child):
        found = until(client, settled(1, "published"))  # nothing was composed before
        assert client.infer(TEXTS).generation == 1

        place.install(projects["two"])
        found = until(client, settled(2, "published"))
        assert {x["id"] for x in found["experts"] if x["serving"]} == {"one", "two"}
        assert client.infer(TEXTS).generation == 2

        place.uninstall("red-expert-one")
        found = until(client, settled(3, "published"))
        assert [x["id"] for x in found["experts"] if x["serving"]] == ["two"]
        assert child.poll() is None


def test_a_candidate_that_fails_leaves_the_old_one_and_says_why(place, tmp_path, projects) -> None:
    with serve(place, tmp_path / "home", "--watch") as (client, _):
        until(client, settled(1, "published"))
        before = client.infer(TEXTS).body
        broken = tmp_path / "broken" / "red-expert-two"
        shutil.copytree(projects["two"], broken)
        weights = next(broken.glob("src/*/expert.safetensors"))
        weights.write_bytes(weights.read_bytes()[:-1])
        place.install(broken)
        found = until(client, lambda m: m["candidate"]["state"] == "unchanged")
        assert "expert.safetensors" in found["candidate"]["reason"]
        assert {x["id"]: x["code"] for x in found["experts"]}["two"]
        assert client.infer(TEXTS).body == before

        place.uninstall("red-expert-two")
        weights = next(place.package("red-expert-one").glob("expert.safetensors"))
        weights.write_bytes(weights.read_bytes()[:-1])  # what was composed now fails its contract
        found = until(client, lambda m: m["candidate"]["state"] == "refused")
        assert "'one'" in found["candidate"]["reason"]
        assert client.infer(TEXTS).body == before


def test_it_follows_what_another_shell_makes_current(place, tmp_path) -> None:
    home = tmp_path / "home"
    with serve(place, home, "--watch") as (client, _):
        until(client, settled(1, "published"))
        command = warm_command("-m", "redhost", "recompose", "--home", str(home))
        environment = {**os.environ, "PYTHONPATH": str(place.folder)}
        options = ["--backbone", "tiny-random", "--router", "centroid", "--accept"]
        subprocess.run([*command, *options], env=environment, check=True, capture_output=True)
        until(client, lambda m: m["generation"] == 2)
        redhost.Host.open(home, backbone="tiny-random").rollback(1)
        until(client, lambda m: m["generation"] == 1)


def test_a_home_that_cannot_be_read_at_first_is_looked_at_again(
    open_live, tmp_path, caplog
) -> None:
    service = Service(open_live(tmp_path / "home"))
    (tmp_path / "home").mkdir()
    (tmp_path / "home" / "current").write_text("no number")
    watch = Watch(service, every=0.05)
    watch.start()
    for _ in range(600):
        if "cannot look at the environment: redhost status ended with 3" in caplog.text:
            break
        time.sleep(0.05)
    assert watch.is_alive() and "cannot read" in caplog.text
    watch.stop()
    service.close()
    assert not watch.is_alive()


def test_a_watch_that_was_stopped_begins_nothing(open_live, tmp_path) -> None:
    service = Service(open_live(tmp_path / "home"))
    watch = Watch(service)
    watch.stop()
    with pytest.raises(redhost.MissingError, match="found stopped"):
        watch._json("status")
    assert watch._child is None
    service.close()


def test_packages_that_come_and_go_are_seen_and_nothing_else(place, tmp_path, projects) -> None:
    path = [str(tmp_path), "", str(tmp_path / "gone"), str(place.folder)]
    before = packages_changed(path)
    assert [name for name, _ in before] == [str(place.folder)]
    (tmp_path / "a file").touch()
    assert packages_changed(path) == before
    place.install(projects["two"])
    assert packages_changed(path) != before


def test_after_sigterm_it_is_not_ready_and_still_answers(place, tmp_path) -> None:
    with serve(place, tmp_path / "home", "--watch", "--limit", "grace=600") as (client, child):
        until(client, settled(1, "published"))
        child.send_signal(signal.SIGTERM)
        until(client, lambda m: not m["ready"])
        assert client.get("/v2/health/ready").status == 503
        assert client.get("/v2/health/live").status == 200
        assert client.infer(TEXTS).status == 200
        assert child.poll() is None


def test_when_the_grace_is_over_it_is_gone_with_exit_code_0(place, tmp_path) -> None:
    with serve(place, tmp_path / "home", "--watch", "--limit", "grace=0.1") as (_, child):
        child.send_signal(signal.SIGTERM)
        assert child.wait(60) == 0


OPTIONS = {"no question": (), "a question": ("--question", "mood")}


@pytest.fixture(scope="module")
def refused(here: Any, tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[int, str]]:
    """What commands end with that serve nothing, one after the other in one process: code, error.

    The port of the last one is taken.
    """
    home = tmp_path_factory.mktemp("refused") / "home"
    commands = {
        name: ("serve", "--home", str(home), *options, "--port", "0")
        for name, options in OPTIONS.items()
    }
    commands["watches and follows"] = ("serve", "--watch", "--follow", str(home))
    with bind("127.0.0.1", 0) as taken:
        taken.listen()
        port = str(taken.getsockname()[1])
        commands["a taken port"] = ("serve", "--home", str(home), "--port", port)
        done = here.session(*commands.values(), home=home)
    return {name: (code, err) for name, (code, _, err) in zip(commands, done, strict=True)}


@pytest.mark.parametrize("name", OPTIONS)
def test_with_nothing_composed_and_nobody_to_compose_it_is_exit_3(refused, name) -> None:
    code, err = refused[name]
    assert code == 3
    again = " ".join(("redhost recompose", *OPTIONS[name]))
    assert re.search(rf"Run '{again} --home \S+', or serve with --watch\.$", err.strip())


def test_a_server_watches_or_follows(refused) -> None:
    code, err = refused["watches and follows"]
    assert code == 2 and "found both" in err


def test_a_port_that_is_taken_is_exit_3_and_known_before_anything_is_loaded(refused) -> None:
    """Nothing is composed in that home, which loading would say."""
    code, err = refused["a taken port"]
    last = err.strip().splitlines()[-1]
    assert code == 3 and "cannot listen on" in last and "--port" in last
