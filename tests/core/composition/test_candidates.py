"""Who joins a composition: each fault of a package has its code, and none does silent harm."""

from __future__ import annotations

import hashlib
import json
import shutil
from pathlib import Path

import numpy as np
import pytest
import redhost_author
import safetensors.numpy

import redhost
import redhost.testing
from redhost.cli import main
from redhost.registry.errors import HarmError, MissingError
from redhost.registry.queries.settings import set_disabled

TEXTS = ["red 61 b", "green 62 c", "blue 63 f", "nothing 4"]


@pytest.fixture
def home(encoded_home: Path) -> Path:
    return encoded_home


def open_host(home: Path) -> redhost.Host:
    return redhost.Host.open(home, backbone="toy")


def answers(home: Path) -> list[tuple[str, float | None]]:
    return [(a.label, a.probability) for a in open_host(home).predict(TEXTS)]


def rewrite(folder: Path, **changes: object) -> None:
    """Change an installed expert's manifest, by dotted path."""
    path = folder / "expert.json"
    manifest = json.loads(path.read_text())
    for dotted, value in changes.items():
        *parents, last = dotted.split("__")
        place = manifest
        for parent in parents:
            place = place[parent]
        place[last] = value
    path.write_text(json.dumps(manifest))


def resign(folder: Path, name: str, part: str) -> None:
    """Make the manifest agree with a changed file, as a careless author would."""
    rewrite(folder, **{f"{part}__sha256": hashlib.sha256((folder / name).read_bytes()).hexdigest()})


def with_nan(folder: Path) -> None:
    path = folder / "expert.safetensors"
    tensors = safetensors.numpy.load_file(path)
    tensors["U"][0, 0] = np.nan
    safetensors.numpy.save_file(tensors, path)
    resign(folder, path.name, "weights")


def truncated(folder: Path) -> None:
    path = folder / "expert.safetensors"
    path.write_bytes(path.read_bytes()[:-7])


def wrong_canary(folder: Path) -> None:
    path = folder / "canary.safetensors"
    tensors = safetensors.numpy.load_file(path)
    tensors["delta"] += 0.5
    safetensors.numpy.save_file(tensors, path)
    resign(folder, path.name, "canary")


BREAKS = {
    "backbone_mismatch": lambda f: rewrite(f, backbone__fingerprint="0" * 64),
    "width_mismatch": lambda f: rewrite(f, reads__width=99),
    "weights_tensors": lambda f: rewrite(f, rank=3),
    "weights_not_finite": with_nan,
    "weights_header": truncated,
    "manifest_unknown_key": lambda f: rewrite(f, colour="red"),
    "bus_api": lambda f: rewrite(f, bus_api=">=2"),
    "canary_values": wrong_canary,
    "manifest_json": lambda f: (f / "expert.json").write_text("{not json"),
}


def break_it(
    installed: redhost.testing.Environment, code: str, dist: str = "red-expert-red"
) -> None:
    """Break an installed expert as its author could: RECORD agrees with what is there."""
    BREAKS[code](installed.package(dist))
    installed.seal(dist)


HIDE = {"width_mismatch": {"weights_tensors", "width_mismatch"}}
"""A wrong width also disagrees with the tensors, which is seen first."""

COMPUTED = {"canary_values"}
"""Seen only by computing, which `list-experts` never does."""


@pytest.mark.parametrize("code", BREAKS)
def test_a_broken_member_is_refused_and_the_old_composition_answers(installed, home, code) -> None:
    host = open_host(home)
    host.recompose()
    before = answers(home)
    break_it(installed, code)
    with pytest.raises(HarmError, match="expert 'red' is in the current composition") as e:
        host.recompose()
    assert "\n" not in str(e.value)
    assert e.value.exit_code == 1
    assert host.generations.current() == 1
    assert answers(home) == before


def test_a_member_whose_installed_build_is_for_another_backbone_can_go_back_or_on(
    installed, home
) -> None:
    """So it is after a migrate and a rollback: the installed build is the ported one."""
    open_host(home).recompose()
    break_it(installed, "backbone_mismatch")
    with pytest.raises(HarmError, match="backbone_mismatch") as e:
        open_host(home).recompose()
    for step in ("'redhost add WHEEL' of red-expert-red 0.1.0", "'redhost rollback N'"):
        assert step in e.value.hint


@pytest.mark.parametrize("code", BREAKS)
def test_a_fault_is_a_state_and_check_exits_1_with_its_own_line(
    installed, home, capsys, code
) -> None:
    break_it(installed, code)
    at = ("--home", str(home), "--backbone", "toy", "--json")
    found = {x["dist"]: x for x in json.loads(call(capsys, 0, "list-experts", *at))}
    listed = found["red-expert-red"]
    if code not in COMPUTED:
        assert listed["code"] in HIDE.get(code, {code})
        assert listed["state"] in {"discovered", "valid"}
        assert listed["reason"] and listed["hint"] and "\n" not in listed["reason"]
    [report] = json.loads(call(capsys, 1, "check", "red-expert-red", *at))
    assert not report["ok"]
    for violation in report["violations"]:
        assert violation["code"] in HIDE.get(code, {code})
        assert all(violation[k] for k in ("field", "expected", "found", "hint"))


def test_no_two_faults_are_reported_in_the_same_words(
    installed, home, capsys, expert_folders
) -> None:
    messages = {}
    for code in BREAKS:
        break_it(installed, code)
        out = call(
            capsys, 1, "check", "red-expert-red", "--home", str(home), "--backbone", "toy"
        ).splitlines()
        messages[code] = out[1]
        installed.uninstall("red-expert-red")
        installed.install(expert_folders["red"].parents[1])
    assert len(set(messages.values())) == len(BREAKS)
    assert all("expected" in line and "found" in line for line in messages.values())


def call(capsys: pytest.CaptureFixture[str], code: int, *arguments: str) -> str:
    with pytest.raises(SystemExit) as e:
        main(arguments)
    out, err = capsys.readouterr()
    assert (e.value.code or 0) == code, err
    return out


@pytest.mark.parametrize("code", BREAKS)
def test_a_broken_newcomer_is_left_out_with_its_reason(installed, home, code) -> None:
    break_it(installed, code)
    receipt = open_host(home).recompose()
    assert set(receipt.experts) == {"blue", "green"}
    codes = {x.code for x in receipt.left_out if "red" in x.id and "range" not in x.id}
    assert codes <= HIDE.get(code, {code}) and codes


def test_two_packages_with_one_id_are_an_error_that_names_both(
    installed, home, tmp_path, expert_folders
) -> None:
    project = tmp_path / "other"
    shutil.copytree(expert_folders["red"].parents[1], project)
    text = (project / "pyproject.toml").read_text()
    (project / "pyproject.toml").write_text(
        text.replace("red-expert-red", "other-red").replace('"red_expert_red"', '"other_red"')
    )
    (project / "src" / "red_expert_red").rename(project / "src" / "other_red")
    host = open_host(home)
    host.recompose()
    installed.install(project)
    with pytest.raises(HarmError, match=r"other-red 0\.1\.0 and red-expert-red 0\.1\.0"):
        host.recompose()


def test_a_broken_member_can_be_disabled_by_its_distribution(installed, home) -> None:
    host = open_host(home)
    host.recompose()
    break_it(installed, "manifest_json")
    set_disabled(home, "red-expert-red")
    assert host.recompose().withdrawn == ("red",)


def test_an_expert_that_disturbs_others_more_than_it_says_is_left_out(installed, home) -> None:
    rewrite(installed.package("red-expert-red"), off_domain=1e-6)
    installed.seal("red-expert-red")
    receipt = open_host(home).recompose()
    assert ("red", "off_domain") in {(x.id, x.code) for x in receipt.left_out}


def test_without_any_expert_that_fits_the_first_reason_is_stated(installed, home) -> None:
    for name in ("red", "green", "blue"):
        break_it(installed, "bus_api", f"red-expert-{name}")
    with pytest.raises(MissingError, match="no installed expert can be attached") as e:
        open_host(home).recompose()
    assert e.value.exit_code == 3 and "blue, green, red: bus_api" in e.value.found


def test_where_all_are_switched_off_they_are_named_and_none_for_another_backbone(
    installed, home, redhost_fake_expert
) -> None:
    redhost_fake_expert("apples")  # sorted before them
    for name in ("red", "green", "blue"):
        set_disabled(home, name)
    with pytest.raises(MissingError, match="no installed expert can be attached") as e:
        open_host(home).recompose()
    assert e.value.found.startswith("blue, green, red: state: ") and "range" not in str(e.value)
    assert e.value.hint == "Enable it with 'redhost enable blue'."


def test_what_is_switched_off_is_named_before_what_is_broken(installed, home) -> None:
    break_it(installed, "bus_api", "red-expert-blue")
    for name in ("red", "green"):
        set_disabled(home, name)
    with pytest.raises(MissingError, match="no installed expert can be attached") as e:
        open_host(home).recompose()
    assert e.value.found.startswith("green, red: state: ")
    assert e.value.hint == "Enable it with 'redhost enable green'."


def test_a_card_whose_rows_are_not_what_it_says_is_left_out(installed, home) -> None:
    rewrite(installed.package("red-expert-red"), card__fit=7)
    installed.seal("red-expert-red")
    receipt = open_host(home).recompose()
    assert ("red", "card_rows") in {(x.id, x.code) for x in receipt.left_out}


def test_an_update_of_a_member_is_a_change_and_not_a_loss(
    installed, home, build_expert, tmp_path
) -> None:
    host = open_host(home)
    first = host.recompose()
    installed.uninstall("red-expert-red")
    settings = redhost_author.ExpertSettings(rank=8, epochs=80, learning_rate=1e-2, seed=1)
    installed.install(build_expert(tmp_path / "new", "red", settings=settings).parents[1])
    assert {x.id: x.state for x in host.list_experts()}["red"] == "enabled"
    second = host.recompose(accept=True)
    assert second.withdrawn == () and second.experts["red"] != first.experts["red"]
    assert second.experts["blue"] == first.experts["blue"]
