"""`redhost sync` in a real environment: rebuilt from wheels, bit for bit, or left as it was."""

from __future__ import annotations

import json
import shutil
import threading
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from redhost_author.signing import make_signer, new_key
from redhost_sync.locks import parts_of, read_locks
from redhost_sync.manifest import WheelEntry, WheelList, read_list, write_list
from redhost_sync.plan import Sources
from redhost_sync.sources import source_at

from redhost.registry.package.safetensors_check import sha256_hex

EXTRA = "red_expert_extra-0.1.0-py3-none-any.whl"


def entry(project: Any, file: str = EXTRA) -> WheelEntry:
    return next(x for x in read_list(project.out).wheels if x.file == file)


def copied(project: Any, folder: Path) -> Path:
    return Path(shutil.copytree(project.out, folder / "copy"))


def relisted(folder: Path, *wheels: WheelEntry) -> None:
    """Write a list that agrees with the folder, as who lies would."""
    known = read_list(folder)
    others = [x for x in known.wheels if x.dist not in {w.dist for w in wheels}]
    write_list(folder, WheelList(wheels=(*others, *wheels), routers=known.routers))


def test_environment_and_composition_are_rebuilt_to_the_bit(project: Any, tmp_path: Path) -> None:
    home = project.clone(tmp_path / "new")
    listed = json.loads(
        project.sync(home, "--dry-run", "--json", "--from", str(project.out)).stdout
    )
    [step] = listed["steps"]
    assert (step["action"], step["dist"], step["before"]) == ("install", "red-expert-extra", None)
    assert step["sha256"] == entry(project).sha256 and listed["composed"] == [""]
    assert project.infos() == [] and not (home / "current").exists()
    done = project.sync(home, "--json", "--from", str(project.out))
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) | {"dry_run": True, "generations": {"": None}} == listed
    assert project.predict(home) == project.answers
    assert (home / "redhost.lock").read_bytes() == (project.home / "redhost.lock").read_bytes()
    assert not (home / "sync").exists()
    again = json.loads(project.sync(home, "--json").stdout)
    assert again["steps"] == again["composed"] == [] and again["generations"] == {"": 1}
    gone = project.sync(home, "--from", str(tmp_path / "gone"))  # though nothing is needed of it
    assert (gone.returncode, gone.stderr.count("\n")) == (2, 1) and "gone" in gone.stderr
    for stored in (home / "store").rglob("expert.safetensors"):
        stored.chmod(0o644)
        stored.write_bytes(stored.read_bytes()[:-1] + b"?")
    mended = json.loads(project.sync(home, "--json").stdout)
    assert mended["steps"] == [] and mended["composed"] == [""]
    assert project.predict(home) == project.answers


def test_without_an_option_the_lock_says_where_wheels_are(project: Any, tmp_path: Path) -> None:
    home = project.clone(tmp_path / "new")
    lock = json.loads((home / "redhost.lock").read_bytes())["experts"]["extra"]
    assert lock["source"] == "../wheels"  # from the lock, so that the project may be moved
    assert lock["wheel"] == sha256_hex((project.wheels / EXTRA).read_bytes())
    done = project.sync(home)
    assert (done.returncode, done.stderr.count("\n")) == (3, 1)
    assert f"there is no folder {tmp_path / 'wheels'}" in done.stderr
    shutil.copytree(project.wheels, tmp_path / "wheels")
    assert project.sync(home).returncode == 0
    assert project.predict(home) == project.answers


def test_what_leaves_and_returns_keeps_where_it_came_from(
    project: Any, draft: Any, tmp_path: Path
) -> None:
    """Also the path of a wheel, and after a rollback; pip's word is taken for what it was given."""
    home, wheel = tmp_path / "home", project.wheels / EXTRA
    (inside := tmp_path / "dist").mkdir()
    late = draft("late").write(inside)
    project.venv.pip("install", "--no-deps", "--no-index", str(wheel))
    steps = (
        ("recompose",),
        ("add", str(late), "--accept"),
        ("disable", "late"),
        ("disable", "extra"),
        ("recompose",),
        ("rollback",),
        ("recompose",),
        ("enable", "late"),
        ("enable", "extra"),
        ("recompose", "--accept"),
    )
    locks = list[Any]()
    for step in steps:
        [(code, _, err)] = project.venv.session(step, home=home)
        assert code == 0, (step, err)
        locks.append(json.loads((home / "redhost.lock").read_bytes())["experts"])
    extra = {"source": str(wheel), "wheel": sha256_hex(wheel.read_bytes())}
    assert locks[0]["extra"].items() >= extra.items()
    assert "late" not in locks[-4] and "extra" not in locks[-4]  # they had left
    assert locks[-1]["extra"] == locks[0]["extra"] and locks[-1]["late"] == locks[1]["late"]
    assert locks[1]["late"]["source"] == f"../dist/{late.name}"
    project.empty()
    done = project.sync(home)
    assert done.returncode == 0, done.stderr
    assert {"red_expert_extra-0.1.0.dist-info", "red_expert_late-0.1.0.dist-info"} <= {
        *project.infos()
    }


def test_where_the_lock_names_no_source_other_sources_of_it_come_first(
    project: Any, tmp_path: Path
) -> None:
    home = project.clone(tmp_path / "new")
    [backbone, extra, *_] = parts_of(read_locks(home))
    assert (backbone.kind, backbone.source) == ("backbone", "")
    assert (extra.id, extra.source) == ("extra", str(tmp_path / "wheels"))
    recorded = {extra.source: source_at(extra.source)}
    sources = Sources(given=(), otherwise=lambda: "the default", recorded=recorded)
    assert [*sources.of(backbone)] == [recorded[extra.source], "the default"]
    assert [*sources.of(extra)] == [recorded[extra.source]]  # its name goes nowhere else


def other_bytes(folder: Path, project: Any, draft: Any) -> None:
    data = bytearray((folder / EXTRA).read_bytes())
    data[len(data) // 2] ^= 1
    (folder / EXTRA).write_bytes(data)


def other_content(folder: Path, project: Any, draft: Any) -> None:
    """A sound wheel of that name and version, and a list that promises just it."""
    path = draft("extra", domain="whatever the attacker likes").write(folder)
    lie = entry(project)
    new = WheelEntry(
        file=EXTRA,
        sha256=sha256_hex(path.read_bytes()),
        dist=lie.dist,
        version=lie.version,
        kind=lie.kind,
        digest=lie.digest,
    )
    relisted(folder, new)


def missing(folder: Path, project: Any, draft: Any) -> None:
    (folder / EXTRA).unlink()


def other_version(folder: Path, project: Any, draft: Any) -> None:
    (folder / EXTRA).unlink()
    (folder / "redhost-wheels.json").unlink()
    draft("extra", version="0.2.0").write(folder)


def damaged_list(folder: Path, project: Any, draft: Any) -> None:
    path = folder / "redhost-wheels.json"
    path.write_bytes(path.read_bytes().replace(b'"0.1.0"', b'"0.1.1"', 1))


def gone(folder: Path, project: Any, draft: Any) -> None:
    shutil.rmtree(folder)


def not_a_wheel(folder: Path, project: Any, draft: Any) -> None:
    (folder / "redhost-wheels.json").unlink()
    (folder / EXTRA).write_bytes(b"<html>please log in</html>")


LIES = (other_bytes, other_content, missing, other_version, damaged_list, gone, not_a_wheel)


def test_a_source_that_lies_is_one_line_and_changes_nothing(
    project: Any, draft: Any, tmp_path: Path
) -> None:
    home = project.clone(tmp_path / "new")
    lock, folders = (home / "redhost.lock").read_bytes(), []
    for lie in LIES:
        (tmp_path / lie.__name__).mkdir()
        folders.append(copied(project, tmp_path / lie.__name__))
        lie(folders[-1], project, draft)
    commands = [("sync", "--from", str(folder)) for folder in folders]
    for lie, (code, out, err) in zip(LIES, project.venv.session(*commands, home=home), strict=True):
        assert code in {1, 2, 3} and not out and err.count("\n") == 1, (lie, code, err)
        assert "Traceback" not in err and len(err) < 600, err
    assert project.infos() == [] and (home / "redhost.lock").read_bytes() == lock
    assert not (home / "current").exists() and not (home / "sync").exists()
    # The control: the same folder without a lie.
    (tmp_path / "honest").mkdir()
    honest = copied(project, tmp_path / "honest")
    assert project.sync(home, "--dry-run", "--from", str(honest)).returncode == 0


def test_only_what_was_composed_here_and_left_the_lock_is_removed(
    project: Any, draft: Any, tmp_path: Path
) -> None:
    """The lock says that it left; an expert of another project stays, and is named."""
    home = project.clone(tmp_path / "new")
    (more := tmp_path / "more").mkdir()
    late = draft("late").write(more)
    foreign = draft("foreign").write(more)
    lock = (home / "redhost.lock").read_bytes()
    done = project.venv.session(
        ("sync", "--from", str(project.out)), ("add", str(late), "--accept"), home=home
    )
    assert [code for code, _, _ in done] == [0, 0], done
    project.venv.install(foreign)
    (home / "redhost.lock").write_bytes(lock)  # as `git checkout` of the older one does
    done = project.venv.session(
        ("sync", "--dry-run", "--json"), ("sync", "--json"), ("status", "--json"), home=home
    )
    assert [code for code, _, _ in done] == [0, 0, 0], done
    plan, changed = json.loads(done[0][1]), json.loads(done[1][1])
    assert plan["steps"] == changed["steps"]
    assert [(x["action"], x["dist"]) for x in plan["steps"]] == [("remove", "red-expert-late")]
    assert [x["dist"] for x in changed["staying"]] == ["red-expert-foreign"]
    assert plan["generations"] == {"": 2} and changed["generations"] == {"": 3}
    names = " ".join(project.infos())
    assert "foreign" in names and "red_expert_extra" in names and "late" not in names
    assert (home / "redhost.lock").read_bytes() == lock
    assert json.loads(done[2][1])["lock"] is None


def test_another_build_is_replaced_and_a_foreign_file_is_not(
    project: Any, draft: Any, tmp_path: Path
) -> None:
    home = project.clone(tmp_path / "new")
    (more := tmp_path / "more").mkdir()
    project.venv.install(draft("extra", version="0.0.9").write(more))
    [step] = json.loads(
        project.sync(home, "--json", "--dry-run", "--from", str(project.out)).stdout
    )["steps"]
    assert (step["action"], step["before"], step["version"]) == ("change", "0.0.9", "0.1.0")
    assert project.sync(home, "--from", str(project.out)).returncode == 0
    assert "red_expert_extra-0.0.9.dist-info" not in project.infos()
    assert project.predict(home) == project.answers
    project.empty()
    (project.venv.site / "red_expert_extra").mkdir()
    (project.venv.site / "red_expert_extra" / "notes.txt").write_text("mine")
    done = project.sync(home, "--from", str(project.out))
    assert done.returncode == 1 and "files of no distribution" in done.stderr
    assert (project.venv.site / "red_expert_extra" / "notes.txt").read_text() == "mine"


def test_every_question_of_the_project_is_rebuilt(project: Any, draft: Any, tmp_path: Path) -> None:
    (more := tmp_path / "more").mkdir()
    shutil.copy(project.wheels / EXTRA, more)
    summing = draft("summing", question="sums").write(more)
    old, new = tmp_path / "old", project.clone(tmp_path / "new")
    shutil.copytree(project.home, old)
    done = project.venv.session(("add", str(summing)), home=old)
    assert done[0][0] == 0, done
    (new / "questions" / "sums").mkdir(parents=True)
    for name in ("redhost.lock", "questions/sums/redhost.lock"):
        shutil.copy(old / name, new / name)
    project.empty()
    done = project.venv.session(
        ("sync", "--from", str(more), "--json"),
        ("predict", "--json", "--question", "sums", "What is 37 plus 12?"),
        home=new,
    )
    assert [code for code, _, _ in done] == [0, 0], done
    changed, [answer] = json.loads(done[0][1]), json.loads(done[1][1])
    assert {x["dist"] for x in changed["steps"]} == {"red-expert-summing", "red-expert-extra"}
    assert changed["generations"] == {"": 1, "sums": 1}
    assert answer["label"] == "49" and answer["weights"]["summing"] > 0
    name = "questions/sums/redhost.lock"
    assert (new / name).read_bytes() == (old / name).read_bytes()


def test_there_is_nothing_to_follow_without_a_lock(project: Any, tmp_path: Path) -> None:
    done = project.sync(tmp_path / "none")
    assert done.returncode == 3 and done.stderr.count("\n") == 1
    assert not (tmp_path / "none").exists()


@pytest.mark.parametrize("options", [("--from", "x", "--index-url", "http://y")])
def test_two_sources_are_one_too_many(project: Any, tmp_path: Path, options: Any) -> None:
    assert project.sync(project.clone(tmp_path / "new"), *options).returncode == 2


@pytest.mark.parametrize("option", ["--index-url", "--from"])
@pytest.mark.parametrize("signed", [True, False])
def test_a_signature_beside_the_wheel_that_a_page_links_to_is_verified(
    project: Any, tmp_path: Path, signed: bool, option: str
) -> None:
    place = tmp_path / "index"
    page = place / "simple" / "red-expert-extra"
    page.mkdir(parents=True)
    wheel = Path(shutil.copy(project.wheels / EXTRA, place))
    (page / "index.html").write_text(f'<a href="../../{wheel.name}">{wheel.name}</a>')
    public = new_key(tmp_path / "author.pem")
    if signed:
        make_signer(tmp_path / "author.pem")(wheel)
    home = project.clone(tmp_path / "new")
    handler = partial(SimpleHTTPRequestHandler, directory=str(place))
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as http:
        threading.Thread(target=http.serve_forever, daemon=True).start()
        url = f"http://127.0.0.1:{http.server_port}/simple"
        source = url if option == "--index-url" else str(place / "simple")
        done = project.sync(home, option, source, "--key", str(public))
        http.shutdown()
    if signed:
        assert done.returncode == 0, done.stderr
        assert project.predict(home) == project.answers
    else:
        assert (done.returncode, done.stderr.count("\n")) == (1, 1)
        assert "signature_missing" in done.stderr and project.infos() == []
