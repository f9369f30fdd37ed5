"""Changing what is served: swap, roll back, unload; who may, and what is refused."""

from __future__ import annotations

import pytest
from redhost_serve.client import Client
from redhost_serve.server import running

import redhost

TOKEN = "a token that nobody guesses"
TEXT = "What is 37 plus 12?"


def test_swap_and_rollback(home, open_live) -> None:
    with running(open_live(home), token=TOKEN) as (url, _), Client(url, token=TOKEN) as client:
        assert client.swap(1, expected=3).body == {"generation": 1, "previous": 3}
        assert client.infer([TEXT]).generation == 1
        assert client.swap(3, expected=3).status == 412
        assert client.swap(2).body["generation"] == 2
        assert client.post("/admin/rollback", {"expected_generation": 2}).body["generation"] == 1
        assert client.post("/admin/rollback", {}).status == 422
        assert client.swap(77).status == 404
        assert client.post("/admin/swap", b"{").status == 400
        assert client.post("/admin/swap", {"generation": -1}).status == 400
        text = client.get("/metrics").body.decode()
    assert 'redhost_swaps_total{outcome="done"} 3.0' in text


def test_a_broken_generation_is_422_with_the_reason_and_the_old_one_answers(
    home, open_live
) -> None:
    (home / "generations/1/router.safetensors").write_bytes(b"broken")
    with running(open_live(home), token=TOKEN) as (url, _), Client(url, token=TOKEN) as client:
        reply = client.swap(1)
        assert reply.status == 422 and "generation 1 is damaged" in reply.body["error"]
        assert client.infer([TEXT]).generation == 3


def test_a_concurrent_swap_is_409(home, open_live) -> None:
    live = open_live(home)
    with running(live, token=TOKEN) as (url, _), Client(url, token=TOKEN) as client:
        assert live._turn.acquire(timeout=5)  # as a swap that is under way
        assert client.swap(1).status == 409
        live._turn.release()
        assert client.swap(1).status == 200


def test_unload_and_load_as_triton_does(home, open_live) -> None:
    path = "/v2/repository/models/redhost"
    with running(open_live(home), token=TOKEN) as (url, _), Client(url, token=TOKEN) as client:
        assert client.post(f"{path}/unload", {}).body == {"generation": None, "previous": 3}
        assert client.get("/v2/health/ready").status == 503
        assert client.infer([TEXT]).status == 503
        assert client.get("/v2/health/live").status == 200
        assert client.get("/v1/models").body["data"][0]["generation"] is None
        payload = {"parameters": {"generation": 2, "unload_dependents": True}, "of": "Triton"}
        assert client.post(f"{path}/load", payload).body == {"generation": 2, "previous": None}
        assert client.post("/v2/repository/models/other/load", {}).status == 404
        assert client.infer([TEXT]).generation == 2


@pytest.mark.parametrize("path", ["swap", "rollback", "attach", "detach", "replace"])
def test_a_field_that_nobody_knows_changes_nothing(home, open_live, path) -> None:
    with running(open_live(home), token=TOKEN) as (url, _), Client(url, token=TOKEN) as client:
        known = {"id": "range1", "source": "range2"}
        keys = {"attach": ["source"], "detach": ["id"], "replace": ["id", "source"]}.get(path, [])
        reply = client.post(f"/admin/{path}", {**{k: known[k] for k in keys}, "generations": 2})
        assert reply.status == 400 and "generations" in reply.body["error"]
        assert client.infer([TEXT]).generation == 3


ADMIN = ("/admin/swap", "/admin/rollback", "/v2/repository/models/redhost/load")


@pytest.mark.parametrize("path", ADMIN)
def test_without_a_token_nobody_may_change_anything(shared, home, path, open_live) -> None:
    with Client(shared, token=TOKEN) as client:
        assert client.post(path, {}).status == 404
    with running(open_live(home), token=TOKEN) as (url, service):
        for wrong in (None, "", "wrong", TOKEN + "x", TOKEN[:-1], "\xe9" * 20):
            with Client(url, token=wrong) as client:
                assert client.post(path, {}).status == 401
        assert service.live.generation == 3


@pytest.mark.parametrize(
    ("address", "allowed"),
    [
        *((address, True) for address in ("127.0.0.1", "::1", "::ffff:127.0.0.1")),
        *((address, False) for address in ("10.0.0.7", "::ffff:10.0.0.7", "localhost", "")),
    ],
)
def test_changes_come_from_this_machine_only(address, allowed) -> None:
    from redhost_serve.admin import check
    from redhost_serve.problems import HttpProblem
    from starlette.requests import Request

    headers = [(b"authorization", f"Bearer {TOKEN}".encode())]
    request = Request({"type": "http", "headers": headers, "client": (address, 1)})
    if allowed:
        check(request, TOKEN)
        return
    with pytest.raises(HttpProblem) as e:
        check(request, TOKEN)
    assert e.value.status == 403


@pytest.mark.parametrize("claimed", ["10.0.0.7", "127.0.0.1"])
def test_nobodys_word_is_taken_for_where_a_request_comes_from(home, open_live, claimed) -> None:
    with running(open_live(home), token=TOKEN) as (url, _), Client(url, token=TOKEN) as client:
        client.headers["X-Forwarded-For"] = claimed
        assert client.swap(1).status == 200  # it does come from this machine


def test_without_the_check_anybody_changes_what_is_served(home, open_live, monkeypatch) -> None:
    """Control of token and address."""
    monkeypatch.setattr("redhost_serve.admin.check", lambda request, token: None)
    with running(open_live(home), token=TOKEN) as (url, _), Client(url) as client:
        assert client.swap(1).status == 200


def test_a_token_is_a_secret_or_none(tmp_path) -> None:
    from redhost_serve.admin import read_token

    path = tmp_path / "token"
    for content, mode, reason in (
        (TOKEN, 0o644, "others can read"),
        ("short", 0o600, "too short"),
        ("", 0o600, "too short"),
    ):
        path.write_text(content)
        path.chmod(mode)
        with pytest.raises(redhost.errors.SettingsError, match=reason):
            read_token(path)
    path.write_text(f"{TOKEN}\n")
    assert read_token(path) == TOKEN
    with pytest.raises(
        redhost.errors.SettingsError, match=r"no such file or directory\. Make one: "
    ):
        read_token(tmp_path / "none")


def test_draining_is_not_ready_but_alive_and_answers(home, open_live) -> None:
    with running(open_live(home)) as (url, service), Client(url) as client:
        service.draining = True
        assert client.get("/v2/health/ready").status == 503
        assert client.get("/v2/health/live").status == 200
        assert client.infer([TEXT]).status == 200
