"""A backbone whose model another distribution has: that one comes along from the same source."""

from __future__ import annotations

import json
import shutil
from contextlib import nullcontext
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any

import pytest
from redhost_sync.dependencies import with_dependencies
from redhost_sync.fetched import fetch_part
from redhost_sync.install import require_installable
from redhost_sync.locks import Part, parts_of, read_locks
from redhost_sync.sources import FolderSource, source_at

from redhost.registry.errors import ContractError, IntegrityError, MissingError, StoreError
from redhost.registry.package.manifest import parse_backbone
from redhost.registry.package.rules import package_digest
from redhost.registry.package.safetensors_check import sha256_hex

ROOT = Path(__file__).parents[3]
TINY = ROOT / "plugins" / "red-backbone-tiny" / "src" / "red_backbone_tiny"
MODEL, DIST = "redhost-sync-model", "red-backbone-apart"


def described(dist: str, version: str, entry: str = "") -> dict[str, bytes]:
    """Return the metadata of a wheel."""
    info = f"{dist.replace('-', '_')}-{version}.dist-info"
    metadata = f"Metadata-Version: 2.1\nName: {dist}\nVersion: {version}\n"
    wheel = "Wheel-Version: 1.0\nGenerator: t\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
    files = {"METADATA": metadata, "WHEEL": wheel} | ({"entry_points.txt": entry} if entry else {})
    return {f"{info}/{name}": text.encode() for name, text in files.items()}


@pytest.fixture
def part(draft: Any, tmp_path: Path) -> Part:
    """Write the wheels of a backbone and of its model, and return the lock's part of the first."""
    manifest = json.loads((TINY / "backbone.json").read_bytes())
    names = manifest["base"]["files"]
    folder = "redhost_sync_model/files"
    manifest["base"] |= {"kind": "dist", "id": f"{MODEL}/{folder}", "revision": "==1.0"}
    raw = json.dumps(manifest).encode()
    rest = {p.name: p.read_bytes() for p in TINY.iterdir() if p.is_file() and p.name not in names}
    module = DIST.replace("-", "_")
    entry = f"[redhost.backbones]\n{manifest['id']} = {module}\n"
    wheels = {
        (MODEL, "1.0"): {f"{folder}/{n}": (TINY / n).read_bytes() for n in names},
        (DIST, "0.1.0"): {f"{module}/{n}": d for n, d in (rest | {"backbone.json": raw}).items()},
    }
    for (dist, version), members in wheels.items():
        made = type(draft("any"))(dist, {}, version)
        made.members = members | described(dist, version, entry if dist == DIST else "")
        made.write(tmp_path)
    digest = package_digest(raw, parse_backbone(raw).unwrap("it"))
    return Part(kind="backbone", id=manifest["id"], dist=DIST, version="0.1.0", digest=digest)


def test_a_folder_with_a_page_for_each_project_offers_what_its_pages_link_to(tmp_path) -> None:
    name, folder = "red_expert_a-0.1.0-py3-none-any.whl", tmp_path / "with a blank" / "simple"
    (folder / "red-expert-a").mkdir(parents=True)
    (folder.parent / name).write_bytes(b"wheel")
    links = f'<a href="../../{name}#sha256={"0" * 64}">{name}</a><a href="http://x/{name}">x</a>'
    (folder / "red-expert-a" / "index.html").write_text(f"<title>Links for a</title>{links}")
    for place in (str(folder), folder.as_uri()):
        [offer] = source_at(place).offers("red.expert_A")
        assert (offer.file, offer.sha256, offer.read()) == (name, "0" * 64, b"wheel")
        assert source_at(place).offers("red-expert-b") == ()
    for page in ('<title>Links for a</title><a href="http://[bad">a</a>', "<title>Log in</title>"):
        (folder / "red-expert-a" / "index.html").write_text(page)
        with pytest.raises(StoreError, match="cannot read"):
            source_at(str(folder)).offers("red-expert-a")


def test_the_model_comes_along_and_is_held_to_the_backbones_digests(part, draft, tmp_path) -> None:
    one = fetch_part(part, [FolderSource(tmp_path)])
    assert one.backbone.digest == part.digest and one.base is not None
    complete = with_dependencies([one], [])
    assert [(x.part.kind, x.part.dist, x.part.version) for x in complete] == [
        ("dependency", MODEL, "1.0"),
        ("backbone", DIST, "0.1.0"),
    ]
    other = type(draft("any"))(MODEL, {}, "1.0")
    other.members = {"redhost_sync_model/files/config.json": b"{}"} | described(MODEL, "1.0")
    other.write(tmp_path)
    with pytest.raises(IntegrityError):
        fetch_part(part, [FolderSource(tmp_path)])


def test_a_backbone_that_pip_was_given_by_its_path_is_in_the_lock(
    make_venv, draft, tmp_path
) -> None:
    venv, module, version = make_venv(tmp_path / "venv"), "red_backbone_tiny", "0.1.0"
    made = type(draft("any"))(module.replace("_", "-"), {}, version)
    made.members = {f"{module}/{p.name}": p.read_bytes() for p in TINY.iterdir() if p.is_file()}
    made.members |= described(made.dist, version, f"[redhost.backbones]\ntiny = {module}\n")
    (tmp_path / "dist").mkdir()
    wheel = made.write(tmp_path / "dist")
    assert venv.install(wheel).returncode == 0
    home = tmp_path / "home"
    assert venv.run("recompose", home=home).returncode == 0
    backbone = json.loads((home / "redhost.lock").read_bytes())["backbone"]
    assert (backbone["source"], backbone["wheel"]) == (
        f"../dist/{wheel.name}",
        sha256_hex(wheel.read_bytes()),
    )
    assert parts_of(read_locks(home))[0].source == str(wheel)
    venv.pip("uninstall", "--yes", made.dist)  # that of the environment below has no wheel
    again = venv.run("recompose", "--json", home=home)
    assert json.loads(again.stdout)["generation"] == 1, again.stderr
    assert fetch_part(parts_of(read_locks(home))[0], [FolderSource(wheel.parent)]).wheel


def test_a_model_that_the_source_lacks_comes_from_pips_index(part, tmp_path, monkeypatch) -> None:
    [wheel] = tmp_path.glob("redhost_sync_model*.whl")
    index = tmp_path / "index"
    (index / MODEL).mkdir(parents=True)
    wheel.rename(index / MODEL / wheel.name)
    (index / MODEL / "index.html").write_text(f'<a href="{wheel.name}">{wheel.name}</a>', "utf-8")
    handler = partial(SimpleHTTPRequestHandler, directory=str(index))
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        Thread(target=server.serve_forever, daemon=True).start()
        monkeypatch.setenv("PIP_INDEX_URL", f"http://127.0.0.1:{server.server_port}")
        one = fetch_part(part, [FolderSource(tmp_path)])
        server.shutdown()
    assert one.backbone.digest == part.digest
    assert one.base is not None and one.base.source.startswith("http://127.0.0.1")


def test_without_its_model_a_line_says_what_to_install(part, tmp_path, monkeypatch) -> None:
    monkeypatch.setenv("PIP_INDEX_URL", "http://127.0.0.1:9")  # nobody listens there
    [wheel] = tmp_path.glob("redhost_sync_model*.whl")
    wheel.unlink()
    with pytest.raises(MissingError, match=f"{MODEL} 1.0"):
        fetch_part(part, [FolderSource(tmp_path)])


def test_a_model_that_is_missing_beside_its_installed_backbone_is_named_and_comes(
    part, make_venv, draft, tmp_path
) -> None:
    venv, home = make_venv(tmp_path / "venv"), tmp_path / "home"
    wheels = {p.name.partition("-")[0]: p for p in tmp_path.glob("*.whl")}
    model = wheels["redhost_sync_model"]
    for wheel in wheels.values():
        assert venv.install(wheel).returncode == 0
    done = venv.run("recompose", "--backbone", DIST, home=home)
    assert done.returncode == 0, done.stderr
    for path in venv.site.glob("redhost_sync_model*"):
        shutil.rmtree(path)
    (empty := tmp_path / "empty").mkdir()
    nowhere = {"PIP_INDEX_URL": "http://127.0.0.1:9"}  # nobody listens there
    done = venv.run("sync", "--from", str(empty), home=home, env=nowhere)
    assert (done.returncode, done.stderr.count("\n")) == (3, 1)
    assert f"{DIST} 0.1.0 is installed without its model, which {MODEL} 1.0 has" in done.stderr
    assert f"pip install --no-deps '{MODEL}==1.0'" in done.stderr
    other = type(draft("any"))(MODEL, {}, "1.0")
    other.members = {"redhost_sync_model/files/config.json": b"{}"} | described(MODEL, "1.0")
    other.write(empty)
    done = venv.run("sync", "--from", str(empty), home=home, env=nowhere)
    assert done.returncode == 1 and "others: " in done.stderr
    done = venv.run("sync", "--from", str(model.parent), home=home, env=nowhere)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith(f"installed    {MODEL} 1.0")


@pytest.mark.parametrize(
    ("top", "free"), [("redhost_sync_absent.libs/a.so", True), ("json/__init__.py", False)]
)
def test_names_in_the_site_folder_that_are_no_modules_import_nothing(
    draft, tmp_path, top, free
) -> None:
    made = type(draft("any"))(MODEL, {}, "1.0")
    made.members = {top: b""} | described(MODEL, "1.0")
    folder = FolderSource(made.write(tmp_path).parent)
    part = Part(kind="dependency", id=MODEL, dist=MODEL, version="1.0")
    with nullcontext() if free else pytest.raises(ContractError, match="'json' is taken"):
        require_installable(fetch_part(part, [folder]))
