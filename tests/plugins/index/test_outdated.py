"""`redhost outdated`: what an index has, which of it fits, and what was called back."""

from __future__ import annotations

import json
import socket
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from redhost_author.signing import make_signer, new_key
from redhost_index.catalogue import write_catalogue
from redhost_index.composed import InUse
from redhost_index.newcomer import fetch_newest
from redhost_index.outdated import Look, Standing, look
from redhost_index.schema import CATALOGUE
from release import write_index

from redhost.registry.errors import ContractError, IntegrityError, UsageError
from redhost.registry.package.discover import discover
from redhost.registry.queries.settings import installed_backbone
from redhost.registry.wheel.signing import read_keys

OTHER = {"name": "large", "fingerprint": "1" * 64}


@pytest.fixture
def index(version_of: Any, serve: Any, tmp_path: Path) -> Any:
    """An index with a newer version of `a` that fits, and one that does not."""
    (wheels := tmp_path / "wheels").mkdir()
    version_of("a", "0.1.0").write(wheels)
    version_of("a", "0.2.0", domain="better").write(wheels)
    version_of("a", "0.10.0", backbone=OTHER).write(wheels)
    version_of("a", "0.11.0rc1").write(wheels)
    version_of("b", "0.1.0").write(wheels)
    write_index(wheels)
    return serve(wheels)


@pytest.fixture
def using(tmp_path: Path) -> Callable[..., InUse]:
    """Return the function that makes a member of a composition on the tiny backbone."""
    [package] = [p for p in discover("backbone") if p.dist == "red-backbone-tiny"]
    backbone, _ = installed_backbone(package).unwrap("tiny")

    def make(name: str, version: str = "0.1.0", *, source: str = "") -> InUse:
        return InUse(
            kind="expert",
            id=name,
            dist=f"red-expert-{name}",
            version=version,
            home=tmp_path / "home",
            source=source,
            fingerprint=backbone.fingerprint,
            backbone=backbone,
        )

    return make


def standings(seen: Look) -> dict[str, Standing]:
    return {one.package.id: one.standing for one in seen.offered}


def downloads(index: Any) -> list[str]:
    return [path.rpartition("/")[2] for path in index.requests if path.endswith(".whl")]


def test_newer_versions_with_what_fits(index: Any, using: Any) -> None:
    seen = standings(look([using("a", source=index.url), using("b", source=index.url)]))
    a = seen["a"]
    assert [(n.version, n.fits) for n in a.newer] == [("0.10.0", False), ("0.2.0", True)]
    assert "backbone_mismatch" in a.newer[0].why and a.newest == "0.2.0"
    assert (a.source, a.listed, a.problem) == (index.url, True, "")
    assert seen["b"].newer == () and seen["b"].newest == ""
    assert sorted(downloads(index)) == [
        "red_expert_a-0.10.0-py3-none-any.whl",
        "red_expert_a-0.2.0-py3-none-any.whl",
    ]
    early = standings(look([using("a", "0.11.0a1")], place=index.url))["a"]
    assert [n.version for n in early.newer] == ["0.11.0rc1"]
    spelled = standings(look([using("a", source=index.url)], place=f"{index.url}/"))["a"]
    assert spelled.newest == "0.2.0"


def test_a_catalogue_saves_the_downloads(index: Any, using: Any) -> None:
    write_catalogue(index.folder)
    a = standings(look([using("a")], place=index.url))["a"]
    assert [(n.version, n.fits) for n in a.newer] == [("0.10.0", False), ("0.2.0", True)]
    assert "made for large" in a.newer[0].why and downloads(index) == []


def test_a_catalogue_that_lies_is_named_and_not_used(index: Any, using: Any) -> None:
    write_catalogue(index.folder)
    path = index.folder / CATALOGUE
    listed = json.loads(path.read_bytes())
    for entry in listed["versions"]:
        if entry["version"] == "0.10.0":
            entry |= {"sha256": "2" * 64, "fingerprint": using("a").fingerprint}
    path.write_text(json.dumps(listed))
    seen = look([using("a")], place=index.url)
    a = standings(seen)["a"]
    assert [(n.version, n.fits) for n in a.newer] == [("0.10.0", False), ("0.2.0", True)]
    [warning] = seen.warnings
    assert "another sha256" in warning and "0.10.0" in warning
    assert downloads(index) == ["red_expert_a-0.10.0-py3-none-any.whl"]
    path.write_text("{}")
    seen = look([using("a")], place=index.url)
    assert standings(seen)["a"].newest == "0.2.0"
    assert "redhost.catalogue/1" in seen.warnings[0]


def test_what_was_called_back_is_named_and_not_taken(index: Any, using: Any) -> None:
    """PEP 592, in HTML."""
    page = index.page("red-expert-a")
    text = page.read_text()
    for version, reason in (("0.1.0", ""), ("0.2.0", "leaks &amp; lies")):
        text = text.replace(
            f'<a href="../../red_expert_a-{version}-',
            f'<a data-yanked="{reason}" href="../../red_expert_a-{version}-',
        )
    page.write_text(text)
    a = standings(look([using("a")], place=index.url))["a"]
    assert a.yanked == "" and a.newest == ""
    assert {n.version: n.yanked for n in a.newer} == {"0.10.0": None, "0.2.0": "leaks & lies"}
    b = standings(look([using("b")], place=index.url))["b"]
    assert b.yanked is None


@pytest.mark.parametrize("first", [True, False], ids=["before", "after"])
def test_a_yanked_file_hides_no_other_file_of_its_version(index: Any, using: Any, first) -> None:
    """uv 21430: another build of the same version is not yanked."""
    page = index.page("red-expert-a")
    text = page.read_text()
    yanked = '<a data-yanked href="red_expert_a-0.2.0-1-py3-none-any.whl">a</a>\n'
    start = text.index("<a ") if first else text.index("</body>")
    page.write_text(text[:start] + yanked + text[start:])
    a = standings(look([using("a")], place=index.url))["a"]
    assert {n.version: n.yanked for n in a.newer}["0.2.0"] is None and a.newest == "0.2.0"


def test_a_page_of_json_with_the_projects_status(
    version_of: Any, serve: Any, using: Any, tmp_path: Path
) -> None:
    """PEP 691, PEP 592 and PEP 792: what is quarantined is not taken."""
    version_of("q", "0.2.0").write(tmp_path)
    files = [
        {
            "filename": f"red_expert_q-{version}-py3-none-any.whl",
            "url": f"/red_expert_q-{version}-py3-none-any.whl",
            "hashes": {},
            "yanked": yanked,
            "requires-python": python,
        }
        for version, yanked, python in (
            ("0.1.0", False, ""),
            ("0.2.0", False, ""),
            ("0.3.0", "broken", ">=3"),
            ("0.4.0", True, None),
            ("0.5.0", False, ">=4"),
        )
    ]
    page = {"files": files, "project-status": {"status": "quarantined", "reason": "malware"}}
    pages = tmp_path / "simple" / "red-expert-q"
    pages.mkdir(parents=True)
    (pages / "index.json").write_text(json.dumps(page))
    index = serve(tmp_path)
    index.http.RequestHandlerClass = JsonPages(index.http.RequestHandlerClass)
    q = standings(look([using("q")], place=index.url))["q"]
    assert (q.status, q.status_reason, q.newest) == ("quarantined", "malware", "")
    assert [(n.version, n.fits) for n in q.newer][::3] == [("0.5.0", False), ("0.2.0", True)]
    assert "Python >=4" in q.newer[0].why
    page["project-status"] = {"status": "archived"}
    (pages / "index.json").write_text(json.dumps(page))
    q = standings(look([using("q")], place=index.url))["q"]
    assert (q.status, q.newest) == ("archived", "0.2.0")
    assert {n.version: n.yanked for n in q.newer} == {
        "0.5.0": None,
        "0.4.0": "",
        "0.3.0": "broken",
        "0.2.0": None,
    }


class JsonPages:
    """Makes a handler answer a folder with its index.json."""

    def __init__(self, handler: Any) -> None:
        self.handler = handler

    def __call__(self, *arguments: Any) -> Any:
        base = self.handler.func

        class Json(base):
            index_pages = ("index.json",)

            def guess_type(self, path: Any) -> str:
                kind = "application/vnd.pypi.simple.v1+json"
                return kind if str(path).endswith(".json") else super().guess_type(path)

            def send_head(self) -> Any:
                if self.path.endswith("/"):
                    self.path += "index.json"
                return super().send_head()

        return Json(*arguments, **self.handler.keywords)


def test_a_page_that_is_none_of_an_index_is_a_problem(index: Any, using: Any) -> None:
    page = index.page("red-expert-a")
    for text in ("", "<html><h1>Log in</h1><a href='/lost'>Lost your password?</a></html>"):
        page.write_text(text)
        for place in (index.url, str(index.folder / "simple")):
            seen = standings(look([using("a"), using("b")], place=place))
            assert "PEP 503" in seen["a"].problem and not seen["a"].listed, (text, place)
            assert seen["b"].listed and seen["b"].problem == ""
    for text in (
        "<title>Links for red-expert-a</title>",
        '<meta name="pypi:repository-version" content="1.0">',
    ):
        page.write_text(text)
        a = standings(look([using("a")], place=index.url))["a"]
        assert a.listed and a.problem == "" and a.newer == ()


def test_an_index_without_a_page_of_four_still_has_the_fifth(index: Any, using: Any) -> None:
    for name in "wxyz":
        page = index.page(f"red-expert-{name}")
        page.parent.mkdir()
        page.write_text("<h1>Not here</h1>")
    seen = standings(look([*map(using, "wxyz"), using("b")], place=index.url))
    assert len({seen[name].problem for name in "wxyz"}) == 1 and seen["b"].listed


def test_an_index_that_is_gone_gets_few_requests(using: Any) -> None:
    refused = list[int]()
    with socket.create_server(("127.0.0.1", 0)) as server:
        url = f"http://me:secret@127.0.0.1:{server.getsockname()[1]}/simple"

        def hang_up() -> None:
            while True:
                try:
                    peer, _ = server.accept()
                except OSError:
                    return
                refused.append(1)
                peer.close()

        threading.Thread(target=hang_up, daemon=True).start()
        seen = standings(look([using(f"x{n}", source=url) for n in range(200)], timeout=2.0))
        server.shutdown(socket.SHUT_RDWR)
    [problem] = {one.problem for one in seen.values()}
    assert problem.startswith("cannot read http://127.0.0.1:") and "\n" not in problem
    assert not any("secret" in one.problem + one.source for one in seen.values())
    assert len(refused) < 40


def test_a_slow_index_takes_its_time_once(using: Any) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        url = f"http://127.0.0.1:{server.getsockname()[1]}/simple"
        begun = time.monotonic()
        seen = standings(look([using(f"x{n}", source=url) for n in range(100)], timeout=0.5))
    assert time.monotonic() - begun < 4.0
    assert all("timed out" in one.problem for one in seen.values())


def test_without_a_source_there_is_no_request(using: Any, monkeypatch: Any, index: Any) -> None:
    for name in ("PIP_INDEX_URL", "UV_DEFAULT_INDEX", "UV_INDEX_URL"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("PIP_CONFIG_FILE", "/dev/null")
    [one] = standings(look([using("a")])).values()
    assert (one.source, one.listed, one.problem) == ("", False, "")
    monkeypatch.setenv("PIP_INDEX_URL", index.url)
    assert standings(look([using("a")]))["a"].newest == "0.2.0"


def test_a_folder_of_wheels_and_one_of_pages(index: Any, using: Any, tmp_path: Path) -> None:
    for place in (index.folder, index.folder / "simple", (index.folder / "simple").as_uri()):
        a = standings(look([using("a")], place=str(place)))["a"]
        assert (a.newest, a.listed) == ("0.2.0", True), place
    assert index.requests == []
    away = index.folder / "simple" / "red-expert-a" / "index.html"
    wheel = "red_expert_a-0.2.0-py3-none-any.whl"
    away.write_text(f'<a href="{index.url}/{wheel}">{wheel}</a>')
    a = standings(look([using("a")], place=str(index.folder / "simple")))["a"]
    assert a.newer == () and index.requests == []
    [gone] = standings(look([using("a")], place=str(tmp_path / "gone"))).values()
    assert "no folder" in gone.problem
    with pytest.raises(UsageError, match="ssh"):
        look([using("a")], place="ssh://me@example.org/simple")


def test_a_folder_is_named_as_locks_can_find_it_again(
    index: Any, using: Any, monkeypatch: Any
) -> None:
    monkeypatch.chdir(index.folder)
    for place in (".", "simple"):
        a = standings(look([using("a")], place=place))["a"]
        assert a.source == str(index.folder / place if place != "." else index.folder), place


def test_a_page_that_offers_the_wheel_of_another_is_ignored(index: Any, using: Any) -> None:
    index.page("red-expert-b").write_text(index.page("red-expert-a").read_text())
    b = standings(look([using("b")], place=index.url))["b"]
    assert b.newer == () and b.newest == ""


def test_a_signature_is_fetched_from_beside_the_wheel(
    index: Any, using: Any, tmp_path: Path
) -> None:
    keys = read_keys([new_key(tmp_path / "author.pem")])
    [one] = look([using("a")], place=index.url).offered
    with pytest.raises(IntegrityError, match=r"0\.2\.0.* was refused \(signature_missing"):
        fetch_newest(one, "0.2.0", keys=keys)
    wheel = index.folder / "red_expert_a-0.2.0-py3-none-any.whl"
    make_signer(tmp_path / "author.pem")(wheel)
    newcomer = fetch_newest(one, "0.2.0", keys=keys)
    assert newcomer.wheel.signer == keys[0].fingerprint
    assert (newcomer.wheel.source, newcomer.version) == (index.url, "0.2.0")
    stranger = read_keys([new_key(tmp_path / "other.pem")])
    with pytest.raises(IntegrityError, match="signature_wrong"):
        fetch_newest(one, "0.2.0", keys=stranger)


@pytest.mark.parametrize("changes", [{"id": "other"}, {"question": "mood"}])
def test_another_expert_under_the_same_name_is_no_version(
    index: Any, using: Any, version_of: Any, changes: dict[str, str]
) -> None:
    made = version_of("a", "0.3.0", **changes)
    points = f"{made.info}/entry_points.txt"
    made.members[points] = made.members[points].replace(
        b"\na =", f"\n{changes.get('id', 'a')} =".encode()
    )
    made.write(index.folder)
    write_index(index.folder)
    [one] = look([using("a")], place=index.url).offered
    with pytest.raises(ContractError, match="no version of 'a'"):
        fetch_newest(one, "0.3.0")


def test_each_project_is_one_request(index: Any, using: Any) -> None:
    write_catalogue(index.folder)
    members = [using("a"), *(using(f"x{n}") for n in range(200))]
    seen = standings(look(members, place=index.url))
    assert seen["a"].newest == "0.2.0" and not any(one.problem for one in seen.values())
    assert sum(one.listed for one in seen.values()) == 1
    pages = [f"/simple/red-expert-x{n}/" for n in range(200)]
    others = ["/simple/red-expert-a/", "/simple/catalogue.json", "/catalogue.json"]
    assert sorted(index.requests) == sorted([*pages, *others])


def test_a_plugin_of_another_redhost_does_not_fit(serve: Any, tmp_path: Path) -> None:
    """PEP 658: METADATA beside the wheel is read, and not the wheel."""
    page = tmp_path / "simple" / "redhost-late" / "index.html"
    page.parent.mkdir(parents=True)
    lines = []
    for version, needs in (("0.2.0", "redhost>=0.1"), ("0.3.0", "redhost==7.0"), ("0.4.0", "?")):
        wheel = f"redhost_late-{version}-py3-none-any.whl"
        lines.append(f'<a href="../../{wheel}" data-core-metadata="true">{wheel}</a>')
        text = f"Metadata-Version: 2.1\nName: redhost-late\nVersion: {version}\n"
        (tmp_path / f"{wheel}.metadata").write_text(f"{text}Requires-Dist: {needs}\n")
    page.write_text("\n".join(lines))
    index = serve(tmp_path)
    late = InUse(
        kind="plugin", id="redhost-late", dist="redhost-late", version="0.1.0", home=tmp_path
    )
    one = standings(look([late], place=index.url))["redhost-late"]
    assert {n.version: n.fits for n in one.newer} == {"0.4.0": None, "0.3.0": False, "0.2.0": True}
    assert one.newer[1].why == "needs redhost==7.0"
    assert downloads(index) == []
