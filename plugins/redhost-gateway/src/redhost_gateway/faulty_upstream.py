"""A server with OpenAI's API for tests and measurements: it echoes, and fails on request.

A request's field ``user`` comes back in its answer. The field ``behave`` says how it is answered:

    slow:SECONDS      late
    drop              the connection is closed before a byte
    drop-first        the same, once for each `user`
    break             the connection is closed within the answer
    status:CODE       with an error of its own

Adapters are loaded and unloaded as vLLM documents it: a model that is not loaded is 404, and an
answer has the digest of the weights that were read when its model was loaded.

    python -m redhost_gateway.faulty_upstream PORT [TOKENS [SECONDS]]
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import json
import sys
from collections.abc import AsyncIterator, Mapping
from pathlib import Path
from typing import Any

__all__ = ["BASE", "TOKENS", "FaultyUpstream"]

BASE = "base-model"
TOKENS = 8
"""Events of a streamed answer."""

ACCEPTING = 3
"""Turns of a loop from a connection's acceptance until it is its server's."""

USAGE = {"prompt_tokens": 1, "completion_tokens": 2, "total_tokens": 3}

REASONS = {200: "OK", 400: "Bad Request", 404: "Not Found", 429: "Too Many Requests"}


class FaultyUpstream:
    """The server's state.

    Attributes:
        adapters: Name → digest of its weights, of the adapters that are loaded.
        any_model: Whether a model that is not loaded answers all the same.
        seen: The requests it got: path, headers, body.
        open: Number of requests that are being answered.
        tokens: Events of a streamed answer.
        delay: Seconds between two events of a stream.
        busy: With which status and `Retry-After` it refuses everything; None if it does not.
        scales: What it lists at ``/lora-adapters``, as llama.cpp's server does.
        hangs: Whether it answers no GET.
        unloadable: Names of adapters that it refuses to load.
    """

    def __init__(self, *, any_model: bool = True, tokens: int = TOKENS, delay: float = 0.0) -> None:
        self.adapters: dict[str, str] = {}
        self.any_model, self.tokens, self.delay = any_model, tokens, delay
        self.seen: list[tuple[str, Mapping[str, str], bytes]] = []
        self.open = 0
        self.scales: list[dict[str, Any]] | dict[str, Any] = []
        self.busy: tuple[int, str] | None = None
        self.unloadable: set[str] = set()
        self.hangs = False
        self._dropped: set[str] = set()

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Answer the requests of one connection."""
        try:
            while head := await reader.readuntil(b"\r\n\r\n"):
                line, *lines = head.decode("latin-1").strip().split("\r\n")
                headers = {k.lower(): v for k, _, v in (x.partition(": ") for x in lines)}
                body = await reader.readexactly(int(headers.get("content-length", 0)))
                method, path, _ = line.split(" ")
                self.open += 1
                try:
                    if not await self._answer(writer, method, path, headers, body):
                        return
                finally:
                    self.open -= 1
        except (asyncio.CancelledError, asyncio.IncompleteReadError, ConnectionError):
            pass  # the client has gone, or the server ends
        finally:
            writer.close()

    async def _answer(
        self,
        writer: asyncio.StreamWriter,
        method: str,
        path: str,
        headers: Mapping[str, str],
        body: bytes,
    ) -> bool:
        """Answer one request; return whether the connection stays open."""
        if method == "GET":
            while self.hangs:
                await asyncio.sleep(0.05)
            found = self.scales if path == "/lora-adapters" else self._models()
            return await _reply(writer, 200, found)
        self.seen.append((path, headers, body))
        del self.seen[:-100]
        if self.busy is not None:
            status, after = self.busy
            found = {"error": {"message": "busy", "code": status}}
            return await _reply(writer, status, found, f"retry-after: {after}\r\n")
        wanted = json.loads(body)
        if path.endswith("load_lora_adapter"):
            return await _reply(writer, *self._change(path, wanted))
        behave, _, value = str(wanted.get("behave", "")).partition(":")
        user = str(wanted.get("user", ""))
        if behave == "slow":
            await asyncio.sleep(float(value))
        if behave == "drop" or (behave == "drop-first" and user not in self._dropped):
            self._dropped.add(user)
            return False
        if behave == "status":
            return await _reply(writer, int(value), {"error": {"message": user, "code": behave}})
        return await self._complete(writer, path, wanted, breaks=behave == "break")

    async def _complete(
        self, writer: asyncio.StreamWriter, path: str, wanted: Mapping[str, Any], *, breaks: bool
    ) -> bool:
        """Answer with a model that is there."""
        model = str(wanted.get("model", ""))
        adapter = model.rpartition(":")[2]  # SGLang's names are BASE:ADAPTER
        if not (self.any_model or model == BASE or adapter in self.adapters):
            message = f"The model `{model}` does not exist."
            return await _reply(writer, 404, {"error": {"message": message, "code": 404}})
        digest = self.adapters.get(adapter, "")
        if wanted.get("stream"):
            return await self._stream(writer, wanted, digest, breaks=breaks)
        if breaks:
            writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: 100\r\n\r\n{")
            await writer.drain()
            return False
        return await _reply(writer, 200, _completion(path, wanted, digest))

    async def _stream(
        self, writer: asyncio.StreamWriter, wanted: Mapping[str, Any], digest: str, *, breaks: bool
    ) -> bool:
        user = str(wanted.get("user", ""))
        head = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\n"
        writer.write(head + b"transfer-encoding: chunked\r\n\r\n")
        for n in range(self.tokens):
            if breaks and n == self.tokens // 2:
                return False
            text = f"{user} "
            choice = {"index": 0, "delta": {"content": text}, "text": text, "finish_reason": None}
            event = {
                "id": user,
                "object": "chat.completion.chunk",
                "created": 0,
                "model": digest,
                "choices": [choice],
            }
            await _chunk(writer, f"data: {json.dumps(event)}\n\n".encode())
            await asyncio.sleep(self.delay)
        if (wanted.get("stream_options") or {}).get("include_usage"):
            last = {"id": user, "object": "chat.completion.chunk", "choices": [], "usage": USAGE}
            line = f"data: {json.dumps(last)}\n\n".encode()
            await _chunk(writer, line[:30])  # it may come in parts
            await _chunk(writer, line[30:])
        await _chunk(writer, b"data: [DONE]\n\n")
        await _chunk(writer, b"")
        return True

    def _models(self) -> dict[str, Any]:
        base = {"id": BASE, "object": "model", "created": 0, "owned_by": "test", "parent": None}
        loaded = ({**base, "id": name, "parent": BASE} for name in self.adapters)
        return {"object": "list", "data": [base, *loaded]}

    def _change(self, path: str, wanted: Mapping[str, Any]) -> tuple[int, object]:
        name = wanted["lora_name"]
        if path.endswith("/unload_lora_adapter"):
            found = self.adapters.pop(name, None)
            return (404, f"{name} cannot be found") if found is None else (200, "Success")
        if name in self.adapters:
            return 400, f"The lora adapter '{name}' has already been loaded."
        if name in self.unloadable:
            return 400, f"max_lora_rank is too small for {name}"
        weights = Path(wanted["lora_path"], "adapter_model.safetensors")
        if not weights.is_file() or not weights.with_name("adapter_config.json").is_file():
            return 404, f"No adapter found for '{name}'"
        self.adapters[name] = hashlib.sha256(weights.read_bytes()).hexdigest()
        return 200, "Success"

    @contextlib.asynccontextmanager
    async def listening(self, port: int = 0) -> AsyncIterator[int]:
        """Listen on a port of this machine while the block runs; yield it."""
        server = await asyncio.start_server(self.serve, "127.0.0.1", port, backlog=2048)
        [listener] = server.sockets
        try:
            yield listener.getsockname()[1]
        finally:
            # What is accepted but not begun when a server closes stays open: CPython #109564.
            asyncio.get_running_loop().remove_reader(listener.fileno())
            for _ in range(ACCEPTING):
                await asyncio.sleep(0)
            server.close()


def _completion(path: str, wanted: Mapping[str, Any], digest: str) -> dict[str, Any]:
    """Return an answer that has the request's `user`, its model, and the adapter's digest."""
    user, model = str(wanted.get("user", "")), str(wanted.get("model", ""))
    if path.endswith("/embeddings"):
        data = [{"object": "embedding", "index": 0, "embedding": [0.5, 0.25]}]
        return {"object": "list", "data": data, "model": model, "usage": USAGE}
    message = {"role": "assistant", "content": user}
    choice = {"index": 0, "finish_reason": "stop", "message": message, "text": user}
    return {
        "id": user,
        "object": "chat.completion",
        "created": 0,
        "model": model,
        "choices": [choice],
        "usage": USAGE,
        "digest": digest,
        "lora": wanted.get("lora"),
    }


async def _reply(
    writer: asyncio.StreamWriter, status: int, content: object, more: str = ""
) -> bool:
    body = json.dumps(content).encode()
    head = f"HTTP/1.1 {status} {REASONS.get(status, 'Error')}\r\ncontent-type: application/json\r\n"
    head += more
    writer.write(f"{head}content-length: {len(body)}\r\n\r\n".encode() + body)
    await writer.drain()
    return True


async def _chunk(writer: asyncio.StreamWriter, data: bytes) -> None:
    writer.write(f"{len(data):x}\r\n".encode() + data + b"\r\n")
    await writer.drain()


async def _main(port: int, tokens: int = TOKENS, delay: float = 0.0) -> None:
    async with FaultyUpstream(tokens=tokens, delay=delay).listening(port) as found:
        sys.stdout.write(f"{found}\n")
        sys.stdout.flush()
        await asyncio.Event().wait()


if __name__ == "__main__":
    asyncio.run(_main(int(sys.argv[1]), *map(int, sys.argv[2:3]), *map(float, sys.argv[3:4])))
