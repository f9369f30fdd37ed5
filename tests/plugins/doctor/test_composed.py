"""What is composed beside what is installed: each difference is made, found, and mended."""

from __future__ import annotations

import json
import shutil

import pytest
from redhost_doctor.doctor import CHECKS

from redhost.testing import Environment

DRY_RUN = "redhost recompose --dry-run"


def test_a_sound_environment_has_a_line_for_each_check_and_nothing_fails(world) -> None:
    found = world.doctor("")
    assert [*dict.fromkeys(f["check"] for f in found)] == [*CHECKS]
    assert not [f for f in found if f["state"] == "fail"]
    assert {f["check"] for f in found if f["state"] == "warn"} <= {"requirements"}
    assert not [f for f in found if f["state"] == "ok" and f["mend"]]


def test_an_unknown_check_is_wrong_usage_and_names_the_nearest(world) -> None:
    done = world.shell("redhost doctor stroe")
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (2, "", 1)
    assert "Did you mean 'store'?" in done.stderr


def test_what_people_read_has_the_mend_below_its_line(world) -> None:
    (world.home / "redhost.lock").unlink()
    done = world.shell("redhost doctor lock")
    line, mend = done.stdout.splitlines()
    assert done.returncode == 1 and line.split()[:2] == ["lock", "fail"]
    assert mend.strip() == "mend: redhost rollback 1"


# -- experts ---------------------------------------------------------------------------------------


def test_an_expert_that_is_not_installed_any_more_is_withdrawn(world) -> None:
    world.pip("uninstall -y red-expert-pears")
    [fault] = world.doctor("experts")
    assert (fault["state"], fault["mend"]) == ("warn", "redhost sync") and "pears" in fault["text"]
    assert [f["state"] for f in world.doctor("experts", before=fault["next"])] == ["ok"]
    assert world.members == ["apples"]


def test_what_the_lock_names_is_synced_before_it_is_withdrawn(world) -> None:
    world.pip("uninstall -y red-expert-pears")
    [fault] = world.doctor("experts")
    from_wheels = f"{fault['mend']} --from {world.wheels}"
    assert [f["state"] for f in world.doctor("experts", before=from_wheels)] == ["ok"]
    assert world.members == ["apples", "pears"]
    file = world.site / "red_expert_apples" / "expert.json"
    manifest = json.loads(file.read_text())
    other = {**manifest["backbone"], "name": "tiny", "fingerprint": "0" * 64}
    file.write_text(json.dumps({**manifest, "backbone": other}))
    Environment(world.site).seal("red-expert-apples")
    [fault] = world.doctor("experts")
    assert (fault["state"], fault["mend"]) == ("fail", "redhost sync")
    assert "backbone_mismatch" in fault["text"] and "recompose" in fault["next"]
    assert world.why("apples")["command"] == "redhost sync"
    assert [f["state"] for f in world.doctor("experts", before=from_wheels)] == ["ok"]


def test_an_expert_of_another_version_is_taken_up(world, wheels) -> None:
    world.pip(f"install --no-deps {wheels['new']}")
    before = world.stored("apples")
    assert "apples" in world.mended("experts", state="warn")["text"]
    assert world.stored("apples") != before


def test_an_expert_that_was_disabled_is_withdrawn(world) -> None:
    world.run("redhost disable apples")
    world.mended("experts", state="warn")
    assert world.members == ["pears"]


def test_a_changed_file_is_put_back_from_the_wheel(world, flip_byte) -> None:
    flip_byte(world.site / "red_expert_apples" / "expert.safetensors")
    fault = world.mended("experts")
    assert "weights_digest" in fault["text"] and ".whl" in fault["mend"]
    assert world.members == ["apples", "pears"]


def forget_wheel(world) -> None:
    """Let the wheel that an expert was installed from be gone."""
    [file] = world.site.glob("red_expert_apples-*.dist-info/direct_url.json")
    file.write_text(file.read_text().replace(str(world.wheels), str(world.folder / "gone")))


def test_a_changed_file_whose_wheel_is_gone_is_put_back_from_the_store(world, flip_byte) -> None:
    flip_byte(world.site / "red_expert_apples" / "expert.safetensors")
    forget_wheel(world)
    assert world.mended("experts")["mend"].startswith("cp ")
    assert world.members == ["apples", "pears"]


def test_a_changed_file_that_came_from_an_index_is_installed_again(world, flip_byte) -> None:
    [file] = world.site.glob("red_expert_apples-*.dist-info/direct_url.json")
    file.unlink()
    shutil.rmtree(world.home)  # it knew where the wheel was
    world.run("redhost recompose --backbone tiny-random")
    flip_byte(world.site / "red_expert_apples" / "expert.safetensors")
    flip_byte(world.stored("apples") / "expert.safetensors")
    [fault] = world.doctor("experts")
    assert "pip" not in fault["mend"] and "no source of red-" in fault["text"]
    withdrawn = f"{fault['next']} && redhost enable red-expert-apples"
    added = f"redhost add red-expert-apples==0.1.0 --find-links {world.wheels} --tolerance 100"
    world.run(f"{withdrawn} && {added}")
    flip_byte(world.site / "red_expert_apples" / "expert.safetensors")
    flip_byte(world.stored("apples") / "expert.safetensors")
    mend = world.mended("experts")["mend"]
    assert mend.endswith(f" --no-index --find-links {world.wheels} red-expert-apples==0.1.0")


def test_a_changed_file_is_put_back_from_where_the_composition_knows_its_wheel(
    world, flip_byte
) -> None:
    flip_byte(world.site / "red_expert_apples" / "expert.safetensors")
    flip_byte(world.stored("apples") / "expert.safetensors")
    [file] = world.site.glob("red_expert_apples-*.dist-info/direct_url.json")
    file.unlink()
    assert str(world.wheels) in world.mended("experts")["mend"]
    assert world.members == ["apples", "pears"]


def test_a_changed_file_that_nothing_can_put_back_is_left_out(world, flip_byte) -> None:
    flip_byte(world.site / "red_expert_apples" / "expert.safetensors")
    flip_byte(world.stored("apples") / "expert.safetensors")
    forget_wheel(world)
    [fault] = world.doctor("experts --deep")
    assert (fault["state"], fault["mend"]) == ("fail", "redhost sync")
    after = world.doctor("experts --deep", before=fault["next"])
    assert [f["state"] for f in after] == ["ok"] and world.members == ["pears"]


def test_what_no_lock_knows_a_source_of_is_not_mended_by_a_sync(world, flip_byte) -> None:
    flip_byte(world.site / "red_expert_apples" / "expert.safetensors")
    flip_byte(world.stored("apples") / "expert.safetensors")
    forget_wheel(world)
    lock = json.loads((world.home / "redhost.lock").read_text())
    del lock["experts"]["apples"]["source"]
    (world.home / "redhost.lock").write_text(json.dumps(lock))
    [fault] = world.doctor("experts --deep")
    assert (fault["state"], fault["mend"]) == ("fail", "")
    assert "redhost disable red-expert-apples" in fault["next"]


def install_copy(world, expert_id: str, **fields: object) -> None:
    """Install the expert `apples` once more, under another distribution."""
    module = world.site / "red_expert_copy"
    shutil.copytree(world.site / "red_expert_apples", module)
    file = module / "expert.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), "id": expert_id, **fields}))
    entries = {"redhost.experts": f"{expert_id} = red_expert_copy"}
    Environment(world.site).write_info("red-expert-copy", "0.1.0", "red_expert_copy", entries)


def test_of_two_packages_with_an_id_the_composed_one_stays(world) -> None:
    install_copy(world, "apples")
    found = [f for f in world.doctor("experts") if f["state"] != "ok"]
    assert {f["mend"] for f in found} == {"redhost disable red-expert-copy"}
    assert [f["state"] for f in world.doctor("experts", before=found[0]["mend"])] == ["ok"]
    assert world.members == ["apples", "pears"]


def test_an_expert_that_was_left_out_is_disabled(world) -> None:
    install_copy(world, "copy", norm_bound=1e-9)
    shutil.rmtree(world.home)
    world.run("redhost recompose --backbone tiny-random")
    assert world.members == ["apples", "pears"]
    [fault] = world.doctor("experts")
    assert "left out: norm_bound" in fault["text"] and fault["next"] == DRY_RUN
    assert [f["state"] for f in world.doctor("experts", before=fault["mend"])] == ["ok"]


def test_no_command_mends_for_certain_what_a_recompose_may_refuse(world, hijack, wheels) -> None:
    hijack(world)
    [fault] = world.doctor("experts")
    assert (fault["state"], fault["mend"], fault["next"]) == ("warn", "", DRY_RUN)
    lines = world.run("redhost doctor experts").splitlines()
    assert lines[-1].strip() == f"next: {DRY_RUN}"
    world.run("redhost recompose")
    assert world.doctor("experts") == [fault]
    world.pip(f"install --no-deps {wheels['new']}")
    update, newcomer = world.doctor("experts")
    assert (update["mend"], update["next"], newcomer) == ("", DRY_RUN, fault)


def test_experts_that_nothing_is_composed_of_are_composed(world) -> None:
    for name in ("current", "generations"):
        path = world.home / name
        shutil.rmtree(path) if path.is_dir() else path.unlink()
    fault = world.mended("experts", state="warn")
    assert "nothing is composed" in fault["text"]
    assert world.members == ["apples", "pears"]


def test_a_revoked_expert_is_composed_without_and_never_installed_again(world, revoke) -> None:
    revoke(world, world.stored("apples").name)
    [fault] = world.doctor("experts")
    assert (fault["state"], fault["mend"], fault["next"]) == ("fail", "", "redhost recompose")
    assert "leaks rows" in fault["text"] and "redhost add red-expert-apples==" in fault["text"]
    world.run(fault["next"])
    assert world.members == ["pears"]
    installed = world.mended("experts", state="warn")
    assert "pip uninstall --yes red-expert-apples" in installed["mend"]
    assert "is revoked: leaks rows" in installed["text"]


def test_another_version_of_what_is_revoked_comes_from_the_source_on_record(world, revoke) -> None:
    add = f"redhost add --find-links {world.wheels} red-expert-apples"
    world.run(f"redhost remove apples --accept && {add}==0.1.0 --accept")
    revoke(world, world.stored("apples").name)
    [fault] = world.doctor("experts")
    assert fault["text"].endswith(f"added by: {add}==VERSION")


def test_members_that_no_key_vouches_for_are_named_where_a_project_names_keys(world) -> None:
    assert [f["state"] for f in world.doctor("experts")] == ["ok"]
    world.run("redhost new-key author.pem")
    (world.folder / "pyproject.toml").write_text("[tool.redhost]\nkeys = ['author.pub.pem']\n")
    [finding] = world.doctor("experts")
    assert finding["state"] == "warn" and "apples, pears" in finding["text"]


# -- settings --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("[tool.redhost\n", "cannot read pyproject.toml"),
        ("[tool.redhost]\nbakcbone = 'tiny'\n", "Did you mean 'backbone'?"),
        ("[tool.redhost]\nkeys = ['gone.pem']\n", "gone.pem"),
    ],
)
def test_settings_of_a_project_that_the_host_refuses_are_found(world, text, line) -> None:
    (world.folder / "pyproject.toml").write_text(text)
    [fault] = world.doctor("settings")
    assert (fault["state"], fault["mend"]) == ("fail", "") and line in fault["text"]
    (world.folder / "pyproject.toml").write_text("[tool.redhost]\nseed = 1\n")
    assert [f["state"] for f in world.doctor("settings")] == ["ok"]


# -- the lock --------------------------------------------------------------------------------------


@pytest.fixture
def lock(world):
    return world.home / "redhost.lock"


def test_a_lock_with_the_marks_of_a_merge_is_written_again(world, lock) -> None:
    before = lock.read_bytes()
    lock.write_bytes(b"<<<<<<< HEAD\n" + before)
    world.mended("lock")
    assert lock.read_bytes() == before


def test_a_lock_that_cannot_be_read_goes_where_nothing_is_composed(world, lock) -> None:
    shutil.rmtree(world.home)
    world.home.mkdir()
    lock.write_text("<<<<<<< HEAD\n")
    world.mended("lock")
    assert world.members


def test_a_lock_of_what_is_not_installed_is_written_again(world, lock) -> None:
    before = lock.read_bytes()
    elsewhere = json.loads(before)
    elsewhere["experts"]["apples"]["digest"] = "0" * 64
    lock.write_text(json.dumps(elsewhere))
    world.mended("lock")
    assert lock.read_bytes() == before


@pytest.mark.parametrize("is_stored", [True, False])
def test_a_lock_of_what_is_installed_is_followed(world, lock, is_stored) -> None:
    elsewhere = lock.read_bytes()
    world.run("redhost disable apples && redhost recompose && redhost enable apples")
    if not is_stored:  # the router is trained again
        world.run("redhost gc --keep 1")
    lock.write_bytes(elsewhere)
    assert ("--locked" in world.mended("lock")["mend"]) == is_stored
    assert lock.read_bytes() == elsewhere and world.members == ["apples", "pears"]


def test_a_home_that_was_named_is_named_in_the_mend(world, lock) -> None:
    before = lock.read_bytes()
    lock.unlink()
    unset, arguments = "unset REDHOST_HOME", f"lock --home {world.home}"
    [fault] = world.doctor(arguments, before=unset)
    assert fault["mend"] == f"redhost rollback 1 --home {world.home}"
    assert [f["state"] for f in world.doctor(arguments, before=f"{unset}; {fault['mend']}")] == [
        "ok"
    ]
    assert lock.read_bytes() == before


def test_a_question_of_its_own_is_examined_and_mended_like_the_default_one(world) -> None:
    install_copy(world, "tone", question="tone")
    fault = world.mended("experts", state="warn")
    assert "--question tone" in fault["next"]
    assert (world.members, world.why("tone")["question"]) == (["apples", "pears"], "tone")
    assert world.why("tone")["state"] == "composed"
    (world.home / "questions" / "tone" / "redhost.lock").unlink()
    assert world.mended("lock")["mend"] == "redhost rollback 1 --question tone"
    shutil.rmtree(world.stored_in("tone", "tone"))
    assert world.mended("store")["mend"] == "redhost recompose --question tone"
    Environment(world.site).uninstall("red-expert-copy")
    assert world.why("tone")["state"] == "uninstalled"


# -- the backbone ----------------------------------------------------------------------------------


def test_a_backbone_that_is_not_installed_is_installed(world) -> None:
    world.pip("uninstall -y red-backbone-tiny-random")
    [fault] = world.doctor("backbone")
    assert (fault["mend"], fault["next"]) == ("", "redhost sync")
    assert "red-backbone-tiny-random" in fault["text"] and "no source of red-" in fault["text"]
    from_wheels = f"{fault['next']} --from {world.wheels}"
    assert [f["state"] for f in world.doctor("backbone", before=from_wheels)] == ["ok"]


def test_a_backbone_that_is_revoked_is_not_put_back(world, revoke) -> None:
    lock = json.loads((world.home / "redhost.lock").read_text())
    revoke(world, lock["backbone"]["digest"])
    [fault] = world.doctor("backbone")
    assert (fault["state"], fault["mend"], fault["next"]) == ("fail", "", "")
    assert "leaks rows" in fault["text"]


def test_a_backbone_without_a_file_is_put_back(world) -> None:
    (world.site / "red_backbone_tiny_random" / "model.safetensors").unlink()
    world.mended("backbone")


def test_a_wrong_byte_in_the_backbone_is_found_by_the_deep_check(world, flip_byte) -> None:
    flip_byte(world.site / "red_backbone_tiny_random" / "model.safetensors")
    assert [f["state"] for f in world.doctor("backbone")] == ["ok"]
    world.mended("backbone --deep")


def test_another_build_of_the_backbone_is_taken_up(world) -> None:
    file = world.site / "red_backbone_tiny_random" / "backbone.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), "license": "MIT"}))
    Environment(world.site).seal("red-backbone-tiny-random")
    world.mended("backbone", state="warn")


def test_another_backbone_of_that_name_is_replaced_by_the_composed_one(world) -> None:
    file = world.site / "red_backbone_tiny_random" / "backbone.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), "fingerprint": "0" * 64}))
    world.mended("backbone")
    assert [f["state"] for f in world.doctor("backbone experts --deep")] == ["ok", "ok"]


def test_of_several_backbones_one_is_chosen(world) -> None:
    shutil.rmtree(world.home)
    fault = world.mended("backbone", state="warn")
    assert "--backbone" in fault["next"] and world.members


# -- plugins ---------------------------------------------------------------------------------------


def test_a_plugin_that_changed_is_trusted_again_and_composed_with(world) -> None:
    world.run("redhost recompose --router shortlist --accept")
    [finding] = world.doctor("plugins")
    assert finding["state"] == "ok" and finding["text"].startswith("1 ")
    from redhost_robust import hooks

    source = hooks.__file__.rpartition("/")[0]
    module = world.site / "redhost_robust"
    shutil.copytree(source, module, ignore=shutil.ignore_patterns("__pycache__"))
    (module / "__init__.py").write_text((module / "__init__.py").read_text() + "\n")
    entries = {"redhost.plugins": "robust = redhost_robust.hooks"}
    Environment(world.site).write_info("redhost-robust", "0.1.0", "redhost_robust", entries)
    [untrusted] = world.doctor("plugins")
    assert untrusted["state"] == "fail"
    assert untrusted["mend"] == "redhost trust redhost-robust"
    [changed] = world.doctor("plugins", before=untrusted["mend"])
    assert changed["state"] == "fail"
    [after] = world.doctor("plugins", before=changed["mend"])
    assert after["state"] == "ok", after
