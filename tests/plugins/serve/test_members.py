"""Attach, detach and replace over HTTP: installed experts only, for those who know the token."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import pytest
from redhost_serve.client import Client, Reply
from redhost_serve.server import running

import redhost
from redhost.registry.queries.settings import set_disabled

TOKEN = "a token that nobody guesses"
TEXT = "What is 37 plus 12?"
ROUTES = ("/admin/attach", "/admin/detach", "/admin/replace")


def columns(reply: Reply) -> set[str]:
    tensor = next(o for o in reply.body["outputs"] if o["name"] == "weights")
    return {c for c in tensor["parameters"]["columns"] if c != "backbone"}


def test_experts_leave_join_and_are_exchanged_while_it_serves(home, open_live) -> None:
    ids = {f"range{n}" for n in range(1, 6)}
    live = open_live(home)
    with running(live, token=TOKEN) as (url, _), Client(url, token=TOKEN) as client:
        payload = {"id": "range5", "expected_generation": 3}
        assert client.post("/admin/detach", payload).body == {"generation": 4, "previous": 3}
        assert columns(client.infer([TEXT])) == ids - {"range5"}
        assert client.post("/admin/detach", payload).status == 412
        reply = client.post("/admin/replace", {"id": "range4", "source": "range5"})
        assert (reply.status, columns(client.infer([TEXT]))) == (200, ids - {"range4"})
        reply = client.post("/admin/attach", {"source": "range4", "expected_generation": 5})
        assert reply.body == {"generation": 6, "previous": 5}
        answer = client.infer([TEXT])
        assert (answer.generation, columns(answer)) == (6, ids)
        fresh = redhost.Host.open(home, plugins=redhost.plugins.Plugins(())).predict([TEXT])
        assert answer.output("weights") == list(fresh[0].weights.values())
        assert answer.output("probability") == [fresh[0].probability]


REFUSED = {
    "composed already": ("/admin/attach", {"source": "range1"}, 422),
    "unknown": ("/admin/attach", {"source": "rnage1"}, 404),
    "not composed": ("/admin/detach", {"id": "rnage1"}, 404),
    "not composed, so not replaced": ("/admin/replace", {"id": "x", "source": "range1"}, 404),
    "stale": ("/admin/detach", {"id": "range1", "expected_generation": 1}, 412),
    "no source": ("/admin/attach", {}, 400),
    "no id": ("/admin/replace", {"source": "range1"}, 400),
    "a path": ("/admin/attach", {"source": "../range1"}, 400),
    "an absolute path": ("/admin/replace", {"id": "range1", "source": "/etc/passwd"}, 400),
    "not a name": ("/admin/detach", {"id": "range1\n"}, 400),
}


@pytest.mark.parametrize("why", REFUSED)
def test_what_is_refused_leaves_the_old_generation_serving(home, open_live, why) -> None:
    path, payload, status = REFUSED[why]
    with running(open_live(home), token=TOKEN) as (url, _), Client(url, token=TOKEN) as client:
        reply = client.post(path, payload)
        assert reply.status == status and "\n" not in reply.body["error"]
        assert client.infer([TEXT]).generation == 3
    assert redhost.Host.open(home).generations.numbers() == (1, 2, 3)


def test_harm_and_disabled_experts_are_422_with_the_reason(home, open_live) -> None:
    live = open_live(home)
    with running(live, token=TOKEN) as (url, _), Client(url, token=TOKEN) as client:
        assert client.post("/admin/detach", {"id": "range5"}).status == 200
        set_disabled(home, "range5")
        reply = client.post("/admin/attach", {"source": "range5"})
        assert (reply.status, "disabled" in reply.body["error"]) == (422, True)
        set_disabled(home, "range5", to=False)
        stored = home / "store" / live.host.generations.load(4).members()["range1"]
        (stored / "expert.safetensors").write_bytes(b"broken")
        reply = client.post("/admin/attach", {"source": "range5"})
        assert reply.status == 422 and "generation 4 cannot be read" in reply.body["error"]
        assert client.infer([TEXT]).generation == 4


def test_a_folder_of_an_experts_name_is_not_what_is_attached(
    home, open_live, tmp_path, monkeypatch
) -> None:
    (tmp_path / "range5").mkdir()  # a package of somebody's who can write here
    monkeypatch.chdir(tmp_path)
    live = open_live(home)
    with running(live, token=TOKEN) as (url, _), Client(url, token=TOKEN) as client:
        assert client.post("/admin/detach", {"id": "range5"}).status == 200
        assert client.post("/admin/attach", {"source": "range5"}).status == 200
        assert client.post("/admin/detach", {"id": "range5"}).status == 200
        # Control: as the text that it was, it is a path.
        monkeypatch.setattr(redhost.plugins, "Installed", str)
        assert client.post("/admin/attach", {"source": "range5"}).status != 200


def test_of_many_changes_at_once_one_is_made_and_the_others_are_409(home, open_live) -> None:
    def ask(url: str) -> int:
        with Client(url, token=TOKEN) as client:
            payload = {"id": "range5", "expected_generation": 3}
            return client.post("/admin/detach", payload).status

    with running(open_live(home), token=TOKEN) as (url, service), ThreadPoolExecutor(8) as pool:
        statuses = list(pool.map(ask, [url] * 8))
        assert statuses.count(200) == 1 and set(statuses) <= {200, 409, 412}
        assert service.live.generation == 4


@pytest.mark.parametrize("path", ROUTES)
def test_without_a_token_nobody_changes_who_is_composed(shared, home, open_live, path) -> None:
    payload = {"id": "range5", "source": "range5"}
    with Client(shared, token=TOKEN) as client:
        assert client.post(path, payload).status == 404
    with running(open_live(home), token=TOKEN) as (url, service):
        for wrong in (None, "wrong"):
            with Client(url, token=wrong) as client:
                assert client.post(path, payload).status == 401
        assert service.live.generation == 3
