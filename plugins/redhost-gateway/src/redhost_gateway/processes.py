"""Processes of measurements: upstreams that fail and restart, and gateways as users run them."""

from __future__ import annotations

import asyncio
import contextlib
import signal
import socket
import subprocess
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import redhost
from redhost_gateway.faulty_upstream import TOKENS

__all__ = ["READ", "free_ports", "gateway_process", "restarting", "upstream_process"]

READ = 2.0
"""The gateway's time-out for an upstream's next byte."""


@contextlib.contextmanager
def upstream_process(port: int, *, tokens: int = TOKENS, delay: float = 0.0) -> Iterator[None]:
    """Run a faulty upstream in a process of its own while the block runs.

    Args:
        port: Its port.
        tokens: Events of a streamed answer.
        delay: Seconds between two of them.

    Raises:
        MissingError: If it does not start.
    """
    arguments = ("-m", "redhost_gateway.faulty_upstream", str(port), str(tokens), str(delay))
    with subprocess.Popen(  # noqa: S603  (our own command)
        redhost.plugins.python_command(*arguments), stdout=subprocess.PIPE, text=True
    ) as child:
        try:
            if child.stdout is None or not child.stdout.readline():
                raise redhost.MissingError("an upstream did not start")
            yield
        finally:
            child.kill()


@contextlib.contextmanager
def gateway_process(home: Path, *urls: str) -> Iterator[str]:
    """Run ``redhost gateway`` on a free port while the block runs; yield its address."""
    upstreams = [word for url in urls for word in ("--upstream", url)]
    arguments = ("-m", "redhost", "gateway", "--home", str(home), "--port", "0", *upstreams)
    limits = ("--limit", f"read={READ:g}", "--limit", "requests=4096")
    with subprocess.Popen(  # noqa: S603  (our own command)
        redhost.plugins.python_command(*arguments, *limits),
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    ) as child:
        try:
            line = child.stdout.readline() if child.stdout else ""
            _, found, url = line.strip().partition(" on ")
            if not found:
                raise redhost.MissingError("the gateway did not start", found=line.strip())
            yield url
        finally:
            child.send_signal(signal.SIGINT)


@contextlib.asynccontextmanager
async def restarting(port: int, *, every: float) -> AsyncIterator[list[int]]:
    """Run an upstream that is killed and started again, again and again; yield a count of it."""
    stack, count = contextlib.ExitStack(), [0]
    stack.enter_context(upstream_process(port))

    async def restart() -> None:
        while True:
            await asyncio.sleep(every)
            await asyncio.to_thread(stack.close)
            await asyncio.sleep(every / 10)
            await asyncio.to_thread(stack.enter_context, upstream_process(port))
            count[0] += 1

    task = asyncio.create_task(restart())
    try:
        yield count
    finally:
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task
        stack.close()


def free_ports(count: int) -> list[int]:
    """Return ports that nobody listens on."""
    with contextlib.ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(count)]
        for each in sockets:
            each.bind(("127.0.0.1", 0))
        return [each.getsockname()[1] for each in sockets]
