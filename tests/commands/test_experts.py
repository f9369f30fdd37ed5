"""list-experts, check, enable and disable, for people."""

from __future__ import annotations

import importlib.util
import json
import shutil
import sys
from pathlib import Path

import pytest
from redhost_author.testing import backbone_project

RANGE2 = Path(__file__).parents[2] / "plugins" / "red-expert-range2"


@pytest.fixture
def copy(tmp_path: Path) -> Path:
    """A copy of range2's package folder."""
    origin = Path(importlib.util.find_spec("red_expert_range2").origin)
    return Path(shutil.copytree(origin.parent, tmp_path / "copy"))


def test_the_list_is_a_table_with_a_row_for_each_expert(home, call) -> None:
    code, out, _ = call("list-experts")
    assert code == 0
    for n in range(1, 6):
        [row] = [line for line in out.splitlines() if f"red-expert-range{n}" in line]
        assert "attached" in row and "residual" in row


def test_what_keeps_an_expert_out_stands_below_the_table(home, call) -> None:
    assert call("disable", "range2")[1] == "range2 disabled\nnext: redhost recompose\n"
    out = call("list-experts")[1]
    assert "expert 'range2' (red-expert-range2 " in out
    assert ": disabled: " in out
    assert "'redhost enable range2'" in out


def test_experts_of_another_backbone_are_folded_into_a_line(
    home, call, redhost_fake_expert
) -> None:
    redhost_fake_expert("apples")
    redhost_fake_expert("pears")
    _, out, _ = call("list-experts")
    assert "apples" not in out and "backbone_mismatch" not in out
    assert "2 more for other backbones: tiny-random" in out and "red-expert-range1" in out
    shown = call("list-experts", "--all")[1]
    assert "red-expert-apples" in shown and "backbone_mismatch" in shown and "more for" not in shown
    listed = {x["id"]: x["code"] for x in json.loads(call("list-experts", "--json")[1])}
    assert listed["pears"] == "backbone_mismatch" and len(listed) == 7


def test_without_experts_the_next_step_brings_one_for_the_backbone(
    environment, call, monkeypatch, tmp_path
) -> None:
    monkeypatch.setattr(sys, "path", [p for p in sys.path if "site-packages" not in p])
    assert call("list-experts")[1].endswith("pip install red-backbone-tiny red-expert-range3\n")
    environment.install(backbone_project(tmp_path / "red-backbone-tiny-random"))
    assert call("list-experts")[1].endswith("for example: redhost new-expert NAME\n")
    assert "next: redhost new-expert NAME\n" in call()[1]
    assert call("recompose")[2].endswith("For example: redhost new-expert NAME\n")


def test_bare_redhost_counts_experts_of_another_backbone_and_calls_none_unusable(
    home, call, redhost_fake_expert
) -> None:
    redhost_fake_expert("apples")
    _, out, _ = call()
    assert "elsewhere  1 for other backbones" in out and "not usable" not in out


@pytest.fixture
def renamed(tmp_path: Path) -> Path:
    """A copy of range2's project under another name."""
    project = Path(shutil.copytree(RANGE2, tmp_path / "red-expert-copy"))
    for path in (project / "pyproject.toml", project / "src/red_expert_range2/expert.json"):
        path.write_text(path.read_text().replace("range2", "copy"))
    (project / "src/red_expert_range2").rename(project / "src/red_expert_copy")
    return project


def test_a_copy_of_an_expert_is_refused_by_the_name_of_that_one(
    home, call, environment, renamed
) -> None:
    line = "same_rows: card: expected rows of its own, found the 82 rows of expert 'range2'"
    call("pack", str(renamed), "--out", "dist")
    [wheel] = Path("dist").glob("*.whl")
    code, out, err = call("add", str(wheel))
    assert (code, out, err.count("\n")) == (1, "", 1) and line in err
    assert "Remove one of the two with 'redhost remove ID'" in err
    environment.install(renamed)
    code, out, _ = call("recompose")
    assert code == 0 and f"left out   copy: {line}" in out


def test_another_build_of_the_backbone_at_hand_is_a_failure_and_never_folded(
    home, call, environment, renamed
) -> None:
    path = renamed / "src" / "red_expert_copy" / "expert.json"
    manifest = json.loads(path.read_text())
    manifest["backbone"]["fingerprint"] = "0" * 64
    path.write_text(json.dumps(manifest))
    environment.install(renamed)
    out = call("list-experts")[1]
    assert "red-expert-copy" in out and "backbone_mismatch" in out and "more for" not in out


def test_an_id_is_not_downloaded_as_what_happens_to_have_that_name(home, call) -> None:
    for name in ("range3", "range3==0.1.0"):
        code, out, err = call("add", name)
        assert (code, out, err.count("\n")) == (2, "", 1)
        assert "nothing was downloaded" in err and "Did you mean 'red-expert-range3'?" in err
    code, out, err = call("add", "r" * 5000 + ".whl")  # too long to be a file's name
    assert (code, out, err.count("\n")) == (2, "", 1) and "there is no wheel" in err


@pytest.mark.parametrize("command", ["enable", "disable"])
def test_an_unknown_expert_cannot_be_switched(home, call, command) -> None:
    code, _, err = call(command, "rang2")
    assert code == 2 and "unknown expert 'rang2'. Did you mean 'range2'?" in err


def test_a_switch_that_changes_nothing_says_so(home, call) -> None:
    assert call("enable", "range2")[1] == "range2 was enabled already\n"


def test_a_switch_names_a_home_that_was_not_there(home, call, tmp_path) -> None:
    mistyped = tmp_path / "hmoe"
    out = call("disable", "range2", "--home", str(mistyped))[1]
    assert out.startswith(f"range2 disabled: nothing was ever composed in {mistyped}\nnext: ")
    assert call("enable", "range2", "--home", str(mistyped))[1].startswith(
        "range2 enabled: nothing was "
    )
    there = str(tmp_path / "another")
    enabled = call("enable", "range2", "--home", there)[1]
    assert enabled == f"range2 was enabled already: nothing was ever composed in {there}\n"


def test_a_distribution_that_is_switched_off_is_shown_how_to_be_switched_on(home, call) -> None:
    call("disable", "red-expert-range2")
    listed = {x["dist"]: x for x in json.loads(call("list-experts", "--json")[1])}
    hint = "redhost enable red-expert-range2"
    assert f"'{hint}'" in listed["red-expert-range2"]["hint"]
    out = call("enable", "range2")[1]
    assert "range2 was enabled already" in out and hint in out
    assert call("enable", "red-expert-range2")[0] == 0
    assert "disabled" not in call("list-experts")[1]


def test_an_uninstalled_expert_can_still_be_enabled_again(home, call) -> None:
    from redhost.registry.queries.settings import disabled_names, set_disabled

    set_disabled(home, "gone")
    assert call("enable", "gone")[0] == 0
    assert disabled_names(home) == frozenset()


def test_a_damaged_list_of_the_disabled_is_exit_3_and_enables_nobody(home, call) -> None:
    (home / "disabled.json").write_text("{")
    code, _, err = call("list-experts")
    assert code == 3 and "disabled.json" in err and err.count("\n") == 1


def test_check_says_ok_for_each_and_exits_0(home, call) -> None:
    code, out, _ = call("check", "range1", "range3")
    assert (code, out) == (0, "range1: ok\nrange3: ok\n")


def test_check_and_pack_read_what_they_name_and_no_other_expert(call, expert_reads) -> None:
    """Five are installed: manifests of the others may be read, their weights not."""
    with expert_reads() as reads:
        assert call("check", "range1")[:2] == (0, "range1: ok\n")
    assert len(reads) == 1
    with expert_reads() as reads:
        assert call("pack", str(RANGE2), "--out", "dist")[0] == 0
    assert len(reads) == 1
    [wheel] = Path("dist").glob("*.whl")
    with expert_reads() as reads:
        assert call("check", str(wheel))[0] == 0
    assert len(reads) == 1
    with expert_reads() as reads:
        assert call("check")[0] == 0
    assert len(reads) == 5


def test_a_backbone_is_checked_and_packed_like_an_expert(home, call, tmp_path, environment) -> None:
    assert call("check", "tiny", "red-backbone-tiny")[:2] == (
        0,
        "tiny: ok\nred-backbone-tiny: ok\n",
    )
    shipped = Path(__file__).parents[2] / "plugins" / "red-backbone-tiny"
    project = Path(shutil.copytree(shipped, tmp_path / "red-backbone-tiny"))
    code, out, _ = call("pack", str(project), "--out", "dist")
    [wheel] = Path("dist").glob("*.whl")
    assert code == 0 and out.splitlines() == [str(wheel), f"next: pip install {wheel}"]
    assert call("check", str(wheel), str(project))[:2] == (0, f"{wheel}: ok\n{project}: ok\n")
    file = next(project.glob("src/*/backbone.json"))
    manifest = json.loads(file.read_text())
    file.write_text(json.dumps({**manifest, "fingerprint": "0" * 64}))
    code, out, _ = call("check", "--json", str(project))
    [violation] = json.loads(out)[0]["violations"]
    assert code == 1 and violation["code"] == "backbone_mismatch"
    file.write_text(json.dumps({**manifest, "base": {"files": {}}}))
    assert call("check", str(project))[0] == call("pack", str(project))[0] == 1


def test_pack_without_hatchling_names_the_extra_that_brings_it(call, monkeypatch) -> None:
    monkeypatch.setitem(sys.modules, "hatchling.builders.wheel", None)
    code, out, err = call("pack", str(RANGE2), "--out", "dist")
    assert (code, out, err.count("\n")) == (3, "", 1)
    assert "pip install 'redhost[author]'" in err and not Path("dist").exists()


def test_check_without_names_checks_everything_installed(home, call) -> None:
    code, out, _ = call("check", "--json")
    assert code == 0 and [x["target"] for x in json.loads(out)] == [
        f"range{n}" for n in range(1, 6)
    ]


def test_one_failure_among_many_is_exit_1(home, call, copy) -> None:
    manifest = json.loads((copy / "expert.json").read_text())
    (copy / "expert.json").write_text(json.dumps({**manifest, "colour": "red"}))
    code, out, _ = call("check", "range1", str(copy))
    assert code == 1 and f"range1: ok\n{copy}: failed\n" in out
    assert "colour" in out and "expected" in out


def test_a_disabled_expert_can_be_checked(home, call) -> None:
    call("disable", "range2")
    assert call("check", "range2")[:2] == (0, "range2: ok\n")


@pytest.mark.parametrize("content", [b"", b"PK\x03\x04", b"not a wheel"])
def test_a_file_that_is_no_wheel_is_a_violation(home, call, tmp_path, content) -> None:
    wheel = tmp_path / "x-1-py3-none-any.whl"
    wheel.write_bytes(content)
    code, out, _ = call("check", "--json", str(wheel))
    assert code == 1 and not json.loads(out)[0]["ok"]


def test_a_folder_without_a_manifest_is_a_violation(home, call, tmp_path) -> None:
    empty = tmp_path / "empty"
    empty.mkdir()
    code, out, _ = call("check", "--json", str(empty))
    [violation] = json.loads(out)[0]["violations"]
    assert code == 1 and violation["code"] == "package_files"


@pytest.mark.parametrize("target", ["none-1-py3-none-any.whl", "dist/none"])
def test_a_path_that_leads_nowhere_is_no_unknown_id(home, call, target) -> None:
    code, out, err = call("check", target)
    assert (code, out) == (2, "")
    assert err.startswith(f"redhost: there is no wheel or folder {target}.")


def test_an_unknown_backbone_is_suggested(home, call) -> None:
    code, out, err = call("recompose", "--backbone", "tinny")
    assert (code, out) == (2, "")
    assert err.startswith("redhost: unknown backbone 'tinny'. Did you mean 'tiny'?")
    for command in (("check", "range1"), ("pack", str(RANGE2), "--out", "dist")):
        code, out, err = call(*command, "--backbone", "tinny")
        assert (code, out) == (2, "") and "unknown backbone 'tinny'" in err


def test_the_schema_is_closed(call) -> None:
    schema = json.loads(call("schema")[1])
    text = json.dumps(schema)
    assert '"additionalProperties": false' in text and "off_domain" in text
    assert "fingerprint" in call("schema", "backbone")[1]
    assert call("schema", "nothing")[0] == 2


def test_what_to_type_next_names_the_home_that_was_named(home, call, monkeypatch, tmp_path) -> None:
    monkeypatch.delenv("REDHOST_HOME")
    there = ("--home", str(home))
    anew = f"redhost recompose --home {home}"
    assert call("disable", "range2", *there)[1] == f"range2 disabled\nnext: {anew}\n"
    assert call("status", *there)[1].endswith(f"next: {anew}\n")
    home.rename(tmp_path / ".redhost")  # which every command takes by itself
    assert call("status")[1].endswith("next: redhost recompose\n")
    assert call("predict", "x", *there)[2].endswith(f"Run '{anew}'.\n")
