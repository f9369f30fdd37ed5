"""One bad installed package, whatever is wrong with it, stops no command that does not need it.

Each package here was a valid expert and had one thing done to it on the disk. Nothing may block,
read without bound or end in a traceback, and the bad one is named in one line.
"""

from __future__ import annotations

import importlib
import json
import os
import signal
import subprocess
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from redhost.cli import main

BAD = "red-expert-bad"
SECONDS = 600
Damage = Callable[[Path], object]


def make_fifo(path: Path) -> None:
    path.unlink(missing_ok=True)
    os.mkfifo(path)


def link(target: str) -> Damage:
    def damage(path: Path) -> None:
        path.unlink(missing_ok=True)
        path.symlink_to(target.format(name=path.name))

    return damage


def make_folder(path: Path) -> None:
    path.unlink(missing_ok=True)
    path.mkdir()


def write(data: bytes) -> Damage:
    return lambda path: path.write_bytes(data)


def make_huge(path: Path) -> None:
    """Make a sparse file of 64 GiB."""
    path.touch()
    os.truncate(path, 64 * 2**30)


DAMAGES: dict[str, Damage] = {
    "a pipe": make_fifo,
    "a loop": link("{name}"),
    "endless": link("/dev/zero"),
    "a folder": make_folder,
    "not text": write(b"\xff\xfe\x00\x80"),
    "empty": write(b""),
    "codes": write(b"\x1b[31m\x9b\x07\r\x00"),
    "nested": write(b'{"a":' + b"[" * 100_000),
    "huge": make_huge,
    "gone": lambda path: path.unlink(missing_ok=True),
}
FILES = (
    "info/METADATA",
    "info/RECORD",
    "info/entry_points.txt",
    "info/direct_url.json",
    "info/top_level.txt",
    "module/expert.json",
    "module/expert.safetensors",
    "module/__init__.py",
)
HARMLESS = {("info/top_level.txt", "gone"), ("info/top_level.txt", "a folder")}
HARMLESS |= {("info/direct_url.json", what) for what in DAMAGES}  # RECORD has no hash of it


def deep(folder: Path) -> None:
    """Nest 1,100 folders; makedirs would recurse."""
    for _ in range(1_100):
        folder /= "d"
        folder.mkdir()
    (folder / "x").touch()


def many(folder: Path) -> None:
    for n in range(10_100):
        (folder / f"{n}").touch()


def entry(text: str) -> Damage:
    return lambda info: (info / "entry_points.txt").write_text(text, "utf-8")


def replaced(damage: Damage) -> Damage:
    """Do something in place of a folder."""

    def replace(folder: Path) -> None:
        folder.rename(folder.with_name(f"moved-{folder.name}"))
        damage(folder)

    return replace


def metadata(text: bytes) -> Damage:
    return lambda info: (info / "METADATA").write_bytes(text)


def long_record(info: Path) -> None:
    (info / "RECORD").write_bytes(b"".join(b"a%d,,\n" % n for n in range(400_000)))


def odd_name(name: bytes) -> Damage:
    return lambda folder: Path(os.fsdecode(os.fsencode(folder) + b"/" + name)).touch()


FOLDERS: dict[str, tuple[str, Damage]] = {
    "deep package": ("module", deep),
    "deep metadata": ("info", deep),
    "many files": ("module", many),
    "no folder": ("module", replaced(lambda path: None)),
    "folder is a file": ("module", replaced(Path.touch)),
    "folder is a pipe": ("module", replaced(os.mkfifo)),
    "folder is a loop": ("module", replaced(link("{name}"))),
    "folder is everything": ("module", replaced(link("/"))),
    "long record": ("info", long_record),
    "two names": ("info", metadata(b"Name: red-expert-bad\nName: other\nVersion: 1\n")),
    "no name": ("info", metadata(b"Version: 1\n")),
    "a name of codes": ("info", metadata(b"Name: \x1b[31mred\x1b[0m\nVersion: \xc2\x9b1\n")),
    "a long module": ("info", entry(f"[redhost.experts]\nbad = {'m' * 5000}\n")),
    "an odd module": ("info", entry("[redhost.experts]\nbad = ../../x\n")),
    "a module of codes": ("info", entry("[redhost.experts]\n\x1b[31m = \x1b[31m\n")),
    "a command of codes": ("info", entry("[redhost.commands]\n\x1b[31m = \x1b[31m:x\n")),
    "torch's name": ("info", entry("[redhost.experts]\nbad = torch\n")),
    "a name of bytes": ("module", odd_name(b"\xff\xfe")),
    "a name of codes below": ("module", odd_name(b"\x1b[31m\n")),
}
ALL = {f"{file} {what}": (file, what) for file in FILES for what in DAMAGES} | {
    what: ("", what) for what in FOLDERS
}
UNREADABLE = ("a pipe", "a loop", "endless", "a folder", "not text", "codes", "huge")
ILLEGIBLE = [f"info/METADATA {what}" for what in UNREADABLE]
"""Where pip itself, asked for anything, blocks or ends in a traceback."""

UNSEEN = ("info/entry_points.txt", "a command")
"""Who can have no say in whether it is an expert at all."""
CUT = {"info/entry_points.txt huge"}
"""Read up to its limit, so that it is seen and refused."""


def harm(where: Path, drafted: Any, file: str, what: str) -> None:
    """Install a valid expert into a site folder, then damage it."""
    record = f"{drafted.info}/RECORD"
    for name, data in {**drafted.members, record: drafted.honest_record()}.items():
        (where / name).parent.mkdir(exist_ok=True)
        (where / name).write_bytes(data)
    places = {"info": where / drafted.info, "module": where / drafted.module}
    if file:
        folder, _, name = file.partition("/")
        DAMAGES[what](places[folder] / name)
    else:
        folder, damage = FOLDERS[what]
        damage(places[folder])
    importlib.invalidate_caches()


def break_path(folder: Path) -> Iterator[Path]:
    """Yield what is no folder and stands on Python's path all the same."""
    (folder / "garbage.zip").write_bytes(b"PK\x03\x04 nothing")
    yield folder / "garbage.zip"
    for name, change in {
        "crc": (b"redhost.experts", b"redhost.expertz"),
        "cut": (b"PK\x01", b""),
    }.items():
        path = folder / f"{name}.zip"
        with zipfile.ZipFile(path, "w") as archive:
            archive.writestr("zipped-1.dist-info/METADATA", "Name: zipped\nVersion: 1\n")
            archive.writestr(
                "zipped-1.dist-info/entry_points.txt", "[redhost.experts]\nz = zipped\n"
            )
        path.write_bytes(path.read_bytes().replace(*change))
        yield path
    yield folder / "nowhere"
    (folder / "loop").symlink_to("loop")
    yield folder / "loop"


@pytest.fixture(autouse=True)
def cleaned_up(tmp_path: Path) -> Iterator[None]:
    """Remove what pytest cannot: its own sweep recurses."""
    yield
    subprocess.run(["rm", "-rf", tmp_path], check=True)


@pytest.fixture(autouse=True)
def in_time() -> Iterator[None]:
    """Fail what blocks."""

    def late(*_: object) -> None:
        raise AssertionError("it blocks")

    before = signal.signal(signal.SIGALRM, late)
    signal.alarm(SECONDS)
    yield
    signal.alarm(0)
    signal.signal(signal.SIGALRM, before)


@pytest.fixture
def call(capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: Any) -> Any:
    monkeypatch.setenv("REDHOST_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("REDHOST_CONFIG", str(tmp_path / "config"))
    monkeypatch.chdir(tmp_path)

    def run(*arguments: str) -> tuple[int, str, str]:
        with pytest.raises(SystemExit) as e:
            main(arguments)
        out, err = capsys.readouterr()
        return int(e.value.code or 0), out, err

    return run


def clean(text: str) -> bool:
    """Tell whether a text holds nothing but lines of printable characters."""
    return all(line.isprintable() for line in text.split("\n"))


GROUPS = {file: [x for x in ALL if ALL[x][0] == file] for file in FILES}
GROUPS["of a folder"] = list(FOLDERS)
"""Cases that share a site folder."""


def test_every_case_is_in_a_group() -> None:
    assert sorted(case for cases in GROUPS.values() for case in cases) == sorted(ALL)


@pytest.mark.parametrize("group", GROUPS)
def test_the_others_are_listed_and_it_is_named(group, environment, draft, call) -> None:
    cases = {f"bad-{n}": case for n, case in enumerate(GROUPS[group])}
    for name, case in cases.items():
        harm(environment.folder, draft(name), *ALL[case])
    code, out, err = call("list-experts", "--json")
    assert (code, err) == (0, "")
    listed = {x["dist"]: x for x in json.loads(out)}
    assert listed["red-expert-range1"]["state"] == "enabled"
    bad = {name.replace("_", "-"): x for name, x in listed.items()}
    for name, case in cases.items():
        x = bad.get(f"red-expert-{name}")
        assert (x is not None) == (not case.startswith(UNSEEN) or case in CUT), case
        if x is not None and ALL[case] not in HARMLESS:
            assert x["code"] and x["reason"] and clean(x["reason"] + x["dist"]), case
    for command in ("list-experts", "status", "--help"):
        code, out, err = call(command)
        assert code == 0 and clean(out + err), (out, err)


def test_commands_that_need_none_of_them_go_on(make_venv, draft, tmp_path) -> None:
    """All of the bad ones at once, beside one that is valid."""
    venv, home, valid = make_venv(tmp_path / "venv"), tmp_path / "home", draft("valid")
    cases = [x for name, x in ALL.items() if name not in ILLEGIBLE]
    for n, (file, what) in enumerate(cases):
        harm(venv.site, draft(f"bad-{n}"), file, what)
    for path in break_path(tmp_path):
        with (venv.site / "odd.pth").open("a") as file:
            file.write(f"{path}\n")
    done = venv.session(
        ("add", str(valid.write(tmp_path)), "--accept"),
        ("check", "valid", "range1"),
        ("recompose", "--accept"),
        ("status",),
        ("predict", "1 + 1"),
        ("trust", "redhost-ray"),
        ("remove", "valid", "--accept"),
        ("list-experts",),
        home=home,
    )
    assert [(code, err) for code, _, err in done if code or "Traceback" in err] == []
    assert "red_expert_bad_0" in done[-1][1]


@pytest.mark.parametrize("case", ILLEGIBLE)
def test_pip_is_not_started_where_it_would_block_or_break(case, make_venv, draft, tmp_path) -> None:
    venv, drafted = make_venv(tmp_path / "venv"), draft("bad")
    harm(venv.site, drafted, *ALL[case])
    valid = draft("valid").write(tmp_path)
    [(code, _, err)] = venv.session(("add", str(valid)), home=tmp_path / "home")
    assert (code, err.count("\n")) == (3, 1) and drafted.info in err


@pytest.mark.parametrize("what", ["deep package", "long record", "folder is a pipe"])
def test_the_bad_one_can_be_removed_or_says_how(what, make_venv, draft, tmp_path) -> None:
    venv = make_venv(tmp_path / "venv")
    harm(venv.site, draft("bad"), *ALL[what])
    [(code, _, err)] = venv.session(("remove", BAD), home=tmp_path / "home")
    by_pip = f"'pip uninstall {BAD}'" in err  # as nothing is composed here
    assert code in {1, 3} and err.count("\n") == 1 and ("by hand" in err or by_pip)
    assert BAD in venv.listed(tmp_path / "home")
    if by_pip:
        assert venv.pip("uninstall", "--yes", BAD).returncode == 0
        assert BAD not in venv.listed(tmp_path / "home")


def test_what_is_no_folder_may_stand_on_the_path(environment, call, tmp_path, monkeypatch) -> None:
    (tmp_path / "odd").mkdir()
    for path in break_path(tmp_path / "odd"):
        monkeypatch.syspath_prepend(str(path))
    code, out, _ = call("list-experts", "--json")
    assert code == 0 and {x["state"] for x in json.loads(out)} <= {"enabled", "discovered"}
    assert call("status")[0] == 0
