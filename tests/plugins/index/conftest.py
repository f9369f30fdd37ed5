"""An index that a real server serves, and a project that was composed from it."""

from __future__ import annotations

import hashlib
import importlib.util
import json
import shutil
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors.numpy
from release import write_index

TEXTS = ("What is 37 plus 12?", "What is 50 plus 49?", "What is 8 plus 9?")
SHARED = {"real.pth", "__pycache__"}


class Recording(SimpleHTTPRequestHandler):
    """Serves a folder, and writes down what was requests for."""

    def log_request(self, code: Any = "-", size: Any = "-") -> None:
        self.server.requests.append(self.path)

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002
        """Say nothing."""


@dataclass
class Served:
    """A folder of wheels with its pages, and its address."""

    folder: Path
    http: ThreadingHTTPServer

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.http.server_port}/simple"

    @property
    def requests(self) -> list[str]:
        return self.http.requests

    def page(self, dist: str) -> Path:
        return self.folder / "simple" / dist / "index.html"

    def edit(self, dist: str, old: str, new: str) -> None:
        """Change a project's page."""
        text = self.page(dist).read_text()
        assert old in text
        self.page(dist).write_text(text.replace(old, new))


@pytest.fixture(scope="session")
def serve() -> Iterator[Callable[[Path], Served]]:
    """Return the function that serves a folder."""
    servers = list[ThreadingHTTPServer]()

    def start(folder: Path) -> Served:
        handler = partial(Recording, directory=str(folder))
        http = ThreadingHTTPServer(("127.0.0.1", 0), handler)
        http.requests = []
        threading.Thread(target=http.serve_forever, daemon=True).start()
        servers.append(http)
        return Served(folder, http)

    yield start
    for http in servers:
        http.shutdown()
        http.server_close()


@pytest.fixture(scope="session")
def version_of(draft: Any) -> Callable[..., Any]:
    """Return the function that drafts a version of an expert with the content of a shipped one."""

    def make(expert_id: str, version: str, *, of: str = "range3", **changes: Any) -> Any:
        made = draft(expert_id, version=version)
        folder = Path(importlib.util.find_spec(f"red_expert_{of}").origin).parent
        content = {p.name: p.read_bytes() for p in folder.iterdir() if p.is_file()}
        manifest = json.loads(content["expert.json"])
        manifest |= {"id": expert_id, "off_domain": None, **changes}
        content["expert.json"] = json.dumps(manifest).encode()
        made.members |= {f"{made.module}/{name}": data for name, data in content.items()}
        return made

    return make


def opposite(made: Any) -> Any:
    """Return a draft whose expert says the opposite; canary and manifest agree with it."""
    names = {name.rpartition("/")[2]: name for name in made.members}
    manifest = json.loads(made.members[names["expert.json"]])
    for file, tensor, role in (
        ("expert.safetensors", "V", "weights"),
        ("canary.safetensors", "delta", "canary"),
    ):
        tensors = safetensors.numpy.load(made.members[names[file]])
        tensors[tensor] = np.ascontiguousarray(-tensors[tensor])
        data = safetensors.numpy.save(tensors)
        made.members[names[file]] = data
        manifest[role]["sha256"] = hashlib.sha256(data).hexdigest()
    made.members[names["expert.json"]] = json.dumps(manifest).encode()
    return made


@dataclass
class World:
    """An environment whose composition came from an index that has newer versions now."""

    venv: Any
    index: Served
    saved: Path
    home: Path

    def run(self, *arguments: str) -> Any:
        return self.venv.run(*arguments, home=self.home)

    def json(self, *arguments: str, code: int = 0) -> Any:
        done = self.run(*arguments, "--json")
        assert done.returncode == code, done.stderr
        return json.loads(done.stdout)

    def predict(self) -> Any:
        return [{**x, "generation": None} for x in self.json("predict", *TEXTS)]

    def lock(self) -> Any:
        return json.loads((self.home / "redhost.lock").read_bytes())

    def versions(self) -> dict[str, str]:
        """Return what is installed of the index's experts."""
        names = (p.name.removesuffix(".dist-info") for p in self.venv.site.glob("*.dist-info"))
        return dict(sorted(name.split("-") for name in names))

    def reset(self) -> None:
        """Put environment and home back as they were composed."""
        for path in self.venv.site.iterdir():
            if path.name not in SHARED:
                shutil.rmtree(path) if path.is_dir() else path.unlink()
        shutil.rmtree(self.home)
        shutil.copytree(self.saved / "site", self.venv.site, dirs_exist_ok=True)
        shutil.copytree(self.saved / "home", self.home)
        self.restore_index()

    def restore_index(self) -> None:
        shutil.rmtree(self.index.folder)
        shutil.copytree(self.saved / "index", self.index.folder)
        self.index.requests.clear()


@pytest.fixture(scope="module")
def composed(make_venv: Any, version_of: Any, serve: Any, tmp_path_factory: Any) -> World:
    folder = tmp_path_factory.mktemp("world")
    venv, home = make_venv(folder / "venv"), folder / "home"
    (wheels := folder / "index").mkdir()
    version_of("extra", "0.1.0").write(wheels)
    version_of("more", "0.1.0", of="range4").write(wheels)
    write_index(wheels)
    index = serve(wheels)
    names = ("red-expert-extra", "red-expert-more")
    done = venv.session(*(("add", x, "--index-url", index.url) for x in names), home=home)
    assert [code for code, _, _ in done] == [0, 0], done
    version_of("extra", "0.2.0", domain="sums, better").write(wheels)
    opposite(version_of("extra", "0.3.0")).write(folder)  # put into the index by tests of harm
    version_of("more", "0.2.0", of="range4", domain="other sums, better").write(wheels)
    other = {"name": "tiny", "fingerprint": "0" * 64}
    version_of("more", "0.3.0", of="range4", backbone=other).write(wheels)
    write_index(wheels)
    saved = folder / "saved"
    shutil.copytree(wheels, saved / "index")
    shutil.copytree(home, saved / "home")
    ignored = shutil.ignore_patterns(*SHARED)
    shutil.copytree(venv.site, saved / "site", ignore=ignored)
    return World(venv, index, saved, home)


@pytest.fixture
def world(composed: World) -> Iterator[World]:
    """The world as it was composed: extra and more in 0.1.0."""
    composed.reset()
    yield composed


@pytest.fixture
def harmful(world: World) -> World:
    """The world, and an update in its index that does harm."""
    name = "red_expert_extra-0.3.0-py3-none-any.whl"
    shutil.copy(world.index.folder.parent / name, world.index.folder)
    write_index(world.index.folder)
    return world
