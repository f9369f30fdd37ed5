"""`redhost search`: experts by words, from a file, a folder or an index."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import msgspec
import pytest
from redhost_index.catalogue import write_catalogue
from redhost_index.find import search
from redhost_index.reading import catalogue_at
from redhost_index.schema import CATALOGUE, Catalogue, StaticCheck, Version, decode

import redhost
from redhost.registry.errors import InstallError, MissingError, StoreError
from redhost.registry.home.generations import Generations
from redhost.registry.home.revoked import Revocation, Revocations, RevokedList

PRINT = "c67d8e0db53588867d3f0f9f17cd41783738370a33d11870164de9e136bcb925"


def version(name: str, number: str = "0.1.0", **fields: Any) -> Version:
    given: dict[str, Any] = {
        "file": f"red_expert_{name}-{number}-py3-none-any.whl",
        "sha256": "0" * 64,
        "size": 1,
        "uploaded": "2026-01-01T00:00:00+00:00",
        "kind": "expert",
        "id": name,
        "dist": f"red-expert-{name}",
        "version": number,
        "fingerprint": PRINT,
        "bus_api": ">=1,<2",
        "check": StaticCheck(redhost=redhost.__version__),
    }
    return Version(**{**given, **fields})


def catalogue(*versions: Version) -> Catalogue:
    return Catalogue(redhost=redhost.__version__, versions=versions)


def test_every_word_has_to_be_there_and_ids_come_first(tmp_path: Path) -> None:
    listed = catalogue(
        version("by-label", labels=("Refund",)),
        version("by-domain", domain="refund requests of customers"),
        version("refund", "0.2.0"),
        version("refund", "0.1.0", domain="customers"),
        version("Fr_Legal.x", domain="contracts", dist="Red_Expert.fr--legal"),
    )
    found = search(listed, ["REFUND"], home=tmp_path)
    assert [x.id for x in found] == ["refund", "by-domain", "by-label"]
    assert found[0].version == "0.2.0"
    assert [x.id for x in search(listed, ["refund", "customers"], home=tmp_path)] == ["by-domain"]
    assert [x.id for x in search(listed, ["red-expert-fr-legal"], home=tmp_path)] == ["Fr_Legal.x"]
    assert search(listed, ["nothing"], home=tmp_path) == ()


def test_of_several_versions_the_newest_that_fits(tmp_path: Path) -> None:
    away = {"fingerprint": "1" * 64}
    listed = catalogue(
        version("a", "0.4.0", **away),
        version("a", "0.3.0"),
        version("a", "0.2.0"),
        version("b", "0.4.0", **away),
        version("b", "0.3.0", **away),
    )
    found = search(listed, ["red"], home=tmp_path)
    assert {x.id: (x.version, x.fits) for x in found} == {
        "a": ("0.3.0", True),
        "b": ("0.4.0", False),
    }


def test_a_revoked_version_is_marked_and_another_preferred(tmp_path: Path) -> None:
    entries = tuple(
        Revocation(digest=f"{n}" * 64, dist=dist, version=v, reason="leaks", revoked_at="now")
        for n, (dist, v) in enumerate((("Red_Expert.A", "0.3.0"), ("red-expert-b", "0.1")))
    )
    generations = Generations(tmp_path)
    with generations.writer():
        lists = {"1" * 64: RevokedList(serial=1, entries=entries)}
        generations.store.write_revocations(Revocations(lists=lists))
    listed = catalogue(
        version("a", "0.3.0"),
        version("a", "0.2.0", fingerprint="1" * 64),
        version("a", "0.1.0"),
        version("b", "0.1.0"),
        version("c", "0.2.0", digest="0" * 64),  # of the first entry, under another name
        version("c", "0.1.0", digest="7" * 64),
        version("d", digest="1" * 64),
    )
    found = search(listed, ["red"], home=tmp_path)
    assert {x.id: (x.version, x.revoked) for x in found} == {
        "a": ("0.1.0", None),
        "b": ("0.1.0", "leaks"),
        "c": ("0.1.0", None),
        "d": ("0.1.0", "leaks"),
    }


def test_what_fits_the_backbone(tmp_path: Path) -> None:
    """Nothing is composed: the only installed backbone counts."""
    newer = StaticCheck(redhost="9.9.0", code="manifest_newer", reason="r")
    bad = StaticCheck(redhost=redhost.__version__, code="weights_digest", reason="changed")
    strict = StaticCheck(redhost=redhost.__version__, code="strict", reason="lacks rows")
    listed = catalogue(
        version("a"),
        version("b", fingerprint="1" * 64, backbone="large"),
        version("c", bus_api=">=7"),
        version("d", check=newer),
        version("e", check=bad),
        version("f", check=strict),
    )
    found = {x.id: x for x in search(listed, ["red-expert"], home=tmp_path)}
    fits = {i: x.fits for i, x in found.items()}
    assert fits == {"a": True, "b": False, "c": False, "d": None, "e": False, "f": True}
    assert "large" in found["b"].why and "bus_api" in found["c"].why
    assert "weights_digest" in found["e"].why


def test_a_catalogue_is_found_in_a_file_a_folder_and_an_index(
    version_of: Any, serve: Any, tmp_path: Path
) -> None:
    (wheels := tmp_path / "wheels").mkdir()
    version_of("a", "0.1.0").write(wheels)
    write_catalogue(wheels)
    (wheels / "simple").mkdir()
    index = serve(wheels)
    places = (wheels / CATALOGUE, wheels, wheels / "simple", (wheels / "simple").as_uri())
    addresses = (index.url, index.url.removesuffix("/simple"), f"{index.url}/")
    for place in (*map(str, places), *addresses):
        [entry] = catalogue_at(place, timeout=5.0).versions
        assert entry.id == "a", place
    with pytest.raises(MissingError, match=r"no catalogue\.json"):
        catalogue_at(f"{index.url}/other", timeout=5.0)
    with pytest.raises(MissingError, match=r"no catalogue\.json"):
        catalogue_at(str(tmp_path), timeout=5.0)
    (wheels / CATALOGUE).write_text("<html>not an index</html>")
    with pytest.raises(StoreError, match=r"expected redhost\.catalogue/1"):
        catalogue_at(index.url, timeout=5.0)


def test_an_index_that_is_gone_is_one_line_without_the_password(serve: Any, tmp_path: Path) -> None:
    index = serve(tmp_path)
    index.http.shutdown()
    index.http.server_close()
    secret = index.url.replace("http://", "http://me:secret@")
    with pytest.raises(InstallError) as e:
        catalogue_at(secret, timeout=2.0)
    assert "secret" not in str(e.value) and "\n" not in str(e.value)


SLOW = {"torch", "numpy", "jinja2", "redhost_author"}
"""What a search would take longer to import than to do."""


def run(*arguments: str, home: Path) -> subprocess.CompletedProcess[str]:
    check = "import sys; import redhost_index.cli as c\n"
    check += f"try: c.search()\nfinally: print({SLOW} & sys.modules.keys(), file=sys.stderr)"
    return subprocess.run(
        [sys.executable, "-c", check, *arguments, "--home", str(home)],
        check=False,
        capture_output=True,
        text=True,
        cwd=home,
    )


def test_the_command_prints_matches_and_imports_nothing_slow(tmp_path: Path) -> None:
    escape = "\x1b[31mred\x1b[0m tickets"
    listed = catalogue(*(version(f"team-{n}", domain=escape) for n in range(1000)))
    (tmp_path / CATALOGUE).write_bytes(msgspec.json.encode(listed))
    assert len(decode((tmp_path / CATALOGUE).read_bytes(), "there").versions) == 1000
    done = run("tickets", "--json", "--limit", "3", "--catalogue", ".", home=tmp_path)
    assert (done.returncode, done.stderr) == (0, "set()\n")
    assert [x["id"] for x in json.loads(done.stdout)] == ["team-0", "team-1", "team-2"]
    done = run("tickets", home=tmp_path)
    assert "20 of 1000 experts" in done.stdout and "\x1b[31m" not in done.stdout
    assert run("nothing", home=tmp_path).returncode == 1
