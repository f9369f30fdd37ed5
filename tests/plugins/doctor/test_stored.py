"""Bytes of a home that are wrong: each is found, and the command that is printed mends it."""

from __future__ import annotations

import json
import shutil

import pytest


def test_a_wrong_byte_in_the_store_is_found_by_the_deep_check_and_stored_again(
    world, flip_byte
) -> None:
    flip_byte(world.stored("pears") / "expert.safetensors")
    assert [f["state"] for f in world.doctor("store")] == ["ok"]
    assert world.mended("store --deep")["mend"] == "redhost recompose"
    assert world.members == ["apples", "pears"]


@pytest.mark.parametrize("file", ["expert.json", "canary.safetensors", ""])
def test_what_is_missing_or_changed_in_a_manifest_is_found_without_it(
    world, flip_byte, file
) -> None:
    folder = world.stored("pears")
    if not file:
        shutil.rmtree(folder)
    elif file == "expert.json":
        flip_byte(folder / file)
    else:
        (folder / file).unlink()
    world.mended("store")
    assert world.members == ["apples", "pears"]


def test_a_copy_of_what_is_not_installed_is_installed_again(world) -> None:
    added = f"red-expert-pears==0.1.0 --find-links {world.wheels} --tolerance 100"
    world.pip("uninstall -y red-expert-pears")
    world.run(f"redhost recompose && redhost add {added} && redhost gc --keep 1")
    shutil.rmtree(world.stored("pears"))
    world.pip("uninstall -y red-expert-pears")
    fault = world.mended("store")
    assert f"--find-links {world.wheels} red-expert-pears==0.1.0" in fault["mend"]
    assert world.members == ["apples", "pears"]


def test_with_an_earlier_generation_that_is_whole_it_is_made_current(world) -> None:
    world.run("redhost disable pears && redhost recompose && redhost enable pears")
    world.run("redhost recompose")
    shutil.rmtree(world.stored("pears"))
    world.pip("uninstall -y red-expert-pears")
    [fault] = world.doctor("store")
    assert fault["mend"] == "redhost rollback 2" and "2 has no pears" in fault["text"]
    after = world.doctor("store generations", before=fault["mend"])
    assert not [f for f in after if f["state"] == "fail"] and world.members == ["apples"]


def test_an_earlier_generation_with_what_is_revoked_is_not_proposed(world, revoke) -> None:
    apples = world.stored("apples").name
    world.run("redhost disable pears && redhost recompose && redhost enable pears")
    world.run("redhost recompose && redhost disable apples && redhost recompose")  # 4: pears
    revoke(world, apples)
    shutil.rmtree(world.stored("pears"))
    world.pip("uninstall -y red-expert-pears")
    [fault] = [f for f in world.doctor("store") if f["state"] == "fail"]
    assert "rollback" not in fault["mend"] and fault["mend"]
    assert world.shell("redhost rollback 2").returncode == 1


def test_another_build_is_installed_than_the_copy_that_is_gone(world, wheels) -> None:
    shutil.rmtree(world.stored("apples"))
    world.pip(f"install --no-deps {wheels['new']}")
    assert "--accept" in world.doctor("store")[0]["mend"]
    [fault] = world.doctor("store")
    after = world.doctor("store", before=fault["mend"])
    assert not [f for f in after if f["state"] == "fail"] and world.members == ["apples", "pears"]
    [earlier] = after  # the first generation needs what is gone
    assert [f["state"] for f in world.doctor("store", before=earlier["mend"])] == ["ok"]


def test_a_copy_that_only_an_earlier_generation_needs_is_dropped_with_it(world) -> None:
    folder = world.stored("pears")
    world.run("redhost disable pears && redhost recompose")
    shutil.rmtree(folder)
    assert world.mended("store", state="warn")["mend"] == "redhost gc --keep=1"
    assert world.members == ["apples"]


def test_a_damaged_copy_that_nothing_needs_is_removed_alone(world, flip_byte) -> None:
    unneeded = world.home / "store" / ("0" * 64)
    shutil.copytree(world.stored("pears"), unneeded)
    assert "rm -r" in world.mended("store", state="warn")["mend"]
    assert not unneeded.exists() and world.stored("pears").is_dir()


def test_where_both_copies_are_damaged_the_wheel_is_installed_again(world, flip_byte) -> None:
    world.run("redhost recompose --router centroid --accept")
    flip_byte(world.stored("pears") / "expert.safetensors")
    flip_byte(world.site / "red_expert_pears" / "expert.safetensors")
    fault = world.mended("store --deep")
    assert ".whl" in fault["mend"] and "rollback" not in fault["mend"]
    assert world.members == ["apples", "pears"]


def test_what_was_rolled_back_from_is_not_gone_forward_to(world, wheels) -> None:
    world.pip(f"install --no-deps {wheels['new']}")
    world.run("redhost recompose && redhost rollback 1")
    shutil.rmtree(world.stored("apples"))
    world.pip("uninstall -y red-expert-apples")
    fault = world.mended("store")
    assert "red_expert_apples-0.1.0" in fault["mend"]  # and not the wheel of 0.2.0
    assert world.members == ["apples", "pears"]


def test_a_pointer_that_is_gone_after_a_rollback_is_that_of_the_lock(world, wheels) -> None:
    world.run("redhost recompose --router centroid --accept && redhost rollback 1")
    (world.home / "current").unlink()
    assert world.mended("generations")["mend"] == "redhost rollback 1"


# -- generations -----------------------------------------------------------------------------------


@pytest.mark.parametrize("pointer", ["", "x", f"1 {'0' * 64}\n"])
def test_a_damaged_pointer_is_written_again(world, pointer) -> None:
    file = world.home / "current"
    before = file.read_bytes()
    file.write_text(pointer)
    assert world.mended("generations")["mend"] == "redhost rollback 1"
    assert file.read_bytes() == before


def test_a_pointer_that_is_gone_is_written_again(world) -> None:
    (world.home / "current").unlink()
    world.mended("generations")
    assert world.members == ["apples", "pears"]


@pytest.mark.parametrize(
    ("name", "mend"),
    [
        ("receipt.json", "redhost recompose"),
        ("router.safetensors", "redhost recompose --accept"),
        ("composition.json", "redhost recompose --accept"),
    ],
)
def test_a_wrong_byte_in_the_current_generation_is_replaced(world, flip_byte, name, mend) -> None:
    flip_byte(world.home / "generations" / "1" / name)
    [fault] = world.doctor("generations")
    assert (fault["state"], fault["mend"]) == ("fail", mend)
    after = world.doctor("generations", before=mend)
    assert not [f for f in after if f["state"] == "fail"]
    assert world.members == ["apples", "pears"]
    last = [f["mend"] for f in world.doctor("generations --deep") if f["state"] == "warn"]
    assert last == ["redhost gc --keep=1"]
    assert [f["state"] for f in world.doctor("generations --deep", before=last[0])] == ["ok"]


def test_with_experts_gone_an_earlier_generation_is_made_current(world, flip_byte) -> None:
    world.run("redhost recompose --router centroid --accept")
    world.pip("uninstall -y red-expert-pears")
    flip_byte(world.home / "generations" / "2" / "router.safetensors")
    assert world.mended("generations")["mend"] == "redhost rollback 1"
    assert world.members == ["apples", "pears"]


def test_nothing_that_can_answer_is_left_and_it_is_composed_anew(world, flip_byte) -> None:
    (world.home / "current").write_text("x")
    flip_byte(world.home / "generations" / "1" / "router.safetensors")
    [fault] = world.doctor("generations")
    assert fault["mend"].startswith("rm -f ")
    found = world.doctor("generations", before=fault["mend"])
    assert not [f for f in found if f["state"] == "fail"]
    assert json.loads(world.run("redhost status --json"))["generation"] == 2
