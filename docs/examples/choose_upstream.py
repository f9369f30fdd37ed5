"""Choose the adapter of a request, and let an OpenAI-compatible server answer it.

    client ── model: auto ──▶ this ── POST /v1/route ──▶ redhost serve
                                └──── model: NAME ─────▶ vLLM, transformers serve, …

A request whose `model` is ``auto`` gets the name of the expert that redhost names for its text;
every other request goes on as it came. Answers come back byte by byte, streams as well. The
upstream knows adapters by name; where its names differ from those of the experts, ``--name
EXPERT=MODEL`` says so, and ``--name backbone=MODEL`` what answers where no expert is meant.

    redhost serve --port 8000
    python choose_upstream.py --redhost http://127.0.0.1:8000 --upstream http://127.0.0.1:9000
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Mapping
from contextlib import closing
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.error import HTTPError, URLError
from urllib.request import Request, urlopen

AUTO = "auto"
LONGEST = 4096  # characters of a text that redhost serve reads
PASSED_ON = ("Accept", "Authorization", "Content-Type")
SECONDS = 600


def text_of(body: Mapping[str, Any]) -> str:
    """Return what a request is about: the end of its prompt, or of the last message of a user."""
    messages = [m["content"] for m in body.get("messages", ()) if m["role"] == "user"]
    text = messages[-1] if messages else body.get("prompt", "")
    if not isinstance(text, str):
        raise ValueError("only text is routed: name a model for a list of prompts or of parts")
    return text[-LONGEST:]


def chosen(redhost: str, text: str) -> str:
    """Return the expert that redhost names for a text."""
    body = json.dumps({"texts": [text]}).encode()
    request = Request(f"{redhost}/v1/route", body, {"Content-Type": "application/json"})
    with urlopen(request, timeout=SECONDS) as reply:
        expert: str = json.load(reply)["routes"][0]["expert"]
    return expert


def proxy(
    address: tuple[str, int], *, redhost: str, upstream: str, names: Mapping[str, str]
) -> ThreadingHTTPServer:
    """Return the server, bound and not yet serving."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self._pass_on(None)

        def do_POST(self) -> None:
            data = self.rfile.read(int(self.headers.get("Content-Length", 0)))
            try:
                body = json.loads(data)
                if body.get("model") == AUTO:
                    expert = chosen(redhost, text_of(body))
                    data = json.dumps(body | {"model": names.get(expert, expert)}).encode()
            except HTTPError as e:
                with e:
                    self._refuse(502, f"redhost answered {e.code}: {e.read(1000).decode()}")
            except URLError as e:
                self._refuse(502, f"redhost does not answer: {e.reason}")
            except (AttributeError, KeyError, TypeError, ValueError) as e:
                self._refuse(400, f"not a request of this API: {e}")
            else:
                self._pass_on(data)

        def _pass_on(self, data: bytes | None) -> None:
            headers = {n: v for n in PASSED_ON if (v := self.headers.get(n))}
            request = Request(upstream + self.path, data, headers, method=self.command)
            try:
                answer = urlopen(request, timeout=SECONDS)
            except HTTPError as e:
                answer = e  # it has a status and a body like any other
            except URLError as e:
                self._refuse(502, f"the upstream does not answer: {e.reason}")
                return
            with closing(answer):
                self._start(answer.status, answer.headers.get("Content-Type", "application/json"))
                while part := answer.read1(65536):
                    self.wfile.write(part)  # as soon as it is there: a token of a stream

        def _refuse(self, status: int, message: str) -> None:
            self._start(status, "application/json")
            self.wfile.write(json.dumps({"error": {"message": message}}).encode())

        def _start(self, status: int, kind: str) -> None:
            self.send_response(status)
            self.send_header("Content-Type", kind)
            self.end_headers()

    return ThreadingHTTPServer(address, Handler)


def main() -> None:
    """Serve until Ctrl-C."""
    parser = argparse.ArgumentParser(description="Choose an adapter, then ask an upstream.")
    parser.add_argument("--redhost", required=True, metavar="URL")
    parser.add_argument("--upstream", required=True, metavar="URL")
    parser.add_argument("--name", action="append", default=[], metavar="EXPERT=MODEL")
    parser.add_argument("--port", type=int, default=8080)
    given = parser.parse_args()
    names = dict(pair.split("=", 1) for pair in given.name)
    address = ("127.0.0.1", given.port)
    with proxy(address, redhost=given.redhost, upstream=given.upstream, names=names) as server:
        server.serve_forever()


if __name__ == "__main__":
    main()
