"""A fleet's store, for real: a folder, and a server that speaks S3; and homes to fill it from."""

from __future__ import annotations

import logging
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch
from redhost_fleet.fleet import Fleet
from redhost_serve.process import compose_home

import redhost

for library in ("moto", "s3fs"):
    pytest.importorskip(library, reason="`make .venv/fleet` installs it")

logging.getLogger("werkzeug").setLevel(logging.WARNING)  # a line a request


@pytest.fixture(autouse=True)
def one_thread() -> None:
    torch.set_num_threads(1)


@pytest.fixture(scope="session")
def s3() -> Iterator[str]:
    """The address of a server that speaks S3."""
    from moto.server import ThreadedMotoServer

    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    yield f"http://{host}:{port}"
    server.stop()


@pytest.fixture(params=["folder", "s3"])
def store(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """Where a new store is; the same tests run on each kind."""
    if request.param == "folder":
        return str(tmp_path / "store")
    import s3fs

    url = request.getfixturevalue("s3")
    for name, value in (
        ("AWS_ENDPOINT_URL", url),
        ("AWS_ACCESS_KEY_ID", "key"),
        ("AWS_SECRET_ACCESS_KEY", "secret"),
        ("AWS_DEFAULT_REGION", "us-east-1"),
    ):
        monkeypatch.setenv(name, value)
    bucket = f"fleet-{tmp_path.name.lower().replace('_', '-')}"[:60].rstrip("-")
    s3fs.S3FileSystem(skip_instance_cache=True).mkdir(bucket)
    return f"s3://{bucket}/models"


@pytest.fixture
def fleet(store: str) -> Fleet:
    return Fleet(store)


@pytest.fixture(scope="session")
def composed_home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Generations 1, 2 and 3 of the shipped experts; copy it before changing it."""
    return compose_home(tmp_path_factory.mktemp("fleet") / "home").home


@pytest.fixture
def home(composed_home: Path, tmp_path: Path) -> Path:
    shutil.copytree(composed_home, tmp_path / "home")
    return tmp_path / "home"


@pytest.fixture
def open_host() -> Callable[[Path], redhost.Host]:
    def call(home: Path) -> redhost.Host:
        return redhost.Host.open(home, backbone="tiny", plugins=redhost.plugins.Plugins(()))

    return call


@pytest.fixture
def author(home: Path, open_host: Callable[[Path], redhost.Host]) -> redhost.Host:
    """Who publishes."""
    return open_host(home)


@pytest.fixture
def open_live() -> Callable[[Path], redhost.Live]:
    def call(home: Path) -> redhost.Live:
        return redhost.Live.open(home, backbone="tiny", plugins=redhost.plugins.Plugins(()))

    return call
