"""status, history, rollback and gc, for people."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path
from typing import Any

import pytest
from redhost_author.testing import backbone_project

import redhost
from redhost.registry.home.generations import Generations
from redhost.registry.home.store import Store
from redhost.registry.queries.inventory import take_status


def test_status_of_a_new_home_says_what_to_type(call, tmp_path) -> None:
    code, out, _ = call("status", "--home", str(tmp_path / "new"))
    assert code == 0 and "generation  none" in out and "next: redhost recompose" in out
    assert out.startswith(f"home        {tmp_path / 'new'}  (not there yet)\n")
    assert not (tmp_path / "new").exists()


def test_status_names_generation_backbone_experts_and_router(home, call) -> None:
    out = call("status")[1]
    assert "generation  1  (parent none)" in out and "backbone    tiny" in out
    assert "experts     range1, range2, range3, range4, range5" in out
    assert "router      evidence (full, seed 0)" in out and "drift" not in out


def test_status_names_the_backbone_where_nothing_else_chooses_one_of_several(
    home, call, environment, tmp_path
) -> None:
    call("disable", "range2")
    environment.install(backbone_project(tmp_path / "red-backbone-tiny-random"))
    assert call("status")[1].endswith("next: redhost recompose\n")  # the lock chooses
    (home / "redhost.lock").unlink()
    assert call("status")[1].endswith("next: redhost recompose --backbone tiny\n")
    new = call("status", "--home", str(tmp_path / "new"))[1]
    assert new.endswith(f"next: redhost recompose --home {tmp_path / 'new'} --backbone NAME\n")


def test_status_of_a_home_with_a_lock_alone_leads_to_what_it_names(home, call, tmp_path) -> None:
    (clone := tmp_path / "clone").mkdir()
    shutil.copy(home / "redhost.lock", clone)
    out = call("status", "--home", str(clone))[1]
    step = f"redhost sync --home {clone}, or redhost recompose --home {clone}\n"
    assert "generation  none" in out and out.endswith(f"next: {step}")


def test_nothing_is_read_of_a_home_that_is_not_there_and_nothing_is_made(call, tmp_path) -> None:
    new = str(tmp_path / "new")
    for options in ((), ("--json",)):
        code, out, err = call("history", "--home", new, *options)
        assert (code, out, err.count("\n")) == (3, "", 1)
        assert f"nothing is composed in {new}. Run 'redhost recompose --home {new}'" in err
    assert call("list-experts", "--home", new)[0] == 0
    assert not (tmp_path / "new").exists()


def test_history_marks_the_current_generation(home, call) -> None:
    call("recompose", "--router", "centroid", "--accept")
    rows = [line.split("│") for line in call("history")[1].splitlines() if line.startswith("│")]
    assert [row[1].strip() for row in rows] == ["1", "2 *"]
    assert [row[6].strip() for row in rows] == ["evidence/full", "centroid/full"]


def test_rollback_answers_with_the_generation_requested(home, call) -> None:
    before = json.loads(call("predict", "--json", "What is 37 plus 12?")[1])
    call("recompose", "--router", "centroid", "--accept")
    assert json.loads(call("predict", "--json", "What is 37 plus 12?")[1]) != before
    assert call("rollback", "1")[1].startswith("generation 1 is current: range1, range2")
    assert json.loads(call("predict", "--json", "What is 37 plus 12?")[1]) == before


def without_range5(call: Any, home: Path, *options: str) -> Path:
    """Compose without range5; return its stored copy, which only generation 1 needs."""
    digest = Generations(home).load(1).members()["range5"]
    call("disable", "range5")
    assert call("recompose", *options)[0] == 0
    return home / "store" / digest


@pytest.mark.parametrize(
    ("damage", "exit_code", "words"),
    [
        (lambda path: changed(path / "expert.safetensors"), 1, "stored 'range5': expert.safet"),
        (shutil.rmtree, 3, "found 'range5' (sha256:"),
    ],
)
def test_a_generation_of_which_stored_bytes_are_gone_or_others_is_not_made_current(
    home: Path, call: Any, damage: Any, exit_code: int, words: str
) -> None:
    damage(without_range5(call, home))
    pointer = (home / "current").read_bytes()
    code, out, err = call("rollback")
    assert (code, out, err.count("\n")) == (exit_code, "", 1) and words in err
    assert exit_code == 1 or "Run 'pip install red-expert-range5==0.1.0', then" in err
    assert (home / "current").read_bytes() == pointer and call("predict", "x")[0] == 0


EVEN = """
import redhost

class Even(redhost.Router):
    kind = "even"
    closed_form = True
    def forward(self, z, signals=None):
        return z.new_zeros(len(z), len(self.columns))
    def solve(self, columns, *, only=None):
        pass

@redhost.hookimpl
def redhost_register_routers(register):
    register("even", redhost.plugins.router_factory(Even))
"""


def test_a_generation_whose_plugin_is_gone_is_not_made_current(
    home: Path, call: Any, environment: Any
) -> None:
    environment.install_code("evener", {"__init__.py": EVEN}, {"redhost.plugins": "even = evener"})
    call("trust", "evener")
    assert call("recompose", "--router", "even", "--accept")[0] == 0
    environment.uninstall("evener")
    assert call("recompose", "--router", "evidence", "--accept")[0] == 0
    pointer = (home / "current").read_bytes()
    code, out, err = call("rollback", "2")
    assert (code, out, err.count("\n")) == (1, "", 1) and "plugin 'evener'" in err
    assert "'pip install evener'" in err and (home / "current").read_bytes() == pointer
    assert json.loads(call("rollback", "1", "--json")[1])["generation"] == 1


@pytest.mark.parametrize("change", ["revoked", "edited"])
def test_a_generation_whose_plugin_may_not_run_is_not_made_current(
    home: Path, call: Any, environment: Any, change: str
) -> None:
    entry = {"redhost.plugins": "even = evener"}
    folder = environment.install_code("evener", {"__init__.py": EVEN}, entry)
    call("trust", "evener")
    assert call("recompose", "--router", "even", "--accept")[0] == 0
    assert call("recompose", "--router", "evidence", "--accept")[0] == 0
    if change == "revoked":
        call("trust", "evener", "--revoke")
    else:
        (folder / "__init__.py").write_text(f"{EVEN}# another build\n")
        environment.seal("evener")
        assert call("trust", "evener")[0] == 0
    pointer = (home / "current").read_bytes()
    code, out, err = call("rollback", "2")
    assert (code, out, err.count("\n")) == (
        1,
        "",
        1,
    ) and "is not trusted, or is another build" in err
    assert "'redhost trust evener'" in err and (home / "current").read_bytes() == pointer
    assert call("predict", "x")[0] == 0


def test_the_first_generation_has_nothing_to_roll_back_to(home, call) -> None:
    code, _, err = call("rollback")
    assert code == 3 and "generation 1 is the first" in err


def test_status_after_a_rollback_says_how_to_go_forward(home, call, environment) -> None:
    assert "older" not in call("status")[1]
    call("recompose", "--router", "centroid", "--accept")
    assert json.loads(call("status", "--json")[1])["newest"] is None
    call("rollback")
    call("disable", "range2")
    out = call("status")[1]
    assert "older       than generation 2; forward again: redhost rollback 2\n" in out
    assert out.endswith("next: redhost recompose\n") and "(or redhost rollback)" not in out
    assert json.loads(call("status", "--json")[1])["newest"] == 2
    assert call("rollback", "2")[0] == 0 and "older" not in call("status")[1]
    assert call("status")[1].endswith("next: redhost recompose   (or redhost rollback)\n")


def test_a_recompose_after_a_rollback_has_the_generation_rolled_back_to_as_parent(
    home, call
) -> None:
    call("recompose", "--router", "centroid", "--accept")
    call("rollback")
    receipt = json.loads(call("recompose", "--router", "linear", "--accept", "--json")[1])
    assert (receipt["generation"], receipt["parent"]) == (3, 1)
    assert json.loads(call("rollback", "--json")[1])["generation"] == 1


def test_gc_keeps_what_is_current(home, call) -> None:
    call("recompose", "--router", "centroid", "--accept")
    size = sum(p.stat().st_size for p in (home / "generations" / "1").iterdir())
    removal = f"generation 1 and 0 stored packages, {size:,} bytes\n"
    assert call("gc", "--keep", "1", "--dry-run")[1] == f"would remove {removal}"
    assert (home / "generations" / "1").is_dir()
    assert call("gc", "--keep", "1")[1] == f"removed {removal}"
    assert not (home / "generations" / "1").exists()
    assert call("predict", "What is 37 plus 12?")[0] == 0
    assert call("gc", "--keep", "0")[0] == 2


def test_gc_names_the_generations_that_go(home, call) -> None:
    call("recompose", "--router", "centroid", "--accept")
    call("recompose", "--router", "linear", "--accept")
    assert call("gc", "--keep", "1", "--dry-run")[1].startswith("would remove generations 1, 2 and")


def test_gc_of_many_generations_prints_a_line(call, home) -> None:
    generations = Generations(home)
    record = generations.load(1)
    with generations.writer(timeout=5) as writer:
        for _ in range(40):
            generations.publish(record, {"router.safetensors": b"r"}, writer=writer)
    numbers = json.loads(call("gc", "--keep", "5", "--dry-run", "--json")[1])["generations"]
    out = call("gc", "--keep", "5")[1]
    assert out.count("\n") == 1 and len(numbers) == 36
    assert f"36 generations, {min(numbers)} to {max(numbers)}," in out


@pytest.mark.parametrize(
    "command", ["gc", "history", "rollback", "rollback 2", "upgrade", "migrate --to tiny"]
)
@pytest.mark.parametrize("is_there", [False, True])
def test_a_folder_that_is_no_home_is_refused_and_not_written_to(
    call, tmp_path, command, is_there
) -> None:
    mistyped = tmp_path / "hmoe"
    if is_there:
        mistyped.mkdir()
    code, out, err = call(*command.split(), "--home", str(mistyped))
    assert (code, out, err.count("\n")) == (3, "", 1)
    assert f"nothing is composed in {mistyped}. Run 'redhost recompose --home {mistyped}'" in err
    assert mistyped.exists() == is_there and [*mistyped.rglob("*")] == []


def test_gc_and_status_name_who_holds_a_generation(home, call) -> None:
    call("recompose", "--router", "centroid", "--accept")
    (home / ".tmp-1-left").write_bytes(b"half")
    with redhost.plugins.Leases(home).hold(1) as lease:
        out = call("status")[1]
        assert f"held        generation 1 by process {os.getpid()} since {lease.started}" in out
        assert "leftovers   1 of writers that were stopped" in out
        found = json.loads(call("status", "--json")[1])
        assert [x["generation"] for x in found["held"]] == [1]
        assert found["leftovers"] == [".tmp-1-left"]
        out = call("gc", "--keep", "1")[1]
        assert out.startswith(f"kept generation 1: process {os.getpid()} holds it\nremoved no gen")
    assert json.loads(call("gc", "--keep", "1", "--json")[1])["generations"] == [1]
    assert "held" not in call("status")[1]


def test_a_home_that_is_a_file_is_wrong_usage(call, tmp_path) -> None:
    (tmp_path / "file").write_text("")
    code, _, err = call("recompose", "--home", str(tmp_path / "file"))
    assert code == 2 and "is a file" in err


def test_a_home_that_cannot_be_made_is_exit_3(call, tmp_path) -> None:
    (tmp_path / "file").write_text("")
    code, _, err = call("recompose", "--home", str(tmp_path / "file" / "home"))
    assert code == 3 and err.startswith("redhost: cannot ") and err.count("\n") == 1


def changed(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)


def other_file(path: Path) -> None:
    """Change it as an editor does, which writes another file in its place."""
    (new := path.with_name("new")).write_bytes(path.read_bytes()[:-1] + b"?")
    new.replace(path)


def lacking(path: Path) -> None:
    path.unlink()


def gone(path: Path) -> None:
    shutil.rmtree(path.parent)


@pytest.mark.parametrize("damage", [changed, other_file, lacking, gone])
def test_status_sees_a_stored_copy_that_was_damaged_and_its_step_mends_it(
    call: Any, home: Path, damage: Any
) -> None:
    number = Generations(home).current()
    digest = Generations(home).load(number).members()["range2"]
    folder = home / "store" / digest
    for path in (*folder.iterdir(), folder):  # it was stored a minute ago
        os.utime(path, (path.stat().st_atime - 60, path.stat().st_mtime - 60))
    assert json.loads(call("status", "--json")[1])["store"] == []
    damage(folder / "expert.safetensors")
    code, out, _ = call("status")
    assert code == 0 and "damaged     " in out and out.endswith("next: redhost recompose\n")
    [fault] = json.loads(call("status", "--json")[1])["store"]
    assert "range2" in fault or digest[:12] in fault
    assert call("recompose")[0] == 0
    assert json.loads(call("status", "--json")[1])["store"] == []


def test_status_reads_nothing_of_what_nobody_touched(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    read = list[str]()
    monkeypatch.setattr(Store, "get", lambda _, digest: read.append(digest))
    assert take_status(home).store == () and read == []


def test_outdated_says_that_no_lock_records_an_index(home: Path, call: Any) -> None:
    code, out, _ = call("outdated")
    assert code == 0 and "no lock records an index: name one with --index-url, or --find" in out


@pytest.mark.parametrize("pointer", ["garbage", f"1 {'0' * 64}\n"])
def test_where_current_is_damaged_the_printed_commands_work_as_they_are(
    home, call, tmp_path, monkeypatch, pointer
) -> None:
    (home / "current").write_text(pointer)
    monkeypatch.delenv("REDHOST_HOME")
    code, out, err = call("predict", "x", "--home", str(home))
    assert (code, out, err.count("\n")) == (3, "", 1)
    assert f"'redhost rollback N --home {home}'" in err
    code, out, _ = call("history", "--home", str(home), "--json")
    assert code == 0 and [r["number"] for r in json.loads(out)] == [1]
    assert "1 *" not in call("history", "--home", str(home))[1]
    lines = call("doctor", "generations", "lock", "experts", "--home", str(home))[1]
    assert lines.count("redhost rollback N") == lines.count(f"rollback N --home {home}") > 0
    assert call("rollback", "1", "--home", str(home))[0] == 0
    assert "1 *" in call("history", "--home", str(home))[1]


def test_what_a_generation_declines_stands_with_its_router(home, call) -> None:
    assert call("recompose", "--decline", "5%")[0] == 0
    assert "router      evidence (full, seed 0), declines 5.00%" in call("status")[1]
    assert call("history")[1].count("5.00%") == 1


def test_a_question_that_is_not_composed_is_refused_by_status(home, call) -> None:
    for options in ((), ("--json",)):
        code, out, err = call("status", "--question", "nope", *options)
        assert (code, out, err.count("\n")) == (3, "", 1)
        assert "question 'nope' is not composed" in err and "sync" not in err
