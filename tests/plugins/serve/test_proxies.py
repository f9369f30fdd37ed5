"""What stands before a server: probes by HEAD, prefixes, pages of other origins, Unix sockets."""

from __future__ import annotations

import http.client
import json
import os
import signal
import socket
import stat
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from redhost_serve.app import create_app
from redhost_serve.client import INFER, Client
from redhost_serve.server import running
from redhost_serve.service import Options, Service
from warm_start import warm_command

import redhost

TEXT = "What is 37 plus 12?"
TENSOR = {"name": "text", "datatype": "BYTES", "shape": [1], "data": [TEXT]}
BODY = json.dumps({"inputs": [TENSOR]})
ORIGIN = "https://app.example"


def send(
    url: str, method: str, path: str, headers: dict[str, str] | None = None, body: str | None = None
) -> tuple[int, dict[str, str], bytes]:
    connection = http.client.HTTPConnection(url.removeprefix("http://"), timeout=30)
    connection.request(method, path, body, headers or {})
    answer = connection.getresponse()
    found = {k.lower(): v for k, v in answer.getheaders()}
    content = answer.read()
    connection.close()
    return answer.status, found, content


# -- HEAD -----------------------------------------------------------------------------------------


def test_head_has_the_status_and_headers_of_get_on_every_route(shared) -> None:
    paths = json.loads(send(shared, "GET", "/openapi.json")[2])["paths"]
    found = [
        p.replace("{name}", "redhost") for p, operations in paths.items() if "get" in operations
    ]
    pages = ["/", "/traffic", "/static/page.js", "/openapi.json", "/nowhere", "/v2/models/nobody"]
    assert len(found) > 8
    for path in (*found, *pages):
        (status, headers, content), head = send(shared, "GET", path), send(shared, "HEAD", path)
        for each in (headers, head[1]):
            del each["date"]
        if path in {"/metrics", "/v1/traffic"}:  # whose content has changed meanwhile
            headers["content-length"] = head[1]["content-length"]
        assert (head[0], head[1], head[2]) == (status, headers, b""), path
        assert content and status in {200, 404}


def test_head_of_a_stream_without_an_end_ends(shared) -> None:
    status, headers, content = send(shared, "HEAD", "/v1/traffic/events")
    assert (status, content) == (200, b"") and "event-stream" in headers["content-type"]


def test_head_is_not_a_method_of_what_changes_and_the_connection_goes_on(shared) -> None:
    connection = http.client.HTTPConnection(shared.removeprefix("http://"), timeout=30)
    for method, path, status in (
        ("HEAD", INFER, 405),
        ("HEAD", "/v2/health/ready", 200),
        ("HEAD", "/v2/health/live", 200),
        ("GET", "/v2/health/live", 200),
    ):
        connection.request(method, path)
        answer = connection.getresponse()
        assert (answer.status, bool(answer.read())) == (status, method == "GET")
    connection.close()


# -- a prefix -------------------------------------------------------------------------------------


@pytest.mark.parametrize("prefix", ["/ml", "/team/red-1", "/ml/"])
def test_behind_a_prefix_a_proxy_may_strip_it_or_not(composed_home, open_live, prefix) -> None:
    options = Options(root_path=prefix)
    with running(open_live(composed_home), options=options) as (url, _):
        for before in ("", prefix.rstrip("/")):
            assert send(url, "GET", f"{before}/v2/health/ready")[0] == 200
            assert send(url, "HEAD", f"{before}/")[0] == 200
            assert send(url, "POST", f"{before}{INFER}", body=BODY)[0] == 200
            described = json.loads(send(url, "GET", f"{before}/openapi.json")[2])
            assert described["servers"] == [{"url": prefix.rstrip("/")}]
        assert send(url, "GET", f"{prefix.rstrip('/')}x/v2/health/ready")[0] == 404
        metrics = send(url, "GET", "/metrics")[2].decode()
        assert 'route="/v2/health/ready"' in metrics and f'route="{prefix}' not in metrics


@pytest.mark.parametrize("prefix", ["ml", "/v1", "/v2/x", "/static", "/a b", "/a?b", "//", "/../a"])
def test_a_prefix_that_would_hide_a_route_is_refused(composed_home, open_live, prefix) -> None:
    if prefix == "//":  # the same as none
        with running(open_live(composed_home), options=Options(root_path=prefix)) as (url, _):
            assert send(url, "GET", "/v2/health/ready")[0] == 200
        return
    service = Service(open_live(composed_home), options=Options(root_path=prefix))
    with pytest.raises(redhost.UsageError, match="where no route begins with NAME"):
        create_app(service)
    service.close()


# -- pages of other origins -----------------------------------------------------------------------


def test_no_page_of_another_origin_may_read_unless_it_is_named(
    composed_home, open_live, shared
) -> None:
    requests_at = {"Origin": ORIGIN, "Access-Control-Request-Method": "POST"}
    assert send(shared, "OPTIONS", INFER, requests_at)[0] == 405
    assert not any(
        name.startswith("access-control")
        for name in send(shared, "GET", "/", {"Origin": ORIGIN})[1]
    )
    with running(open_live(composed_home), options=Options(origins=(ORIGIN,))) as (url, _):
        status, headers, _ = send(url, "OPTIONS", INFER, requests_at)
        assert (status, headers["access-control-allow-origin"]) == (200, ORIGIN)
        status, headers, _ = send(url, "POST", INFER, {"Origin": ORIGIN}, BODY)
        assert (status, headers["access-control-allow-origin"]) == (200, ORIGIN)
        assert "Origin" in headers["vary"]
        status, headers, _ = send(url, "POST", INFER, {"Origin": ORIGIN}, "a" * 2**21)
        assert (status, headers["access-control-allow-origin"]) == (413, ORIGIN)
        for other in (
            "https://evil.example",
            "null",
            f"{ORIGIN}.evil.example",
            "http://app.example",
        ):
            _, headers, _ = send(url, "GET", "/v1/models", {"Origin": other})
            assert "access-control-allow-origin" not in headers
            assert send(url, "OPTIONS", INFER, {**requests_at, "Origin": other})[0] == 400


def test_all_origins_read_without_credentials(composed_home, open_live) -> None:
    with running(open_live(composed_home), options=Options(origins=("*",))) as (url, _):
        _, headers, _ = send(url, "GET", "/v1/models", {"Origin": ORIGIN, "Cookie": "a=b"})
    assert headers["access-control-allow-origin"] == "*"
    assert "access-control-allow-credentials" not in headers


@pytest.mark.parametrize(
    "origin", ["app.example", "https://app.example/", "https://*.example", "null"]
)
def test_what_is_no_origin_is_refused(composed_home, open_live, origin) -> None:
    service = Service(open_live(composed_home), options=Options(origins=(origin,)))
    with pytest.raises(redhost.UsageError, match="an origin of web pages"):
        create_app(service)
    service.close()


# -- a Unix socket, and the command ---------------------------------------------------------------


class UnixConnection(http.client.HTTPConnection):
    """A connection to a Unix socket."""

    def __init__(self, path: Path) -> None:
        super().__init__("localhost", timeout=60)
        self.path = path

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX)
        self.sock.settimeout(60)
        self.sock.connect(str(self.path))


def command(home: Path, *options: str) -> list[str]:
    return warm_command("-P", "-m", "redhost", "serve", "--home", str(home), *options)


@contextmanager
def serving(home: Path, *options: str) -> Iterator[tuple[str, subprocess.Popen[str]]]:
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    with subprocess.Popen(
        command(home, *options),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=environment,
    ) as child:
        try:
            yield child.stdout.readline(), child
        finally:
            if child.poll() is None:
                child.send_signal(signal.SIGINT)


def refused(home: Path, *options: str) -> str:
    done = subprocess.run(
        command(home, *options), capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode not in {0, 1} and "Traceback" not in done.stderr
    return done.stderr


def test_a_unix_socket_is_its_owners_and_is_replaced_only_if_nobody_listens(
    home, tmp_path: Path
) -> None:
    path, token = tmp_path / "serve.sock", tmp_path / "token"
    token.write_text("x" * 32)
    token.chmod(0o600)
    with socket.socket(socket.AF_UNIX) as dead:
        dead.bind(str(path))  # a server that was killed leaves this
    options = ("--uds", str(path), "--admin-token", str(token))
    with serving(home, *options) as (line, child):
        assert line == f"serving generation 3 on unix:{path}\n"
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
        connection = UnixConnection(path)
        with Client("http://localhost", token="x" * 32) as client:
            client.connection.close()
            client.connection = connection
            assert client.infer([TEXT]).output("label") == ["49"]
            assert client.swap(2).body == {"generation": 2, "previous": 3}
        assert "a server listens there" in refused(home, "--uds", str(path))
        assert path.exists()
        child.send_signal(signal.SIGINT)
        assert child.wait(60) == 0
    assert not path.exists()


def test_a_unix_socket_may_be_for_a_group_and_never_replaces_a_file(home, tmp_path: Path) -> None:
    path = tmp_path / "a:b.sock"
    with serving(home, "--uds", f"{path}:660") as (line, _):
        assert line.endswith(f"unix:{path}\n") and stat.S_IMODE(path.stat().st_mode) == 0o660
    file = tmp_path / "notes"
    file.write_text("mine")
    assert "something else than a socket" in refused(home, "--uds", str(file))
    assert file.read_text() == "mine"
    assert "cannot listen on" in refused(home, "--uds", str(tmp_path / ("x" * 200)))
    assert "--uds, or --host and --port" in refused(home, "--uds", str(path), "--port", "0")


@pytest.mark.parametrize("limit", ["queue=0", "queue", "batch-ms=-1", "color=3", "grace=soon"])
def test_a_limit_that_is_none_is_refused(home, limit) -> None:
    assert "expected queue=NUMBER, batch=NUMBER, batch-ms=NUMBER" in refused(home, "--limit", limit)


def test_the_options_of_the_command_are_those_of_the_service(home) -> None:
    options = ("--port", "0", "--root-path", "/ml", "--cors", ORIGIN, "--limit", "body=1000")
    with serving(home, *options, "--limit", "grace=0") as (line, _):
        url = line.strip().partition(" on ")[2]
        assert send(url, "GET", "/ml/v2/health/ready")[0] == 200
        status, headers, content = send(url, "POST", INFER, {"Origin": ORIGIN}, "a" * 1001)
        assert status == 413 and b"more than 1000 bytes" in content
        assert headers["access-control-allow-origin"] == ORIGIN
