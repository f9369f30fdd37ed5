"""The server, for real: uvicorn on a port, over the shipped experts."""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from redhost_serve.process import compose_home
from redhost_serve.server import running
from redhost_serve.service import Options

import redhost
from redhost.testing import Environment


@pytest.fixture(autouse=True)
def one_thread() -> None:
    torch.set_num_threads(1)


@pytest.fixture(scope="session")
def composed_home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Generations 1, 2 and 3 of the shipped experts; copy it before changing it."""
    return compose_home(tmp_path_factory.mktemp("served") / "home").home


@pytest.fixture
def home(composed_home: Path, tmp_path: Path) -> Path:
    home = tmp_path / "home"
    shutil.copytree(composed_home, home)
    return home


@pytest.fixture(scope="session")
def open_live() -> Callable[..., redhost.Live]:
    """Return the function that opens a live host, of a kind of the test's own where it wants."""

    def call(home: Path, kind: type[redhost.Live] = redhost.Live) -> redhost.Live:
        return kind.open(home, backbone="tiny", plugins=redhost.plugins.Plugins(()))

    return call


@pytest.fixture(scope="module")
def shared(
    composed_home: Path,
    open_live: Callable[..., redhost.Live],
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[str]:
    """The address of a server that tests may ask but not change."""
    torch.set_num_threads(1)
    home = tmp_path_factory.mktemp("shared") / "home"
    shutil.copytree(composed_home, home)
    with running(open_live(home), options=Options(seconds=1.0)) as (url, _):
        yield url


@pytest.fixture(scope="session")
def speaking(speaker_folder, adapter_packages, tmp_path_factory) -> redhost.Host:
    """A home where text is generated: generation 1 has three adapters, 2 one of them."""
    torch.set_num_threads(1)
    folder = tmp_path_factory.mktemp("speaking")
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(folder))
        environment = Environment(folder)
        for package in (speaker_folder, *adapter_packages.values()):
            environment.install(package.parents[1])
        host = redhost.Host.open(
            tmp_path_factory.mktemp("home"),
            backbone="speaker",
            plugins=redhost.plugins.Plugins(),
        )
        host.recompose(accept=True)
        for name in ("sums", "tales"):
            environment.uninstall(f"red-expert-{name}")
        host.recompose(accept=True)
    return host


@pytest.fixture(scope="session")
def until() -> Callable[[Callable[[], Any]], None]:
    """Return the function that waits for something to be so."""

    def call(true: Callable[[], Any]) -> None:
        for _ in range(3000):
            if true():
                return
            time.sleep(0.01)
        raise AssertionError("it did not happen")

    return call
