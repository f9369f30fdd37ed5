"""`redhost catalogue`: what the wheels of a folder say, without importing or running them."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import msgspec
import pytest
from click.testing import CliRunner
from redhost_author.disclosure import card_discloses
from redhost_author.signing import make_signer, new_key
from redhost_index.catalogue import write_catalogue
from redhost_index.cli import catalogue
from redhost_index.schema import CATALOGUE, PAGE, Catalogue, Version, decode
from redhost_sync.index import read_page

from redhost.registry.errors import MissingError, StoreError
from redhost.registry.package.manifest import parse_expert
from redhost.registry.package.safetensors_check import sha256_hex
from redhost.registry.wheel.signing import read_keys
from redhost.registry.wheel.wheel import open_wheel

BACKBONE = Path(__file__).parents[3] / "plugins/red-backbone-tiny/src/red_backbone_tiny"


def read(folder: Path) -> dict[str, Version]:
    listed = decode((folder / CATALOGUE).read_bytes(), CATALOGUE)
    return {Path(v.file).name.rpartition("-py3")[0]: v for v in listed.versions}


def backbone_wheel(draft: Any, folder: Path) -> Path:
    made = draft("tiny")
    made.dist = "red-backbone-tiny"
    info = {n: d for n, d in made.members.items() if ".dist-info" in n}
    files = {f"{made.module}/{p.name}": p.read_bytes() for p in BACKBONE.iterdir() if p.is_file()}
    metadata = b"Metadata-Version: 2.1\nName: red-backbone-tiny\nVersion: 0.1.0\n"
    made.members = files | {f"{made.info}/{n.rpartition('/')[2]}": d for n, d in info.items()}
    made.members[f"{made.info}/METADATA"] = metadata
    made.members[f"{made.info}/entry_points.txt"] = (
        b"[redhost.backbones]\ntiny = red_backbone_tiny\n"
    )
    return made.write(folder)


def test_an_entry_says_what_the_wheel_says(version_of: Any, tmp_path: Path) -> None:
    path = version_of("sums", "1.2.0", domain="sums <b>& more</b>", license="MIT").write(tmp_path)
    done = write_catalogue(tmp_path)
    assert (done.versions, done.experts, done.unchanged, done.others) == (1, 1, 0, 0)
    entry = read(tmp_path)["red_expert_sums-1.2.0"]
    manifest = parse_expert(
        version_of("sums", "1.2.0").members["red_expert_sums/expert.json"]
    ).value
    assert entry.sha256 == sha256_hex(path.read_bytes()) and entry.size == path.stat().st_size
    assert (entry.id, entry.dist, entry.version) == ("sums", "red-expert-sums", "1.2.0")
    assert entry.digest == open_wheel(path).expert.value.digest
    assert (entry.kind, entry.backbone, entry.question) == ("expert", "tiny", "")
    assert entry.fingerprint == manifest.backbone.fingerprint
    assert entry.labels == manifest.labels[:12] and entry.label_count == len(manifest.labels)
    assert (entry.accuracy, entry.gate_rows) == (1.0, manifest.card.gate)
    assert entry.discloses == card_discloses(manifest) and entry.license == "MIT"
    assert (entry.signature, entry.signer) == ("none", "")
    assert (entry.check.code, entry.check.against) == ("", "")
    page = (tmp_path / PAGE).read_text()
    assert "sums &lt;b&gt;&amp; more&lt;/b&gt;" in page and "<b>" not in page
    assert re.findall(r'(?:src|href)="([^"]*)"', page) == [f"./{path.name}"]
    assert "http:" not in page and "https:" not in page and "color-scheme: light dark" in page


def test_what_only_a_strict_check_refuses_can_be_composed(version_of: Any, tmp_path: Path) -> None:
    version_of("sums", "1.2.0", license="").write(tmp_path)
    assert write_catalogue(tmp_path).refused == {}
    check = read(tmp_path)["red_expert_sums-1.2.0"].check
    assert check.code == "strict" and "license" in check.reason and check.composable


def test_equal_wheels_give_equal_bytes_and_are_read_once(version_of: Any, tmp_path: Path) -> None:
    first = tmp_path / "first"
    first.mkdir()
    for name, version in (("b", "0.1.0"), ("a", "0.9.0"), ("a", "0.10.0"), ("a", "0.10.0rc1")):
        version_of(name, version).write(first)
    other = first / "six-1.0-py3-none-any.whl"
    other.write_bytes((first / "red_expert_b-0.1.0-py3-none-any.whl").read_bytes())
    strip_entry_points(other)
    write_catalogue(first)
    second = Path(shutil.copytree(first, tmp_path / "second"))
    (second / CATALOGUE).unlink()
    assert write_catalogue(second).unchanged == 0
    assert (second / CATALOGUE).read_bytes() == (first / CATALOGUE).read_bytes()
    assert (second / PAGE).read_bytes() == (first / PAGE).read_bytes()
    assert [*read(first)] == [
        "red_expert_a-0.10.0",
        "red_expert_a-0.10.0rc1",
        "red_expert_a-0.9.0",
        "red_expert_b-0.1.0",
    ]
    os.utime(first / "red_expert_b-0.1.0-py3-none-any.whl", (0, 0))
    done = write_catalogue(first)
    assert (done.unchanged, done.others) == (4, 1)
    assert (second / CATALOGUE).read_bytes() == (first / CATALOGUE).read_bytes()
    version_of("b", "0.1.0", domain="another").write(first)
    (first / "red_expert_a-0.9.0-py3-none-any.whl").unlink()
    done = write_catalogue(first)
    assert (done.versions, done.unchanged) == (3, 2)
    assert read(first)["red_expert_b-0.1.0"].domain == "another"


def strip_entry_points(path: Path) -> None:
    import zipfile

    with zipfile.ZipFile(path) as archive:
        members = {n: archive.read(n) for n in archive.namelist() if "entry_points" not in n}
    with zipfile.ZipFile(path, "w") as archive:
        for name, data in members.items():
            archive.writestr(name, data)


def test_a_former_catalogue_is_not_believed_blindly(version_of: Any, tmp_path: Path) -> None:
    """Another redhost, another schema or a broken file: everything is read anew."""
    version_of("a", "0.1.0").write(tmp_path)
    write_catalogue(tmp_path)
    good = (tmp_path / CATALOGUE).read_bytes()
    listed = decode(good, CATALOGUE)
    old = msgspec.structs.replace(listed.versions[0].check, redhost="0.0.9", code="bus_api")
    former = msgspec.structs.replace(listed.versions[0], check=old)
    for content in (
        msgspec.json.encode(Catalogue(redhost="0.0.9", versions=(former,))),
        good.replace(b"catalogue/1", b"catalogue/2"),
        good[: len(good) // 2],
    ):
        (tmp_path / CATALOGUE).write_bytes(content)
        assert write_catalogue(tmp_path).unchanged == 0
        assert (tmp_path / CATALOGUE).read_bytes() == good


def test_experts_are_checked_against_the_backbone_of_the_folder(
    version_of: Any, draft: Any, tmp_path: Path
) -> None:
    other = {"name": "tiny", "fingerprint": "0" * 64}
    version_of("a", "0.1.0").write(tmp_path)
    version_of("b", "0.1.0", backbone=other).write(tmp_path)
    write_catalogue(tmp_path)
    assert read(tmp_path)["red_expert_a-0.1.0"].check.against == ""
    backbone_wheel(draft, tmp_path)
    assert write_catalogue(tmp_path).unchanged == 1  # b, whose backbone is still not there
    found = read(tmp_path)
    assert found["red_backbone_tiny-0.1.0"].kind == "backbone"
    assert found["red_backbone_tiny-0.1.0"].check.code == ""
    assert found["red_expert_a-0.1.0"].check.against == "red-backbone-tiny 0.1.0"
    assert found["red_expert_b-0.1.0"].check.against == ""
    version_of("c", "0.1.0", labels=["no such label"]).write(tmp_path)
    write_catalogue(tmp_path)
    assert read(tmp_path)["red_expert_c-0.1.0"].check.code != ""


def test_a_wheel_that_is_refused_is_listed_with_the_reason(draft: Any, tmp_path: Path) -> None:
    marker = tmp_path / "imported"
    code = f"open({str(marker)!r}, 'w')".encode()
    hostile = draft("code")
    hostile.members["red_expert_code/__init__.py"] = code
    hostile.members["red_expert_code/extra.py"] = code
    hostile.write(tmp_path)
    lying = draft("lie")
    lying.listed["red_expert_lie/expert.json"] = b"{}"
    lying.write(tmp_path)
    (tmp_path / "red_expert_broken-2.0-py3-none-any.whl").write_bytes(b"no zip")
    done = write_catalogue(tmp_path)
    found = read(tmp_path)
    assert found["red_expert_code-0.1.0"].check.code == "data_code" and not marker.exists()
    assert found["red_expert_lie-0.1.0"].check.code == "record_digest"
    broken = found["red_expert_broken-2.0"]
    assert (broken.kind, broken.dist, broken.version) == ("unreadable", "red-expert-broken", "2.0")
    assert broken.check.code == "archive_broken"
    assert len(done.refused) == 3 and done.experts == 0
    assert write_catalogue(tmp_path).unchanged == 0  # those are read each time


def test_who_signed_a_wheel(version_of: Any, tmp_path: Path) -> None:
    (wheels := tmp_path / "wheels").mkdir()
    paths = [version_of(name, "0.1.0").write(wheels) for name in ("a", "b", "c")]
    public = new_key(tmp_path / "author.pem")
    keys = read_keys([public])
    sign = make_signer(tmp_path / "author.pem")
    for path in paths[:2]:
        sign(path)
    version_of("b", "0.1.0", domain="changed after it was signed").write(wheels)
    write_catalogue(wheels)
    claimed = [(v.signature, v.signer) for v in read(wheels).values()]
    assert claimed == [("claimed", keys[0].fingerprint)] * 2 + [("none", "")]
    assert write_catalogue(wheels, keys=keys).unchanged == 3
    verified = [(v.signature, v.signer) for v in read(wheels).values()]
    assert verified == [("verified", keys[0].fingerprint), ("wrong", ""), ("none", "")]


def test_folders_without_wheels_and_other_schemas(tmp_path: Path) -> None:
    with pytest.raises(MissingError, match="no wheel"):
        write_catalogue(tmp_path)
    with pytest.raises(MissingError, match="no folder"):
        write_catalogue(tmp_path / "gone")
    assert [*tmp_path.iterdir()] == []
    for data, found in (
        (b'{"schema": "redhost.catalogue/2"}', "redhost.catalogue/2"),
        (b"<html>", "malformed"),
        (b"[" * 100_000, "got `array`"),
    ):
        with pytest.raises(StoreError, match=re.escape(found)):
            decode(data, "there")


def test_the_command_needs_no_torch(version_of: Any, tmp_path: Path) -> None:
    version_of("a", "0.1.0").write(tmp_path)
    check = "import sys; import redhost_index.cli as c\n"
    check += "try: c.catalogue()\nfinally: print('torch' in sys.modules)"
    done = subprocess.run(
        [sys.executable, "-c", check, str(tmp_path), "--json"],
        check=False,
        capture_output=True,
        text=True,
        cwd=tmp_path,
    )
    assert done.returncode == 0, done.stderr
    printed, _, torch = done.stdout.rstrip().rpartition("\n")
    assert json.loads(printed)["experts"] == 1 and torch == "False"


def test_an_index_for_pip_has_every_readable_wheel_and_nothing_that_is_gone(
    version_of: Any, make_venv: Any, tmp_path: Path
) -> None:
    """The real pip installs from its pages; projects of others stay."""
    (wheels := tmp_path / "wheels").mkdir()
    for number in ("0.1.0", "0.2.0"):
        version_of("sums", number).write(wheels)
    late = version_of("late", "0.1.0").write(wheels)
    (wheels / "red_expert_bad-0.1.0-py3-none-any.whl").write_bytes(b"no zip")
    (other := wheels / "simple" / "somebodys" / "index.html").parent.mkdir(parents=True)
    other.write_text("<title>Links for somebodys</title>")
    done = write_catalogue(wheels, simple=True)
    assert done.projects == 2
    pages = {p.parent.name for p in (wheels / "simple").glob("*/index.html")}
    assert pages == {"red-expert-sums", "red-expert-late", "somebodys"}
    venv = make_venv(tmp_path / "venv")
    options = ("--no-deps", "--index-url", (wheels / "simple").as_uri())
    assert venv.pip("install", *options, "red-expert-sums<0.2").returncode == 0
    assert (venv.site / "red_expert_sums-0.1.0.dist-info").is_dir()
    page = wheels / "simple" / "red-expert-sums" / "index.html"
    page.write_text(page.read_text().replace("sha256=", "sha256=0"))
    assert venv.pip("install", *options, "-U", "red-expert-sums").returncode != 0
    late.unlink()
    assert write_catalogue(wheels, simple=True).projects == 1
    pages = {p.parent.name for p in (wheels / "simple").glob("*/index.html")}
    assert pages == {"red-expert-sums", "somebodys"}
    assert venv.pip("install", *options, "-U", "red-expert-sums").returncode == 0
    assert (venv.site / "red_expert_sums-0.2.0.dist-info").is_dir()


def test_a_wheel_that_a_page_marks_as_yanked_stays_so(version_of: Any, tmp_path: Path) -> None:
    for number in ("0.1.0", "0.2.0"):
        version_of("sums", number).write(tmp_path)
    write_catalogue(tmp_path, simple=True)
    page, name = tmp_path / "simple" / "red-expert-sums" / "index.html", "red_expert_sums-0.2.0"
    marked = 'data-yanked="rows &quot;leaked&quot;"'
    page.write_text(page.read_text().replace(f'href="../../{name}', f'{marked} href="../../{name}'))
    version_of("sums", "0.3.0").write(tmp_path)
    write_catalogue(tmp_path, simple=True)
    links = read_page(tmp_path / "simple", "red-expert-sums").links
    assert [link.yanked for link in links] == [None, 'rows "leaked"', None]


def test_a_folder_without_experts_has_a_next_step(draft: Any, tmp_path: Path) -> None:
    backbone_wheel(draft, tmp_path)
    done = CliRunner().invoke(catalogue, [str(tmp_path)])
    assert (done.exit_code, done.stderr.count("\n")) == (0, 1) and "'redhost pack" in done.stderr
    assert done.stdout.startswith("1 version, 0 of experts, 0 unchanged, and 0 other wheels in ")
