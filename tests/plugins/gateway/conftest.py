"""A gateway over a composed home, before servers of this process with sockets of their own."""

from __future__ import annotations

import asyncio
import shutil
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
from redhost_gateway.faulty_upstream import FaultyUpstream
from redhost_gateway.gateway import Gateway
from redhost_gateway.run import running
from redhost_gateway.settings import Limits, UpstreamSettings
from redhost_serve.process import compose_home

import redhost


@pytest.fixture(autouse=True)
def one_thread() -> None:
    torch.set_num_threads(1)


@pytest.fixture(scope="session")
def composed_home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Generations 1 to 3 of the shipped experts: the first's router asks experts."""
    return compose_home(tmp_path_factory.mktemp("gateway") / "home").home


@pytest.fixture
def home(composed_home: Path, tmp_path: Path) -> Path:
    home = tmp_path / "home"
    shutil.copytree(composed_home, home)
    return home


@contextmanager
def _listening(upstream: FaultyUpstream, port: int = 0) -> Iterator[str]:
    """Run a server in a loop of its own; yield its address."""
    ready, found = threading.Event(), list[Any]()

    async def serve() -> None:
        async with upstream.listening(port) as at:
            ended = asyncio.Event()
            found.extend((at, asyncio.get_running_loop(), ended))
            ready.set()
            await ended.wait()

    thread = threading.Thread(target=lambda: asyncio.run(serve()), daemon=True)
    thread.start()
    assert ready.wait(10)
    at, loop, ended = found
    try:
        yield f"http://127.0.0.1:{at}"
    finally:
        loop.call_soon_threadsafe(ended.set)
        thread.join(10)


@pytest.fixture(scope="session")
def listening() -> Callable[..., AbstractContextManager[str]]:
    """Return the function that runs a server while a block runs."""
    return _listening


@pytest.fixture
def upstream() -> Iterator[tuple[str, FaultyUpstream]]:
    """A server, and its state."""
    state = FaultyUpstream()
    with _listening(state) as url:
        yield url, state


@pytest.fixture
def gateway_of() -> Iterator[Callable[..., tuple[str, Gateway]]]:
    """Return the function that starts a gateway over a home; it ends with the test."""
    with ExitStack() as stack:

        def call(home: Path, *urls: str, **options: Any) -> tuple[str, Gateway]:
            fields = {n: options.pop(n) for n in ("models", "loads") if n in options}
            settings = tuple(UpstreamSettings(url=url, **fields) for url in urls)
            limits = Limits(**{"check": 0.1, **options.pop("limits", {})})
            host = redhost.Host.open(home, plugins=options.pop("plugins", None))
            gateway = Gateway(host=host, settings=settings, limits=limits, **options)
            return stack.enter_context(running(gateway)), gateway

        yield call


@pytest.fixture(scope="session")
def until() -> Callable[[Callable[[], Any]], None]:
    """Return the function that waits for something to be so."""

    def call(true: Callable[[], Any]) -> None:
        for _ in range(1000):
            if true():
                return
            time.sleep(0.01)
        raise AssertionError("it did not happen")

    return call
