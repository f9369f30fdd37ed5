"""Keys of two publishers, an index of this machine, and the commands on a composed home."""

from __future__ import annotations

import functools
import json
import shutil
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from redhost_author.signing import new_key
from redhost_revoke.edit import Target, edit_list

import redhost
from redhost.cli import main
from redhost.registry.home.generations import Generations
from redhost.registry.package.safetensors_check import sha256_hex

Call = Callable[..., tuple[int, str, str]]


@pytest.fixture(autouse=True)
def config(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("REDHOST_CONFIG", str(tmp_path / "config"))
    monkeypatch.chdir(tmp_path)


@pytest.fixture
def call(capsys: pytest.CaptureFixture[str]) -> Call:
    """Return the function that runs a command: its exit code, stdout and stderr."""

    def run(*arguments: str) -> tuple[int, str, str]:
        with pytest.raises(SystemExit) as e:
            main(arguments)
        out, err = capsys.readouterr()
        return int(e.value.code or 0), out, err

    return run


@pytest.fixture(scope="session")
def shipped(tmp_path_factory: pytest.TempPathFactory) -> Path:
    home = tmp_path_factory.mktemp("shipped") / "home"
    redhost.Host.open(home, plugins=redhost.plugins.Plugins(())).recompose()
    return home


@pytest.fixture
def home(shipped: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A home with the shipped experts composed, which commands use by default."""
    home = tmp_path / "home"
    shutil.copytree(shipped, home)
    monkeypatch.setenv("REDHOST_HOME", str(home))
    return home


@pytest.fixture
def digests(home: Path) -> dict[str, str]:
    """Digest by id of what is composed; the backbone's under ``backbone``."""
    record = Generations(home).load(1)
    return {**record.members(), "backbone": record.backbone.digest}


@pytest.fixture(scope="session")
def keys(tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[Path, Path]]:
    """The private and the public key of two publishers."""
    folder = tmp_path_factory.mktemp("keys")
    return {n: (folder / f"{n}.pem", new_key(folder / f"{n}.pem")) for n in ("ours", "theirs")}


@dataclass
class Published:
    """A list at an index, and who signs it."""

    folder: Path
    url: str
    keys: dict[str, tuple[Path, Path]]

    @property
    def path(self) -> Path:
        return self.folder / "revoked.json"

    def revoke(self, *digests: str, by: str = "ours", withdraw: bool = False) -> bytes:
        for digest in digests:
            edit_list(
                self.path,
                Target(digest=digest),
                key=self.keys[by][0],
                reason="leaks rows",
                withdraw=withdraw,
            )
        return self.path.read_bytes()

    def change(self, **fields: Any) -> None:
        self.path.write_text(json.dumps({**json.loads(self.path.read_bytes()), **fields}))

    def is_named_in(self, text: str, by: str = "ours") -> bool:
        """Return whether a line names the key that revoked."""
        return sha256_hex(self.keys[by][1].read_bytes())[:12] in text

    def public(self, by: str = "ours") -> str:
        return str(self.keys[by][1])


@pytest.fixture
def published(keys: dict[str, tuple[Path, Path]], tmp_path: Path) -> Iterator[Published]:
    """An index over HTTP whose list is `path`."""
    folder = tmp_path / "www" / "simple"
    folder.mkdir(parents=True)

    class Handler(SimpleHTTPRequestHandler):
        def log_message(self, format: str, *args: Any) -> None:  # noqa: A002
            """Say nothing."""

    http = ThreadingHTTPServer(
        ("127.0.0.1", 0), functools.partial(Handler, directory=str(tmp_path / "www"))
    )
    threading.Thread(target=http.serve_forever, args=(0.01,), daemon=True).start()
    yield Published(folder, f"http://127.0.0.1:{http.server_port}/simple", keys)
    http.shutdown()
    http.server_close()
