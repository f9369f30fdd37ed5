"""A gateway over a composed home, before servers of this process with sockets of their own."""

from __future__ import annotations

import asyncio
import shutil
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest
import torch
from redhost_author.project import ExpertPlan, package_in
from redhost_gateway.adapters import CONFIG, WEIGHTS
from redhost_gateway.faulty_upstream import FaultyUpstream
from redhost_gateway.gateway import Gateway
from redhost_gateway.run import running
from redhost_gateway.settings import Limits, UpstreamSettings
from redhost_peft.adapter import import_adapter
from redhost_serve.process import compose_home

import redhost
from redhost.registry.package.discover import from_folder
from redhost.testing import Environment


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


@pytest.fixture(scope="session")
def other_sums(saved_adapters, speaker_folder, rows_of, tmp_path_factory) -> Path:
    """An expert `sums` with the weights of another adapter, as a package's folder."""
    project = tmp_path_factory.mktemp("other") / "red-expert-sums"
    names = (CONFIG, WEIGHTS)
    files = {n: (saved_adapters["tales"] / n).read_bytes() for n in names}
    plan = ExpertPlan(id="sums", form="lora")
    with suppress(redhost.errors.HarmError):  # it has learnt nothing, and is written all the same
        import_adapter(project, plan, files, rows_of("sums"), package=from_folder(speaker_folder))
    return package_in(project)


@pytest.fixture(scope="session")
def speaking_home(speaker_folder, adapter_packages, other_sums, tmp_path_factory) -> Path:
    """Generation 1 has sums, tales and code; 2 another sums, and code."""
    torch.set_num_threads(1)
    folder, home = tmp_path_factory.mktemp("site"), tmp_path_factory.mktemp("adapters") / "home"
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(folder))
        environment = Environment(folder)
        for package in (speaker_folder, *adapter_packages.values()):
            environment.install(package.parents[1])
        host = redhost.Host.open(home, backbone="speaker", plugins=redhost.plugins.Plugins())
        host.recompose(accept=True)
        for name in ("sums", "tales"):
            environment.uninstall(f"red-expert-{name}")
        environment.install(other_sums.parents[1])
        host.recompose(accept=True)
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
