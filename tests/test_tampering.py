"""Wheels that were tampered with: `add` refuses each, and what plain pip lets in is shown.

Every wheel here is a sound one with one thing done to it. The environments and pip are real.
"""

from __future__ import annotations

import io
import json
import re
import struct
import subprocess
import zipfile
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from redhost.registry.wheel.wheel import read_wheel

LOCAL, END = b"PK\x03\x04", b"PK\x05\x06"
SCREAM = b"raise SystemExit('imported')\n"
EDITABLE = b'{"url": "file:///x", "dir_info": {"editable": true}}'


def altered(draft: Any) -> bytes:
    """Return the manifest with another sentence in it: still valid, but not what RECORD says."""
    manifest = json.loads(draft.members[f"{draft.module}/expert.json"])
    return json.dumps({**manifest, "domain": "whatever the attacker likes"}).encode()


def changed_file(draft: Any) -> None:
    name = f"{draft.module}/expert.json"
    draft.listed[name] = draft.members[name]
    draft.members[name] = altered(draft)


def changed_module(draft: Any) -> None:
    draft.members[f"{draft.module}/__init__.py"] = SCREAM


def called_by_a_target(draft: Any) -> None:
    """An assignment whose value is plain, and whose target runs code."""
    draft.members[f"{draft.module}/__init__.py"] = b'{}[__import__("os").system("true")] = 1\n'


def extra_file(draft: Any) -> None:
    draft.record = draft.honest_record()
    draft.members[f"{draft.module}/more.py"] = SCREAM


def without_hash(draft: Any) -> None:
    rows = draft.honest_record().decode().splitlines()
    bare = (f"{r.partition(',')[0]},," if "expert.json" in r else r for r in rows)
    draft.record = "\n".join(bare).encode()


def wrong_size(draft: Any) -> None:
    rows = draft.honest_record().decode().splitlines()
    draft.record = "\n".join(f"{r}0" if "expert.json" in r else r for r in rows).encode()


def listed_twice(draft: Any) -> None:
    draft.rows = draft.honest_record().decode().splitlines()[0] + "\n"


def bring(name: str, data: bytes = SCREAM) -> Callable[[Any], None]:
    """Bring one file more, honestly listed in RECORD."""

    def tamper(draft: Any) -> None:
        draft.members[name.format(module=draft.module, info=draft.info)] = data

    return tamper


def list_also(row: str) -> Callable[[Any], None]:
    def tamper(draft: Any) -> None:
        draft.rows = row.format(module=draft.module) + "\n"

    return tamper


def say(record: bytes) -> Callable[[Any], None]:
    def tamper(draft: Any) -> None:
        draft.record = record

    return tamper


def other_entry_point(draft: Any) -> None:
    draft.members[f"{draft.info}/entry_points.txt"] += b"[pytest11]\nx = json\n"


def duplicate(draft: Any) -> None:
    draft.twice = ((f"{draft.module}/expert.json", altered(draft)),)


def link(draft: Any) -> None:
    name = f"{draft.module}/expert.safetensors"
    draft.members[name] = b"../../../../etc/passwd"
    draft.links = frozenset({name})


def named(module: str) -> Callable[[Any], None]:
    """Call its one top-level package by somebody else's name."""

    def tamper(draft: Any) -> None:
        own = f"{draft.module}/"
        draft.members = {n.replace(own, f"{module}/", 1): x for n, x in draft.members.items()}
        own_id = draft.dist.removeprefix("red-expert-")
        points = f"[redhost.experts]\n{own_id} = {module}\n".encode()
        draft.members[f"{draft.info}/entry_points.txt"] = points

    return tamper


def renamed(dist: str) -> Callable[[Any], None]:
    """Call the distribution by somebody else's name; its package keeps its own."""

    def tamper(draft: Any) -> None:
        before, old = draft.info, draft.dist
        draft.dist = dist
        draft.members = {n.replace(before, draft.info): x for n, x in draft.members.items()}
        metadata = f"{draft.info}/METADATA"
        draft.members[metadata] = draft.members[metadata].replace(old.encode(), dist.encode())

    return tamper


def nothing(draft: Any) -> None:
    """The members stay as they are; the file around them does not."""


def with_comment(data: bytes) -> bytes:
    file = io.BytesIO(data)
    with zipfile.ZipFile(file, "a") as archive:
        archive.comment = b"more"
    return file.getvalue()


def rewritten(change: Callable[[zipfile.ZipInfo], None]) -> Callable[[bytes], bytes]:
    """Write the archive again, its first member changed."""

    def wrap(data: bytes) -> bytes:
        file = io.BytesIO()
        with zipfile.ZipFile(io.BytesIO(data)) as old, zipfile.ZipFile(file, "w") as new:
            for n, member in enumerate(old.infolist()):
                content = old.read(member)
                if n == 0:
                    change(member)
                new.writestr(member, content)
        return file.getvalue()

    return wrap


def extra_field(kind: int, data: bytes) -> Callable[[zipfile.ZipInfo], None]:
    return lambda member: setattr(member, "extra", struct.pack("<HH", kind, len(data)) + data)


def second_name(member: zipfile.ZipInfo) -> None:
    """Name it once more, where some programs look first."""
    crc = zlib.crc32(member.filename.encode())
    extra_field(0x7075, struct.pack("<BL", 1, crc) + b"other/expert.json")(member)


def patched(mark: bytes, offset: int, value: bytes) -> Callable[[bytes], bytes]:
    """Change bytes behind the first of a zip's marks."""

    def wrap(data: bytes) -> bytes:
        at = data.index(mark) + offset
        return data[:at] + value + data[at + len(value) :]

    return wrap


def streamed(data: bytes) -> bytes:
    """Write the archive as one that cannot be sought in: sizes stand behind each content."""

    class Pipe(io.BytesIO):
        def seekable(self) -> bool:
            return False

        def tell(self) -> int:
            raise io.UnsupportedOperation

    file = Pipe()
    with zipfile.ZipFile(io.BytesIO(data)) as old, zipfile.ZipFile(file, "w") as new:
        for member in old.infolist():
            new.writestr(member, old.read(member))
    return file.getvalue()


def entry_named(name: str) -> Callable[[Any], None]:
    def tamper(draft: Any) -> None:
        points = f"[redhost.experts]\n{name} = {draft.module}\n"
        draft.members[f"{draft.info}/entry_points.txt"] = points.encode()

    return tamper


def more_metadata(text: str) -> Callable[[Any], None]:
    def tamper(draft: Any) -> None:
        draft.members[f"{draft.info}/METADATA"] += text.encode()

    return tamper


@dataclass(frozen=True)
class Attack:
    """One thing done to a sound wheel.

    ``code`` is what `add` and `check` refuse it under; ``listed`` what `list-experts` says after
    a plain pip install, None where nothing of it reaches the environment.
    """

    tamper: Callable[[Any], None]
    code: str
    listed: str | None
    wrap: Callable[[bytes], bytes] = bytes


def both(tamper: Callable[[Any], None], code: str) -> Attack:
    return Attack(tamper, code, code)


ATTACKS = {
    "changed file": both(changed_file, "record_digest"),
    "wrong size": both(wrong_size, "record_digest"),
    "file without a hash": both(without_hash, "record_unhashed"),
    "extra file": Attack(extra_file, "record_unlisted", "record_unhashed"),  # pip lists it, bare
    "missing file": both(list_also("{module}/gone.json,,"), "record_missing"),
    "row outside": both(list_also("../../../../../../../../etc/passwd,,"), "record_outside"),
    "row of a device": both(list_also("/dev/zero,,"), "record_outside"),
    "file listed twice": both(listed_twice, "record_row"),
    "garbled RECORD": Attack(say(b"one column\n"), "record_row", "foreign_top_level"),
    "no RECORD": both(say(b""), "record_absent"),
    "pth": both(bring("attack.pth", b"import os\n"), "startup_code"),
    "start": both(bring("attack.start", b"os:getcwd\n"), "startup_code"),
    "egg-link": both(bring("attack.egg-link", b""), "startup_code"),
    "sitecustomize": both(bring("sitecustomize.py", b""), "startup_code"),
    "usercustomize": both(bring("usercustomize/__init__.py", b""), "startup_code"),
    "scripts": Attack(
        bring("{module}-0.1.0.data/scripts/run", b"#!python\n"), "data_scripts", "record_outside"
    ),
    "foreign top level": both(bring("intruder/__init__.py"), "foreign_top_level"),
    "lone module": both(bring("intruding.py"), "foreign_top_level"),
    "part of torch": both(bring("torch/intruder.py"), "foreign_top_level"),
    "named json": both(named("json"), "taken_top_level"),
    "named as what others may look for": Attack(named("optional"), "taken_top_level", None),
    "code of its own": Attack(changed_module, "data_code", None),
    "code in what is assigned to": Attack(called_by_a_target, "data_code", None),
    "a second module": Attack(bring("{module}/more.py", b""), "data_code", None),
    "a compiled module": Attack(bring("{module}/fast.abi3.so"), "data_code", None),
    "named as the host": Attack(renamed("torch"), "taken_name", None),  # it would replace torch
    "other entry point": both(other_entry_point, "entry_points"),
    "claims to be editable": Attack(
        bring("{info}/direct_url.json", EDITABLE), "installer_file", "record_row"
    ),
    "duplicate name": Attack(duplicate, "archive_duplicate", "record_digest"),
    "symbolic link": Attack(link, "archive_link", "weights_digest"),
    "name outside": Attack(bring("../outside.py"), "archive_name", "record_absent"),
    "names that differ by case": Attack(bring("{module}/EXPERT.json"), "archive_duplicate", None),
    "leading data": Attack(nothing, "archive_data", None, lambda data: b"#!/bin/sh\n" + data),
    "trailing data": Attack(nothing, "archive_data", None, lambda data: data + b"more"),
    "comment": Attack(nothing, "archive_data", None, with_comment),
    "comment on a member": Attack(
        nothing, "archive_data", None, rewritten(lambda m: setattr(m, "comment", b"more"))
    ),
    "second name": Attack(nothing, "archive_data", None, rewritten(second_name)),
    "another checksum": Attack(nothing, "archive_data", None, patched(LOCAL, 14, b"abcd")),
    "another size": Attack(nothing, "archive_data", None, patched(LOCAL, 22, b"abcd")),
    "another method": Attack(nothing, "archive_data", None, patched(LOCAL, 8, b"\0\0")),
    "wrong count": Attack(nothing, "archive_data", None, patched(END, 8, b"\1\0\1\0")),
    "named twice": both(more_metadata("Name: other\n"), "metadata_row"),
    "two versions": both(more_metadata("Version: 2\n"), "metadata_row"),
    "entry point of another name": Attack(entry_named("other"), "entry_points", None),
    "deep folders": Attack(  # pip ends half-way
        bring("{module}/" + "d/" * 1_100 + "x"), "name_limit", "record_absent"
    ),
    "one folder too deep": both(bring("{module}/" + "d/" * 10 + "x"), "name_limit"),
    "a long path": both(bring("{module}/" + "d" * 220), "name_limit"),
}

NEIGHBOURS: dict[str, tuple[Callable[[Any], None], Callable[[bytes], bytes]]] = {
    "time stamps": (nothing, rewritten(extra_field(0x5455, bytes(5)))),
    "streamed": (nothing, streamed),
    "a text about names": (more_metadata("\nName: in the text\n"), bytes),
    "nine folders": (bring("{module}/" + "d/" * 9 + "x"), bytes),
    "a path as long as may be": (bring("{module}/" + "d" * 200), bytes),
}
"""Wheels beside the attacks, which are sound."""


@pytest.fixture(scope="module")
def wheels(draft: Any, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """A wheel for each attack."""
    folder, made = tmp_path_factory.mktemp("wheels"), {}
    for name, attack in ATTACKS.items():
        drafted = draft(expert_id(name))
        attack.tamper(drafted)
        made[name] = drafted.write(folder)
        made[name].write_bytes(attack.wrap(made[name].read_bytes()))
    return made


def expert_id(attack: str) -> str:
    return f"evil-{attack.lower().replace(' ', '-')}"


@pytest.fixture(scope="module")
def venv(make_venv: Any, tmp_path_factory: pytest.TempPathFactory) -> Any:
    """An environment that only `add` may change."""
    return make_venv(tmp_path_factory.mktemp("clean") / "venv")


@pytest.fixture(scope="module")
def attacked(
    make_venv: Any, wheels: dict[str, Path], draft: Any, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[dict[str, dict[str, Any]]]:
    """What `list-experts` shows once plain pip has installed every wheel it takes."""
    folder = tmp_path_factory.mktemp("attacked")
    venv = make_venv(folder / "venv")
    venv.install_each(draft("sound").write(folder), *wheels.values())
    listed: dict[str, dict[str, Any]] = venv.listed(folder / "home")
    yield listed
    subprocess.run(["rm", "-rf", folder], check=True)  # pytest's own sweep recurses


def test_a_sound_wheel_passes(draft: Any, tmp_path: Path) -> None:
    assert read_wheel(draft("sound").write(tmp_path)).value


@pytest.mark.parametrize("name", NEIGHBOURS)
def test_an_honest_neighbour_passes(draft: Any, tmp_path: Path, name) -> None:
    (tamper, wrap), drafted = NEIGHBOURS[name], draft("honest")
    tamper(drafted)
    wheel = drafted.write(tmp_path)
    wheel.write_bytes(wrap(wheel.read_bytes()))
    assert read_wheel(wheel).violations == ()


@pytest.fixture(scope="module")
def added(
    venv: Any, wheels: dict[str, Path], tmp_path_factory: pytest.TempPathFactory
) -> dict[str, tuple[int, str, str]]:
    """What `add` says to every wheel: code, stdout and stderr. It must not change anything."""
    before, home = venv.contents(), tmp_path_factory.mktemp("added") / "home"
    done = venv.session(*(("add", str(wheel)) for wheel in wheels.values()), home=home)
    assert venv.contents() == before and not home.exists()
    return dict(zip(wheels, done, strict=True))


@pytest.mark.parametrize("name", ATTACKS)
def test_add_refuses_it_and_changes_nothing(added: Any, name) -> None:
    code, out, err = added[name]
    assert (code, out) == (1, "")
    assert err.startswith("redhost: ") and err.count("\n") == 1


@pytest.mark.parametrize("name", ATTACKS)
def test_check_tells_its_code(wheels: Any, name) -> None:
    found = read_wheel(wheels[name]).violations
    assert found[0].code == ATTACKS[name].code
    assert all(v.expected and v.found and v.hint and "\n" not in v.reason for v in found)


@pytest.mark.parametrize("name", ATTACKS)
def test_after_a_plain_pip_install_it_is_shown_refused(attacked: Any, name) -> None:
    shown = attacked.get(f"red-expert-{expert_id(name)}")
    if ATTACKS[name].listed is None:
        assert shown is None or shown["state"] == "enabled"  # what was hidden stayed outside
        return
    assert (shown["state"], shown["code"]) == ("discovered", ATTACKS[name].listed)
    assert shown["reason"] and shown["hint"]


def test_what_is_sound_is_not_refused_with_the_others(attacked: Any) -> None:
    assert attacked["red-expert-sound"]["state"] == "enabled"


def test_a_pth_has_already_run_and_the_report_says_so(attacked: Any) -> None:
    assert "has run already" in attacked["red-expert-evil-pth"]["hint"]


@pytest.mark.parametrize("kind", ["gz", "zip", "renamed"])
def test_a_source_distribution_is_refused_in_one_line(venv: Any, tmp_path: Path, kind) -> None:
    import tarfile

    name = {"gz": "x-1.tar.gz", "zip": "x-1.zip", "renamed": "x-1-py3-none-any.whl"}[kind]
    with tarfile.open(tmp_path / name, "w:gz") as archive:
        archive.add(__file__, "x-1/setup.py")
    before = venv.contents()
    done = venv.run("add", str(tmp_path / name), home=tmp_path / "home")
    assert (done.returncode, done.stderr.count("\n")) == (1, 1)
    assert "found a source distribution" in done.stderr
    assert venv.contents() == before


def test_a_package_of_a_name_that_is_taken_is_refused(venv: Any, draft: Any, tmp_path) -> None:
    drafted = draft("taker")
    named("numpy")(drafted)
    done = venv.run("add", str(drafted.write(tmp_path)), home=tmp_path / "home")
    assert done.returncode == 1 and "(taken_top_level)" in done.stderr


def test_files_that_nobody_brought_are_not_overwritten(
    make_venv: Any, draft: Any, tmp_path: Path
) -> None:
    """What an installation leaves behind that was killed half-way."""
    venv, drafted = make_venv(tmp_path / "venv"), draft("half")
    folder = venv.site / drafted.module
    folder.mkdir()
    done = venv.run("add", str(drafted.write(tmp_path)), home=tmp_path / "home")
    assert done.returncode == 1 and f"files of no distribution, at {folder}" in done.stderr
    info = venv.site / drafted.info
    info.mkdir()
    for name in ("METADATA", "entry_points.txt"):
        (info / name).write_bytes(drafted.members[f"{drafted.info}/{name}"])
    assert venv.listed(tmp_path / "home")["red-expert-half"]["code"] is not None
    done = venv.run("remove", "red-expert-half", home=tmp_path / "home")
    assert done.returncode == 1 and f"Remove {info} and {folder} by hand" in done.stderr


def test_a_distribution_of_a_name_that_is_taken_is_refused(venv: Any, draft: Any, tmp_path) -> None:
    """pip would uninstall the one that is here."""
    drafted = draft("taker")
    renamed("numpy")(drafted)
    before = venv.contents()
    done = venv.run("add", str(drafted.write(tmp_path)), home=tmp_path / "home")
    assert done.returncode == 1 and "a distribution of that name is here" in done.stderr
    assert venv.contents() == before


def test_two_distributions_that_claim_one_file_are_both_refused(
    make_venv: Any, draft: Any, tmp_path: Path
) -> None:
    venv = make_venv(tmp_path / "venv")
    first, second = draft("first"), draft("second")
    named(first.module)(second)
    assert venv.install(first.write(tmp_path)).returncode == 0
    assert venv.listed(tmp_path / "home")["red-expert-first"]["state"] == "enabled"
    assert venv.install(second.write(tmp_path)).returncode == 0
    listed = venv.listed(tmp_path / "home")
    codes = {name: listed[f"red-expert-{name}"]["code"] for name in ("first", "second")}
    assert codes == {"first": "taken_top_level", "second": "taken_top_level"}


def test_a_wheel_of_another_experts_name_needs_its_id(
    make_venv: Any, draft: Any, tmp_path: Path
) -> None:
    venv, home = make_venv(tmp_path / "venv"), tmp_path / "home"
    one = draft("one").write(tmp_path)
    done = venv.session(("recompose",), ("add", "--accept", str(one)), home=home)
    assert [code for code, _, _ in done] == [0, 0], done
    before, thief = venv.contents(), draft("two")
    renamed("red_expert-One")(thief)
    wheel = str(thief.write(tmp_path))
    for code, _, err in venv.session(
        ("add", wheel), ("add", "--replace", "three", wheel), home=home
    ):
        assert code in {1, 2} and err.count("\n") == 1 and "one" in err
    assert venv.contents() == before
    newer = draft("one", version="0.2.0").write(tmp_path)  # control: its own next version
    done = venv.session(
        ("add", "--accept", str(newer)),
        ("add", "--accept", "--replace", "one", wheel, "--json"),
        home=home,
    )
    assert [code for code, _, _ in done] == [0, 0], done
    experts = json.loads(done[1][1])["receipt"]["experts"]
    assert "two" in experts and "one" not in experts


def test_an_expert_named_as_an_editable_backbone_is_refused_by_name(
    make_venv: Any, draft: Any, tmp_path: Path
) -> None:
    """Its files come first on the path, and nothing of the backbone lies beside its metadata."""
    venv, home, thief = make_venv(tmp_path / "venv"), tmp_path / "home", draft("thief")
    named("red_backbone_tiny")(thief)
    wheel = thief.write(tmp_path)
    (code, _, _), refused = venv.session(("recompose",), ("add", str(wheel)), home=home)
    assert (code, refused[0]) == (0, 1) and "brought by red-backbone-tiny" in refused[2]
    assert venv.install(wheel).returncode == 0
    listed, (code, _, err), answered = venv.session(
        ("list-experts", "--json"), ("recompose",), ("predict", "What is 37 plus 12?"), home=home
    )
    codes = {x["dist"]: x["code"] for x in json.loads(listed[1])}
    assert codes["red-expert-thief"] == "taken_top_level"
    assert (code, err.count("\n")) == (1, 1)
    assert "'red_backbone_tiny'" in err or "red_backbone_tiny:" in err
    assert "also brought by red-expert-thief" in err
    assert answered[0] == 0
    honest = draft("honest").write(tmp_path)  # control: a name of its own
    assert venv.pip("uninstall", "--yes", "--quiet", "red-expert-thief").returncode == 0
    assert venv.install(honest).returncode == 0
    assert venv.listed(home)["red-expert-honest"]["state"] == "enabled"


def test_a_wheel_that_overwrites_another_package_is_seen_on_both(
    make_venv: Any, draft: Any, tmp_path: Path
) -> None:
    venv = make_venv(tmp_path / "venv")
    victim, thief = draft("victim"), draft("thief")
    thief.members[f"{victim.module}/expert.json"] = altered(victim)
    assert venv.install(victim.write(tmp_path), thief.write(tmp_path)).returncode == 0
    listed = venv.listed(tmp_path / "home")
    assert listed["red-expert-thief"]["code"] == "foreign_top_level"
    assert listed["red-expert-victim"]["code"] in {"taken_top_level", "record_digest"}


def test_control_without_the_record_check_lets_the_attack_in(
    environment: Any, draft: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A manifest changed on its way: valid in itself, and only RECORD knows better."""
    from redhost.registry.environment import installed
    from redhost.registry.queries.inventory import take_inventory
    from redhost.registry.wheel import policy as scope
    from redhost.registry.wheel import wheel as wheels

    drafted = draft("twin")
    changed_file(drafted)
    path = drafted.write(tmp_path)
    with zipfile.ZipFile(path) as archive:
        archive.extractall(environment.folder)

    def state() -> str:
        found = {x.id: x.state for x in take_inventory(tmp_path / "home", remember=False).statuses}
        return found["twin"]

    assert read_wheel(path).violations and state() == "discovered"
    for module in (wheels, installed):
        assert module.check_record is scope.check_record
        monkeypatch.setattr(module, "check_record", lambda *_, **__: ())
    assert read_wheel(path).value and state() == "enabled"  # what we guard against


CODES = "\x1b]0;evil\x07\x1b[31m\x9b2J\u202e"
PLACES = ("a key", "a value", "a file name", "a label", "a description")


def coded(draft: Any, where: str) -> Any:
    """Draft an expert with control codes in one place."""
    labels = {"labels": [CODES, "b"]} if where == "a label" else {}
    drafted = draft(where.replace(" ", "-"), **labels)
    name = f"{drafted.module}/expert.json"
    manifest = json.loads(drafted.members[name])
    manifest |= {
        "a key": {CODES: 1},
        "a value": {"form": CODES},
        "a description": {"domain": CODES},
    }.get(where, {})
    drafted.members[name] = json.dumps(manifest, ensure_ascii=False).encode()
    if where == "a file name":
        drafted.members[f"{drafted.module}/{CODES}"] = b""
    return drafted


Printed = list[tuple[int, str, str]]


@pytest.fixture(scope="module")
def printed(
    make_venv: Any, draft: Any, tmp_path_factory: pytest.TempPathFactory
) -> dict[str, Printed]:
    """What commands print of each of them once it is installed, and of all of them at once."""
    folder = tmp_path_factory.mktemp("codes")
    venv, home = make_venv(folder / "venv"), folder / "home"
    drafts = [coded(draft, where) for where in PLACES]
    wheels = [drafted.write(folder) for drafted in drafts]
    venv.install_each(*wheels)
    commands: list[tuple[str, ...]] = []
    for drafted, wheel in zip(drafts, map(str, wheels), strict=True):
        name = drafted.dist.removeprefix("red-expert-")
        commands += [("check", wheel), ("check", "--json", wheel), ("add", wheel), ("check", name)]
    *alone, listed, as_json = venv.session(
        *commands, ("list-experts",), ("list-experts", "--json"), home=home
    )
    done = venv.run("list-experts", "--json", home=home)  # as itself, on its own output
    more = [listed, as_json, (done.returncode, done.stdout, done.stderr)]
    return {where: [*alone[4 * n : 4 * n + 4], *more] for n, where in enumerate(PLACES)}


@pytest.mark.parametrize("where", PLACES)
def test_nothing_a_wheel_brings_speaks_to_the_terminal(
    printed: dict[str, Printed], where: str
) -> None:
    for _, out, err in printed[where]:
        assert all(line.isprintable() for line in (out + err).split("\n"))
    dist = f"red-expert-{where.replace(' ', '-')}"
    assert dist in {x["dist"] for x in json.loads(printed[where][-1][1])}


def test_every_code_is_explained() -> None:
    page = (Path(__file__).parents[1] / "docs" / "packages.md").read_text()
    codes = {code for a in ATTACKS.values() for code in (a.code, a.listed) if code}
    assert {c for c in codes if not c.startswith("weights_")} <= set(re.findall(r"`(\w+)`", page))
